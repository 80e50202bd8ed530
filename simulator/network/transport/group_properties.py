"""Classes of links, and the properties of a group of ranks on which a library's choice depends."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import log2

NVLINK, PCI, NET = "NVLINK", "PCI", "NET"
"""Link classes, as in NCCL (src/graph/tuning.cc, NCCL_HW_*)."""

_CLASSES = {
    **dict.fromkeys(("nvlink", "infinity_fabric", "ici"), NVLINK),
    **dict.fromkeys(("pcie", "upi", "qpi", "xgmi"), PCI),
}


@lru_cache(maxsize=256)
def link_class(kind: str) -> str:
    """Return the class of links of *kind*. A link that is neither of NVLink's nor of PCIe's type belongs to the
    network.

    >>> link_class("nvlink3"), link_class("pcie4"), link_class("ib_hdr")
    ('NVLINK', 'PCI', 'NET')
    """
    return next((name for prefix, name in _CLASSES.items() if kind.startswith(prefix)), NET)


@dataclass(frozen=True, slots=True)
class GroupProperties:
    """Properties of a group on which a library's choice depends.

    *inside*: class of the links between GPUs of one server, and *link* their kind. *vendor*: of the host's processor,
    ``intel`` or ``amd``. *nic_near*: the route from GPU to NIC passes no host. *switched*: GPUs of a server are joined
    by NVSwitches. *rings*: the number of rings; through a switch the number of NVLinks of a GPU. *nic_pairs*: beside
    each NIC in use there is a GPU where its ring enters and another one where it leaves. *tcp*: whether messages
    between servers go by TCP. *nic*: kind of the links out of a server.
    """

    ranks: int
    servers: int
    inside: str = NVLINK
    link: str = ""
    vendor: str = "intel"
    nic_near: bool = True
    switched: bool = False
    rings: int = 1
    nic_pairs: bool = True
    tcp: bool = False
    nic: str = ""

    @property
    def tree_steps(self) -> float:
        """Steps of a tree for each rank of a server, as NCCL counts them to cut LL128's chunks between servers.

        1 + log2 of the servers + a tenth of a server's ranks, over these ranks (src/enqueue.cc, computeColl, v2.14.3).
        """
        each = self.ranks / self.servers
        return (1 + int(log2(self.servers)) + 0.1 * each) / each

    @property
    def same_rings(self) -> bool:
        """Whether all channels have the same ring: through a switch, or with one NIC."""
        return self.rings == 1 or (self.switched and self.servers == 1)

"""What torch does in a function, op by op: kernels on large tensors, the bytes that they move, and bytes alive."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

IN_KERNELS: Mapping[str, tuple[int, int]] = {"_softmax_backward_data": (1, 3), "masked_fill": (1, 2)}
"""By operator, further kernels that CUDA runs for it, and the accesses of each of their elements.

The first multiplies gradients and probabilities (ATen/native/cuda/SoftMax.cu, ``softmax_backward_cuda_out``), the other
copies its input (ATen/native/TensorAdvancedIndexing.cpp)."""


PRODUCTS = ("mm", "bmm", "baddbmm")


@dataclass
class Watched:
    """Kernels on tensors of at least so many elements, the bytes that they move, and the most bytes alive at once.

    *accesses*: of those kernels that read and write one element at a time.
    """

    kernels: int = 0
    moved: int = 0
    accesses: int = 0
    peak: int = 0


def one_at_a_time(torch: Any, name: str, given: Sequence[Any], made: Any) -> bool:
    """Whether CUDA's kernel of the operator *name* reads and writes one element at a time.

    So it does if tensors have unequal types, lie apart, or are broadcast; not in a cast to 16 bits, nor in products.
    """
    if name in PRODUCTS or name == "native_dropout_backward":  # it takes its mask as bytes
        return False
    if name == "_to_copy":
        return bool(made.dtype == torch.float32)
    alike = all(one.is_contiguous() for one in given)
    broadcast = name != "cat" and any(1 < one.numel() < made.numel() for one in given)
    return unequal_types(given, made) or not alike or broadcast


def unequal_types(given: Sequence[Any], made: Any) -> bool:
    """Whether numbers are cast as they are read; a mask of bytes is not."""
    return len({one.dtype for one in (*given, made) if one.is_floating_point()}) > 1


def watched(torch: Any, run: Callable[[], Any], least: int = 0, *, on_cuda: bool = False) -> Watched:
    """What torch does in *run*. An op reads the large tensors that it is given, and writes those that it makes.

    *on_cuda*: the kernels are those of CUDA where it has more for an operator; else operators are counted.
    """
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    found, alive = Watched(), dict[int, int]()

    def storages(values: Any) -> dict[int, Any]:
        return {one.untyped_storage()._cdata: one for one in tree_leaves(values) if isinstance(one, torch.Tensor)}

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            given, made = storages((args, kwargs)), storages(result)
            name = func.overloadpacket.__name__
            # an op in place writes what it is given
            fresh = [one for key, one in made.items() if key not in given or name.endswith("_")]
            for one in fresh:
                storage = one.untyped_storage()
                alive[storage._cdata] = storage.nbytes()
                weakref.finalize(storage, alive.pop, storage._cdata, None)
            found.peak = max(found.peak, sum(alive.values()))
            touched = [one for one in (*given.values(), *fresh) if one.numel() >= least]
            if fresh and touched:  # else a view
                kernels, accesses = IN_KERNELS.get(name, (0, 0)) if on_cuda else (0, 0)
                found.kernels += 1 + kernels
                found.moved += sum(one.numel() * one.element_size() for one in touched)
                found.moved += accesses * fresh[0].numel() * max(one.element_size() for one in touched)
                tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
                if one_at_a_time(torch, name, tensors, fresh[0]):
                    found.accesses += sum(one.numel() for one in touched)
                    # an element that is broadcast is cast by each thread that reads it
                    if unequal_types(tensors, fresh[0]):
                        found.accesses += sum(1 < one.numel() < least for one in tensors) * fresh[0].numel()
            return result

    with Watch():
        run()
    return found

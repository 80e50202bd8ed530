"""A calibration file is a communication library with parameters that were measured on a machine.

Its parts: ``transport`` for ``network.transport``; ``cluster`` and ``accelerator`` for presets of those; ``host`` for a
node's link of that name; ``launch``, the host's cost of a kernel, for a software stack. The other keys say where the
figures are from.

    version: 1
    library: gloo
    transport:
      hop_latency: {NET: {ring: {tcp: 41.3 us}}}
    uncertainty: {hop_latency.NET.ring.tcp: 0.02}     # relative standard errors
    provenance: {date: 2026-01-31, backend: gloo, torch: 2.7.0, rows: 125, median_error: 0.03}
"""

import os
from inspect import signature
from typing import Any

from pydantic import Field

from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.network.library.transport_parameters import overridden, section
from clustersim.simulator.network.transport import Transport
from clustersim.simulator.reading.document import Document
from clustersim.simulator.reading.errors import SimulatorError
from clustersim.simulator.reading.lookup import function, is_path
from clustersim.simulator.reading.plain_text import written
from clustersim.simulator.reading.quantities import Section, Version
from clustersim.simulator.reading.validation import Fault, listed, near, validated
from clustersim.simulator.reading.yaml_and_json import read

LIBRARIES = ("nccl", "gloo", "ici", "ideal")
"""The libraries that clustersim models."""


class Calibration(Section):
    """The content of a calibration file. *library_version* is only for libraries with several tables."""

    version: Version
    name: str | None = None
    description: str = ""
    library: str = "ideal"
    library_version: str | None = None
    transport: dict[str, Any] | None = None
    cluster: dict[str, Any] | None = None
    accelerator: dict[str, Any] | None = None
    host: dict[str, Any] | None = None
    launch: str | None = None
    software: dict[str, Any] | None = None
    uncertainty: dict[str, Any] = Field(default_factory=dict)
    provenance: dict[str, Any] = Field(default_factory=dict)


def transport(name: str, cluster: Cluster | None = None, version: str | None = None) -> Transport:
    """Return the transport *name*: a library, a calibration file at that path, or a function of the user's if it is
    dotted.

    NCCL is of *version*, or else of the one that knows the GPUs of *cluster*. Raises `UnknownName`, or `ScenarioError`
    with the place of the fault in the file.
    """
    if is_path(name):
        return loaded(name, cluster, version)
    if name == "nccl" and (version is not None or cluster is not None):
        from clustersim.simulator.network.library import nccl

        return nccl.nccl(version or _known(cluster))
    made: Transport = function("clustersim.simulator.network.library", name)()
    return made


def _known(cluster: Cluster | None) -> str | None:
    from clustersim.simulator.network.library import nccl

    return None if cluster is None else nccl.version_for(link.kind for link in cluster.links.distinct)


def loaded(path: str | os.PathLike[str], cluster: Cluster | None = None, version: str | None = None) -> Transport:
    """Return the transport in the calibration file at *path*. If that does not say the version of NCCL, it is
    *version*, or else that of the GPUs of *cluster*.

    Raises `ScenarioError` with the place of every fault.
    """
    document = read(path)
    calibration = validated(document, Calibration)
    if calibration.transport is None:
        raise document.error(("transport",), "is required: this file has no transport for network.transport to take")
    parameters = validated(document, section(), ("transport",))
    try:
        return overridden(_library(document, calibration, version, cluster), parameters)
    except Fault as fault:
        raise document.error(("transport", *fault.path), fault.message, fault.hint) from None


def _library(document: Document, calibration: Calibration, given: str | None, cluster: Cluster | None) -> Transport:
    name, version = calibration.library, calibration.library_version
    if name == "nccl" and version is None:
        version = given or _known(cluster)
    if is_path(name):
        raise document.error(("library",), "must be the name of a library, not another file")
    try:
        make = function("clustersim.simulator.network.library", name)
    except SimulatorError:
        message = f"must be {listed(LIBRARIES)}, or a function of your own, not {written(name)}"
        raise document.error(("library",), message, near(name, LIBRARIES)) from None
    if version is not None and not signature(make).parameters:
        raise document.error(("library_version",), f"{name} has no versions; leave this out")
    try:
        made: Transport = make(*([version] if version is not None else []))
    except SimulatorError as error:
        raise document.error(("library_version",), str(error)) from None
    return made

"""The model as a scenario trains it: number formats, what is kept and what runs again; and who has the formats."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from clustersim.scenarios.specification.specification import Specification
from clustersim.scenarios.specification.training import PrecisionByOperator, Training
from clustersim.simulator.hardware.accelerator import Accelerator, Software
from clustersim.simulator.hardware.cluster import Cluster
from clustersim.simulator.hardware.hashing import distinct
from clustersim.simulator.hardware.kernel import BYTES
from clustersim.simulator.reading.document import Document
from clustersim.simulator.reading.errors import ClusterError, ScenarioError, SimulatorError
from clustersim.simulator.schedule.schedule import Schedule
from clustersim.topologies.catalogue import having_precision
from clustersim.workloads.architectures.layer_parts import dense_mlp
from clustersim.workloads.operators.elementwise import EVERYTHING
from clustersim.workloads.operators.model import Model, OperatorLayer
from clustersim.workloads.parallelism._parallelism import is_transformer
from clustersim.workloads.software_stack import with_uniform_units

if TYPE_CHECKING:
    from clustersim.workloads.operators.operator import Rule


def trained_model(
    specification: Specification, document: Document, gpu: Accelerator, software: Software, micro_batches: int
) -> Model:
    """Return the model of *specification*, which trains one, as *gpu* runs it under *software*.

    A step has *micro_batches*. Raises `ScenarioError` with the place of the fault in *document*.
    """
    training = specification.training
    assert specification.model is not None and training is not None
    products = training.product_precision
    if products == "tf32" and gpu.lacks_tf32(products):
        raise document.error(("training", "precision"), f"{gpu.name} has no tf32; take fp32")
    try:
        stack = with_uniform_units(software) if "parameters" in specification.parallelism.data.sharded else software
        model = specification.model.build(products, stack.fused).with_software(stack)
        return _saving(_in_low_precision(model, training, document, gpu, software, micro_batches), training, document)
    except ScenarioError:
        raise
    except SimulatorError as error:
        raise document.error(("model",), str(error)) from None


def _in_low_precision(
    model: Model, training: Training, document: Document, gpu: Accelerator, software: Software, micro_batches: int
) -> Model:
    """Return *model* with products in 8 or 4 bits, if *training* asks for them."""
    if not isinstance(training.precision, PrecisionByOperator):
        return model
    path = "training", "precision", "matmul"
    if not is_transformer(model):
        why = f"belongs to a transformer, and {model.name} is not one; give one word, such as {training.base_precision}"
        raise document.error(path, why)
    low = training.precision.low(
        transposes=gpu.transposes, keeps_casts=software.keeps_casts, micro_batches=micro_batches
    )
    try:
        return model.in_low_precision(low)
    except ScenarioError as error:
        raise document.error(path, str(error)) from None


def _saving(model: Model, training: Training, document: Document) -> Model:
    """Return *model* with the rules of *training*: what runs again, what activation functions keep."""
    rule = training.recompute_options.rule
    if rule is not None:
        model = _recomputing(model, rule, document)
    if training.saved == EVERYTHING:
        return model
    path = "training", "activation_function" if training.activation_function else "saved_precision"
    if not is_transformer(model):
        raise document.error(path, f"belongs to a transformer, and {model.name} is not one")
    if training.saved.experts_fp8 and model.shape.experts is None:
        raise document.error(("training", "saved_precision"), f"belongs to experts, and {model.name} has none")
    try:
        return model.saving(training.saved)
    except ScenarioError as error:
        raise document.error((*path, "bits"), str(error)) from None


def _recomputing(model: Model, rule: Rule, document: Document) -> Model:
    """Return *model* with *rule* for what recomputation by operator runs again."""
    path = "training", "recompute"
    if not is_transformer(model):
        raise document.error(path, f"operators are those of a transformer, and {model.name} is not one")
    layers = (layer for layer in model.layers if isinstance(layer, OperatorLayer))
    missing = {
        "mla_up": model.shape.attention.latent is None,
        "experts": model.shape.experts is None,
        "mlp": not any(dense_mlp(layer.operators) for layer in layers),
    }
    for name in sorted(rule.names):
        if missing.get(name):
            raise document.error((*path, "operators"), f"{model.name} has no {name}")
    try:
        return model.recomputing(rule)
    except ScenarioError as error:
        raise document.error((*path, "every"), str(error)) from None


def check_precisions(model: Model, accelerators: Iterable[Accelerator], document: Document) -> None:
    """Raise `ScenarioError` unless all *accelerators* have the number formats of the forward passes of *model*."""
    kernels = (kernel for layer in model.layers for kernel in layer.forward(1))
    needed = {kernel.precision for kernel in kernels if kernel.flops and kernel.seconds is None} | {model.precision}
    for accelerator in accelerators:
        for precision in sorted(needed):
            _check(accelerator, precision, "precision", document)


def check_products(schedule: Schedule, cluster: Cluster, devices: Sequence[str], document: Document) -> None:
    """Raise `ScenarioError` unless each of *devices* has the formats of the products that *schedule* runs on it."""
    needed: dict[tuple[Accelerator, str], str] = {}
    accelerators, places = cluster.accelerators(devices)
    for number, program in enumerate(schedule.programs):
        ranks = schedule.ranks_of(number)
        owns = hosts = [accelerators[place] for place in distinct(places[ranks]).tolist()]
        if program.on == "gpu" and program.computes_on_host:
            hosts = list({cluster.accelerator(cluster.host_of(devices[rank])) for rank in ranks.tolist()})
        for op in program.computations():
            updates = op.on == "host" or (op.action is not None and op.action.phase == "O")
            key = "optimizer" if updates else "precision"
            for kernel in op.kernels:
                if kernel.flops and kernel.seconds is None:
                    for one in hosts if op.on == "host" else owns:
                        needed.setdefault((one, kernel.precision), key)
    for (accelerator, precision), key in needed.items():
        _check(accelerator, precision, key, document)


def _check(accelerator: Accelerator, precision: str, key: str, document: Document) -> None:
    """Raise `ScenarioError` at the *key* of training if *accelerator* has no products in *precision*."""
    try:
        accelerator.peak(precision)
    except ClusterError as error:
        having = having_precision(precision) if precision not in BYTES else []
        others = f"; these have {precision}: {', '.join(having)}" if having else ""
        what = f"multiplies matrices in {precision}, but " if key == "optimizer" else ""
        raise document.error(("training", key), f"{what}{error}{others}") from None

"""The `model:` section of a scenario, and a file of `workloads/models`, is one of nine kinds of model.

transformer (from shapes), vision (a vision transformer), convolutional (from layers), diffusion, unet, towers (of
images and text), speech, profile (measured) and unit (given durations). Without `kind` a mapping with `profile` is a
profile and any other a transformer. A preset is merged below the section beforehand.
"""

from typing import Annotated, Any

from clustersim.simulator.reading.document import Document
from clustersim.simulator.reading.lookup import data_file
from clustersim.simulator.reading.quantities import Section
from clustersim.simulator.reading.validation import Deferred, validated
from clustersim.simulator.reading.yaml_and_json import read
from clustersim.workloads.architectures.model_keys import KINDS, Named, with_plain_keys
from clustersim.workloads.operators.model import Model
from clustersim.workloads.operators.operator import Fused


def _kind(value: Any) -> str:
    if not isinstance(value, dict):
        return str(getattr(value, "kind", "transformer"))
    kind = value.get("kind", "profile" if "profile" in value else "transformer")
    return kind if kind in KINDS else "transformer"


ModelSpecification = Annotated[Named, Deferred(KINDS, _kind)]
"""The `model:` section."""


class _Holder(Section):
    model: ModelSpecification


def specification(name: str) -> ModelSpecification:
    """That of the model *name* in `workloads.models`, or a dotted name of the user's own. Raises `SimulatorError`."""
    document = with_plain_keys(read(data_file("clustersim.workloads.models", name)), ())
    positions = {("model", *path): position for path, position in document.positions.items()}
    return validated(Document({"model": document.data}, positions), _Holder).model


def model(name: str, precision: str = "fp32", fused: Fused = True) -> Model:
    """The model *name* of `workloads.models`, as it stands there.

    >>> model("gpt2").parameters
    124439808
    """
    return specification(name).build(precision, fused)

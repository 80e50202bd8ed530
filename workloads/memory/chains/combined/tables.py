"""A chain in arrays, as the compiled programme reads it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

SAVED, AGAIN = 0, 1


class Tables(NamedTuple):
    """A chain in arrays. All are by layer, with an unused entry at 0, unless said otherwise.

    *until*: seconds of the forward passes up to a layer. *backward*: seconds of a backward pass; *peak*: the room that
    a layer needs to save its tape. *again*: seconds of a block that is run again, by first and last layer and room;
    infinite where it does not fit. *activation*: slots of a_l, from l = 0; *rest*: slots of a tape without a_l.
    *loads*, *seconds*: slots and seconds of the copies that may begin with a layer, by layer and number. *saved_load*,
    *again_load*: the number of the copy of a block that begins with that layer, and of a block by first and last
    layer; -1 if it may not be copied. *limit*: the seconds of all backward passes of a plan that is known; parts of
    plans that cannot be faster are left out.
    """

    until: Floats
    backward: Floats
    peak: Integers
    again: Floats
    activation: Integers
    rest: Integers
    loads: Integers
    seconds: Floats
    saved_load: Integers
    again_load: Integers
    limit: float

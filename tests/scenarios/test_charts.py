"""Charts of shipped scenarios show every transfer, however short, and the peaks of the reports."""

import numpy as np
import pytest

from clustersim.scenarios import Scenario
from clustersim.simulator.analysis import memory
from clustersim.simulator.analysis.timeline import Timeline
from clustersim.simulator.charts.rows import rows, shown
from clustersim.simulator.charts.short_ops import drawn


@pytest.fixture(scope="module")
def fsdp() -> Timeline:
    return Scenario.load("llama3_8b_fsdp_dgx_h100").run().timeline


def test_every_gather_of_fsdp_is_seen(fsdp: Timeline) -> None:
    """33 gathers of the first forward pass, of which nearest pixels used to show 18."""
    window, columns = (0.0, fsdp.makespan), 1200
    (gathers,) = (row for row in rows(fsdp, shown(fsdp, None)[0], window) if row.stream == "dp.gather")
    wide, shades = drawn(gathers.boxes, window, columns)
    share = dict(zip(shades.columns.tolist(), shades.shares.sum(axis=0).tolist(), strict=True))
    pixel = fsdp.makespan / columns
    (boxes,) = gathers.boxes
    assert len(boxes.begin) > 4 * 33
    seen = wide[0].boxes.begin if wide else np.zeros(0)
    for begin, end in zip(boxes.begin.tolist(), boxes.end.tolist(), strict=True):
        first, last = int(begin / pixel), min(int(end / pixel), columns - 1)
        assert begin in seen or sum(share.get(c, 0.0) for c in range(first, last + 1)) * pixel >= (end - begin) * 0.999


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["llama3_8b_fsdp_dgx_h100", "gpt2_xl_zero_zhores"])
def test_a_folded_run_has_the_peak_of_an_unfolded_one(name: str) -> None:
    """Without snapping to instants two shards overlap by rounding: peaks of folded runs are 5 to 12 % too high."""
    results = [Scenario.load(name, {"simulation.fold": fold}).run() for fold in (True, False)]
    for mine, theirs in zip(*(result.timelines.values() for result in results), strict=True):
        assert memory.peak(mine).peak.nbytes == pytest.approx(memory.peak(theirs).peak.nbytes, rel=1e-9)

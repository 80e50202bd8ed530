"""The picture of a cluster draws every vertex of a small one, and one server and the fabric of a large one."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from clustersim.scenarios import Scenario
from clustersim.simulator.analysis import network_traffic
from clustersim.simulator.analysis.timeline import Timeline
from clustersim.simulator.charts import figures
from clustersim.simulator.charts.network import topology_chart
from clustersim.simulator.charts.topology_layout import SERVERS, TopologyPicture, topology
from clustersim.simulator.reading.errors import SimulatorError
from tests.simulator.conftest import data_parallel, played


def picture(name: str) -> tuple[TopologyPicture, Timeline]:
    timeline = Scenario.load(name).run().timeline
    assert timeline.cluster is not None
    return topology(timeline, timeline.cluster), timeline


def test_a_small_cluster_is_drawn_whole() -> None:
    seen, timeline = picture("hello")
    assert seen.whole
    assert [vertex.kind for vertex in seen.vertices].count("gpu") == 4
    # a port for each of four GPUs and a host
    assert [(edge.kind, edge.count) for edge in seen.edges] == [("port", 1)] * 5
    highest = network_traffic.utilisation(timeline)["port"]["max"]
    assert seen.hottest is not None
    assert seen.hottest[1] == pytest.approx(highest) == max(edge.use or 0.0 for edge in seen.edges)


def test_of_1024_gpus_one_node_and_the_fabric_are_drawn() -> None:
    seen, timeline = picture("gpt3_175b_1024a100")
    assert timeline.cluster is not None
    counts = {vertex.kind: 0 for vertex in seen.vertices}
    for vertex in seen.vertices:
        counts[vertex.kind] += vertex.count
    assert (seen.whole, seen.servers, len(seen.vertices) < 40) == (False, 128, True)
    assert (counts["gpu"], counts["nic"], counts[SERVERS]) == (8, 8, 127)
    assert counts["leaf"] == timeline.cluster.vertices.counts["leaf"]
    by_kind = {edge.kind: 0.0 for edge in seen.edges}
    for edge in seen.edges:
        by_kind[edge.kind] = max(by_kind[edge.kind], edge.use or 0.0)
    for kind, share in network_traffic.utilisation(timeline).items():
        assert by_kind[kind] == pytest.approx(share["max"])
    # what comes through a NIC comes from the GPU's side too
    nics = {number for number, vertex in enumerate(seen.vertices) if vertex.kind == "nic"}
    assert all(edge.use for edge in seen.edges if {edge.source, edge.target} & nics)


@pytest.mark.exhaustive
def test_names_and_entries_of_the_picture_lie_on_it(tmp_path: Path) -> None:
    for name in ("zhores_resnet50_ddp", "megascale_175b_12288a100"):
        seen, timeline = picture(name)
        figure = topology_chart(timeline, None, None, name)
        axes, _ = figure.axes
        names = {text.get_text() for text in axes.texts}
        assert len(axes.texts) == len(seen.vertices)
        assert len(axes.patches) == len(seen.edges)
        assert any("other nodes" in one for one in names)
        FigureCanvasAgg(figure).draw()
        places = [text.get_window_extent() for text in [*axes.texts, *figure.legends[0].get_texts()]]
        edges = np.array([place.extents for place in places])
        assert (edges >= 0).all()
        assert (edges[:, 2] <= figure.bbox.width).all()
        assert (edges[:, 3] <= figure.bbox.height).all()


def test_a_measured_timeline_has_no_topology(tmp_path: Path) -> None:
    with pytest.raises(SimulatorError, match="was measured, not simulated"):
        figures.draw(played(data_parallel(2)), "topology", tmp_path / "t.svg")

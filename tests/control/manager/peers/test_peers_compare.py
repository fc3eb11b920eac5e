"""Which replicas count as slower than their peers, from reports made up here."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.manager.peers.compare import FigureReports, outliers, threshold
from control.manager.peers.reports import neighbour_delays, replicas_of
from control.manager.peers.samples import PeerGroups, Replica, ReplicaSample
from control.manager.peers.settings import PeerSettings
from control.manager.peers.wording import outlier_text
from control.manager.recommender.targets import WorkloadOwner
from koordlet.api.core import Pod
from koordlet.api.crs.nodemetric import NodeMetric
from koordlet.api.crs.performance import figures_of
from koordlet.api.encoding.wire import convert
from tests.present import present

SETTINGS = PeerSettings()
GROUP = ("default", "Deployment", "web", "app")


def replica(name: str, values: Sequence[float], *, node: str = "", cores: float = 1.0, figure: str = "cpu") -> Replica:
    samples = deque(ReplicaSample(60.0 * at, cores, {figure: value}) for at, value in enumerate(values))
    return Replica(f"default/{name}", name, node or f"node-{name}", samples=samples)


def slow(replicas: Sequence[Replica], active: Sequence[tuple[str, str]] = ()) -> list[str]:
    return [outlier.replica.uid for outlier in outliers(replicas, active, SETTINGS)]


PEERS = [replica(name, [0.02, 0.03, 0.02]) for name in "abcd"]
CASES = {
    "waits much longer": ([*PEERS, replica("x", [0.3, 0.4, 0.3])], ["x"]),
    "like the others": ([*PEERS, replica("x", [0.03, 0.02, 0.03])], []),
    "six times the median, and nothing that matters": ([*PEERS, replica("x", [0.06, 0.06, 0.06])], []),
    "only two reports": ([*PEERS, replica("x", [0.3, 0.4])], []),
    "not in each report": ([*PEERS, replica("x", [0.4, 0.02, 0.4])], []),
    "it was slow once": ([*PEERS, replica("x", [0.4, 0.4, 0.4, 0.02, 0.02, 0.02])], []),
    "hardly runs": ([*PEERS, replica("x", [0.3, 0.4, 0.3], cores=0.01)], []),
    "two peers are too few": ([*PEERS[:2], replica("x", [0.3, 0.4, 0.3])], []),
    "a second one on the same node is no peer": (
        [*PEERS[:3], replica("x", [0.3] * 3, node="n"), replica("y", [0.3] * 3, node="n")],
        ["x", "y"],
    ),
    "all of them wait": ([replica(name, [0.5, 0.6, 0.5]) for name in "abcde"], []),
    "two slow nodes of six": ([*PEERS, replica("x", [0.4] * 3), replica("y", [0.4] * 3)], ["x", "y"]),
    "peers that vary as much": (
        [*(replica(name, [0.05, 0.3, 0.15, 0.25]) for name in "abcd"), replica("x", [0.3] * 3)],
        [],
    ),
    "cycles per instruction": (
        [*(replica(name, [1.0, 1.1, 1.0], figure="cpi") for name in "abcd"), replica("x", [2.0] * 3, figure="cpi")],
        ["x"],
    ),
    "cycles per instruction at little use": (
        [
            *(replica(name, [1.0, 1.1, 1.0], figure="cpi") for name in "abcd"),
            replica("x", [2.0] * 3, figure="cpi", cores=0.2),
        ],
        [],
    ),
    "a figure of an exporter": (
        [*(replica(name, [12.0] * 3, figure="latency") for name in "abcd"), replica("x", [30.0] * 3, figure="latency")],
        ["x"],
    ),
    "no reports": ([], []),
}  # fmt: skip


@pytest.mark.parametrize(("replicas", "expected"), CASES.values(), ids=CASES)
def test_who_is_slower(replicas: list[Replica], expected: list[str]) -> None:
    assert slow(replicas) == expected


def test_it_ends_only_well_below_the_threshold() -> None:
    near = [*PEERS, replica("x", [0.065] * 3)]  # the threshold is 0.07, and it ends at 0.056
    assert slow(near) == []
    assert slow(near, [("x", "cpu")]) == ["x"]
    assert slow([*PEERS, replica("x", [0.05] * 3)], [("x", "cpu")]) == []


waits = st.lists(st.floats(0, 1), min_size=3, max_size=5)


@given(st.lists(st.tuples(waits, st.integers(0, 3)), min_size=1, max_size=8))
def test_an_outlier_exceeds_the_threshold_of_its_peers_in_each_of_the_last_reports(
    drawn: list[tuple[list[float], int]],
) -> None:
    """The shortcut that skips replicas without a closer look changes nothing."""
    replicas = [replica(f"p{at}", values, node=f"n{node}") for at, (values, node) in enumerate(drawn)]
    nodes = list(dict.fromkeys(replica.node for replica in replicas))
    expected = []
    for member in replicas:
        peers = FigureReports.of(replicas, "cpu", SETTINGS).elsewhere(nodes.index(member.node))
        if peers is not None and peers.replicas >= SETTINGS.peers and peers.samples >= SETTINGS.peer_samples:
            last = [sample.figures["cpu"] for sample in member.samples][-SETTINGS.lasting_reports :]
            if min(last) > threshold(peers, "cpu", SETTINGS):
                expected.append(member.uid)
    assert slow(replicas) == expected


def test_the_distribution_has_the_planned_statistics() -> None:
    peers = present(FigureReports.of([*PEERS, replica("x", [9.0])], "cpu", SETTINGS).elsewhere(4))
    assert (peers.samples, peers.replicas, peers.nodes) == (12, 4, 4)
    assert peers.mean == pytest.approx(0.07 / 3)
    assert (peers.median, peers.p99) == (0.02, 0.03)
    assert peers.deviation == pytest.approx(0.004714, rel=1e-3)


def test_many_reports_are_thinned_out() -> None:
    many = [replica(f"p{at}", [0.1] * 15) for at in range(1000)]
    assert len(FigureReports.of(many, "cpu", SETTINGS).values) <= SETTINGS.compared


def test_reports_are_forgotten_with_age_and_with_the_pod() -> None:
    groups = PeerGroups(SETTINGS)
    for uid in ("old", "gone", "kept"):
        for at in (0.0, 0.0, 60.0):
            groups.add(GROUP, Replica(f"default/{uid}", uid, "n"), ReplicaSample(at, 1.0, {"cpu": 0.1}))
    groups.add(GROUP, Replica("default/kept", "kept", "n"), ReplicaSample(1000.0, 1.0, {"cpu": 0.1}))
    groups.retain(["old", "kept"], 1010.0)
    ((_, replicas),) = groups
    assert [(replica.uid, [sample.at for sample in replica.samples]) for replica in replicas] == [("kept", [1000.0])]
    for at in range(2000, 2100):
        groups.add(GROUP, Replica("default/kept", "kept", "n"), ReplicaSample(float(at), 1.0, {}))
    assert len(next(iter(groups))[1][0].samples) == SETTINGS.reports
    groups.retain([], 2100.0)
    assert len(groups) == 0


def test_a_text_names_value_peers_and_neighbour() -> None:
    (outlier,) = outliers([*PEERS, replica("x", [0.3] * 3)], (), SETTINGS)
    assert outlier_text(GROUP, outlier) == (
        "container app waits for a CPU 30.0 % of its time; the 4 replicas of Deployment web on 4 other nodes: median "
        "2.0 %, 99 % below 3.0 %; no neighbour on node node-x explains it"
    )
    outlier.replica.has_neighbour = True
    assert outlier_text(GROUP, outlier).endswith("a neighbour on node node-x delays it (see InterferenceDetected)")


def test_reports_of_a_node_metric() -> None:
    extensions = {
        "performance": {
            "app": {"cpu": 0.1, "io": -1, "x": "1", "y": True, "z" * 64: 1.0, "big": 10**400},
            "w" * 64: {"cpu": 1},
            "log": 3,
        },
        "interference": [{"container": "app", "cause": "neighbour"}, {"container": "log", "cause": "self"}, 3],
    }
    pods = [
        {"name": name, "namespace": "default", "podUsage": {"resources": {"cpu": "500m"}}, "extensions": extensions}
        for name in ("web-1", "moved", "bare", "unknown")
    ]
    body = {"metadata": {"name": "n1"}, "status": {"updateTime": "2026-11-24T12:00:00Z", "podsMetric": pods}}
    metric: NodeMetric = convert(body, NodeMetric)
    known: dict[str, Pod] = {
        f"default/{name}": convert({"metadata": {"name": name, "uid": name}, "spec": {"nodeName": node}}, Pod)
        for name, node in (("web-1", "n1"), ("moved", "n2"), ("bare", "n1"))
    }
    workload = WorkloadOwner("apps", "Deployment", "web")
    samples = list(replicas_of(metric, known.get, lambda pod: None if pod.metadata.name == "bare" else workload))
    ((group, member, sample),) = samples
    assert (group, member.pod, member.node, member.has_neighbour) == (GROUP, "default/web-1", "n1", True)
    assert (sample.cores, sample.figures) == (0.5, {"cpu": 0.1})
    assert neighbour_delays(metric.status.pods_metric[0]) == {"app"}


@pytest.mark.parametrize(
    "extensions", [None, {}, {"performance": None}, {"performance": [1]}, {"performance": {"a": {}}}]
)
def test_an_extension_that_says_nothing(extensions: object) -> None:
    body = {"metadata": {"name": "n1"}, "status": {"podsMetric": [{"name": "p", "extensions": extensions}]}}
    assert figures_of(convert(body, NodeMetric).status.pods_metric[0]) == {}

"""Room for pods that other schedulers nominated (spec 05 §5.5, feature gate CrossSchedulerNomination)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from control.scheduler.cycle.failures import FitError
from control.scheduler.state.foreignnominations import ForeignNominations
from control.scheduler.state.pods import PodInfo
from koordlet.api.core import Pod
from tests.control.scheduler.build import Cluster, node, pod
from tests.control.scheduler.toys import Fits, cycle_of

POINTS = {"filter": ("Fits",)}
REGISTRY = {"Fits": Fits}


class Foreign:
    """The index with its handlers, and the pods whose nominations were lost."""

    def __init__(self, cluster: Cluster) -> None:
        self.index = ForeignNominations()
        self.lost: list[str] = []

        def note(info: PodInfo) -> None:
            self.lost.append(info.pod.status.nominated_node_name)

        self.seen, self.changed, self.gone = self.index.handlers({"koord-scheduler"}, cluster.info, note)


def foreign(priority: int = 101, *, on: str = "", nominated: str = "n1", scheduler: str = "default-scheduler") -> Pod:
    return pod(
        "theirs",
        cpu="3",
        priority=priority,
        on=on,
        spec={"schedulerName": scheduler},
        status={"nominatedNodeName": nominated},
        metadata={"uid": "theirs"},
    )


@pytest.mark.parametrize(
    ("priority", "scheduler", "fits"),
    [
        (100, "default-scheduler", True),
        (101, "default-scheduler", False),
        (99, "default-scheduler", True),
        (101, "koord-scheduler", True),
    ],
    ids=["equal is ignored", "higher counts", "lower is ignored", "own ones are not foreign"],
)
def test_room_is_left(priority: int, scheduler: str, fits: bool) -> None:
    """Four cores are free, the nominated pod requests three, the pod with priority 100 two."""
    cluster = Cluster(node("n1", cpu="4"))
    theirs = Foreign(cluster)
    cluster.use(foreign=theirs.index)
    cycle = cycle_of(cluster, POINTS, REGISTRY)
    theirs.seen(foreign(priority, scheduler=scheduler))
    info = cluster.info(pod(cpu="2", priority=100))
    if fits:
        assert cycle.place(info).node == "n1"
    else:
        with pytest.raises(FitError) as failure:
            cycle.place(info)
        assert failure.value.text() == "0/1 nodes are available: 1 Insufficient cpu."


def ended(pod: Pod) -> Pod:
    return msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, phase="Failed"))


STEPS: dict[str, tuple[Pod | None, list[str], list[str]]] = {
    "unchanged": (foreign(), ["n1"], []),
    "moved": (foreign(nominated="n2"), ["n2"], ["n1"]),
    "cleared": (foreign(nominated=""), [], ["n1"]),
    "bound": (foreign(on="n1"), [], []),
    "became ours": (foreign(scheduler="koord-scheduler"), [], ["n1"]),
    "deleted": (None, [], ["n1"]),
    "terminated": (ended(foreign()), [], ["n1"]),
}


@pytest.mark.parametrize(("after", "nodes", "lost"), STEPS.values(), ids=STEPS)
def test_the_index_follows_the_pods(after: Any, nodes: list[str], lost: list[str]) -> None:
    theirs = Foreign(Cluster(node("n1"), node("n2")))
    before = foreign()
    theirs.seen(before)
    if after is None:
        theirs.gone(before)
    else:
        theirs.changed(before, after)
    assert (list(theirs.index.nodes()), theirs.lost) == (nodes, lost)
    assert [nominee.uid for nominee in theirs.index.on(nodes[0], 0)] == ["theirs"] if nodes else True

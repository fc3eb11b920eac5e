"""LoadAwareScheduling matches the examples and verified tables of spec 05 §8."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from control.scheduler.config.args import LoadAwareSchedulingArgs
from control.scheduler.framework.plugin import CycleState
from control.scheduler.plugins.loadaware import LoadAwareScheduling
from control.scheduler.plugins.loadaware.estimate import capacity, pod_load
from control.scheduler.plugins.loadaware.vectors import Tracked
from control.scheduler.state.pods import PodInfo
from koordlet.api.core import Pod
from koordlet.api.encoding import wire
from koordlet.api.encoding.wire import Time
from tests.control.scheduler.build import Cluster, node, pod
from tests.control.scheduler.loadreports import NOW, metric, pod_usage, usage
from tests.fakeclock import FakeClock

GI = 1 << 30
PROD = {"koordinator.sh/priority-class": "koord-prod"}
BATCH = {"koordinator.sh/priority-class": "koord-batch"}
MID = {"koordinator.sh/priority-class": "koord-mid"}
FREE = {"koordinator.sh/priority-class": "koord-free"}
BIG: dict[str, Any] = {"cpu": "96", "memory": "512Gi"}


def args(**settings: Any) -> LoadAwareSchedulingArgs:
    return msgspec.convert(settings, LoadAwareSchedulingArgs, dec_hook=wire.dec_hook)


def old(name: str) -> Pod:
    """A prod pod that has long been on node n."""
    return pod(name, "100m", "1Mi", on="n", labels=PROD, status={"conditions": [condition("PodScheduled", 300)]})


def condition(kind: str, ago: float, status: str = "True") -> dict[str, str]:
    return {"type": kind, "status": status, "lastTransitionTime": str(Time.from_unix(NOW - ago))}


class World:
    """A cluster with a clock and the plugin."""

    def __init__(self, *nodes: Any, **settings: Any) -> None:
        self.cluster = Cluster(*nodes)
        self.clock = FakeClock(NOW)
        self.cluster.use(clock=self.clock)
        self.plugin = LoadAwareScheduling(args(**settings), self.cluster.handle)
        self.state = CycleState()

    def rows(self) -> Any:
        return self.cluster.table.all

    def reasons(self, pod: Pod) -> list[str]:
        """By row: why the node is refused, empty where it is not."""
        info = self.cluster.info(pod)
        if self.plugin.pre_filter(self.state, info).status.skipped:
            return [""] * self.cluster.table.size
        numbers = self.plugin.filter(self.state, info, self.rows())
        return [self.plugin.reasons.status(int(number)).message for number in numbers]

    def scores(self, pod: Pod) -> list[int]:
        info = self.cluster.info(pod)
        self.plugin.pre_filter(self.state, info)
        points: list[int] = self.plugin.score(self.state, info, self.rows()).tolist()
        return points

    def reserve(self, pod: Pod, row: int = 0) -> PodInfo:
        info = self.cluster.info(pod)
        if pod.spec.node_name:
            self.plugin.pod_seen(pod)
        else:
            self.plugin.reserve(self.state, info, row)
        return info


def both(cpu: str | None, memory: str | None, **more: Any) -> Pod:
    """Requests equal to limits."""
    limits = {k: v for k, v in {"cpu": cpu, "memory": memory}.items() if v is not None}
    return pod(cpu=cpu, memory=memory, limits=limits, **more)


@pytest.mark.parametrize(
    ("subject", "factors", "expected"),
    [
        pytest.param(both("4", "8Gi"), {}, (3400, 6012954214), id="requests are limits"),
        pytest.param(
            pod(cpu="4", memory="8Gi", limits={"cpu": "8", "memory": "8Gi"}), {}, (6800, 6012954214), id="limit"
        ),
        pytest.param(both("4", "8Gi"), {"cpu": 110}, (4000, 6012954214), id="cpu capped at the limit"),
        pytest.param(both("4", "8Gi"), {"memory": 110}, (3400, 8589934592), id="memory capped at the limit"),
        pytest.param(pod(cpu="4", memory="8Gi"), {"cpu": 80, "memory": 80}, (3200, 6871947674), id="requests only"),
        pytest.param(
            pod(
                cpu=None,
                memory=None,
                labels=BATCH,
                **{"kubernetes.io__batch_cpu": "4000", "kubernetes.io__batch_memory": "8Gi"},  # type: ignore[arg-type]
            ),
            {},
            (3400, 6012954214),
            id="batch",
        ),
        pytest.param(pod(cpu=None, memory=None), {}, (250, 209715200), id="empty"),
        pytest.param(pod(cpu=None, memory=None, labels=PROD), {}, (250, 209715200), id="empty prod"),
        pytest.param(pod(cpu=None, memory=None, labels=BATCH), {}, (250, 209715200), id="empty batch"),
        pytest.param(pod(cpu=None, memory=None, labels=MID), {}, (0, 0), id="empty mid counts nothing"),
        pytest.param(pod(cpu="4", memory="8Gi", labels=FREE), {}, (0, 0), id="free counts nothing"),
    ],
)
def test_estimates(subject: Pod, factors: dict[str, int], expected: tuple[int, int]) -> None:
    configured = args(estimatedScalingFactors=factors)
    assert pod_load(subject, configured, Tracked(configured)).estimate == expected


@pytest.mark.parametrize(
    ("annotation", "allowed", "expected"),
    [
        ('{"cpu":100}', True, (4000, 6871947674)),
        ('{"cpu":100}', False, (3200, 6871947674)),
        ("{}", True, (3200, 6871947674)),
        ("not json", True, (3200, 6871947674)),
        ('{"cpu":-5}', True, (0, 6871947674)),
    ],
    ids=["allowed", "not allowed", "empty", "malformed", "negative is nothing"],
)
def test_customized_estimates(annotation: str, allowed: bool, expected: tuple[int, int]) -> None:
    configured = args(estimatedScalingFactors={"cpu": 80, "memory": 80}, allowCustomizeEstimation=allowed)
    candidate = both("4", "8Gi", annotations={"scheduling.koordinator.sh/load-estimated-scaling-factors": annotation})
    assert pod_load(candidate, configured, Tracked(configured)).estimate == expected


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ('{"cpu":28,"memory":"32Gi"}', (28000, 32 * GI)),
        ('{"cpu":"28"}', (28000, 42 * GI)),
        ("", (32000, 42 * GI)),
        ("[", (32000, 42 * GI)),
    ],
    ids=["amplified", "one of two", "empty", "malformed"],
)
def test_capacity_is_taken_before_amplification(raw: str, expected: tuple[int, int]) -> None:
    machine = node("n", "32", "42Gi", annotations={"node.koordinator.sh/raw-allocatable": raw})
    assert capacity(machine, Tracked(args())) == expected


@pytest.mark.parametrize(
    ("settings", "conditions", "expected"),
    [
        ({"estimatedSecondsAfterPodScheduled": 180}, [condition("PodScheduled", 60)], NOW + 120),
        (
            {"estimatedSecondsAfterPodScheduled": 180, "estimatedSecondsAfterInitialized": 10},
            [condition("PodScheduled", 60), condition("Initialized", 30)],
            NOW - 20,
        ),
        (
            {"estimatedSecondsAfterPodScheduled": 180, "estimatedSecondsAfterInitialized": 10},
            [condition("PodScheduled", 60), condition("Initialized", 30, "False")],
            NOW + 120,
        ),
        ({}, [condition("PodScheduled", 60)], None),
    ],
    ids=["scheduled", "initialized", "not initialized yet", "unset"],
)
def test_deadlines(settings: dict[str, int], conditions: list[dict[str, str]], expected: float | None) -> None:
    world = World(node("n"), **settings)
    candidate = pod(on="n", status={"conditions": conditions})
    world.plugin.pod_seen(candidate)
    assert world.plugin.loads["n"].pods[candidate.metadata.uid].deadline == expected


@pytest.mark.parametrize(
    ("priority", "prod_usage", "prod_delta", "prod_estimate"),
    [("", 0, 0, 0), ("koord-batch", 3000, 3400, 6400)],
    ids=["not prod", "prod, one of them reported as batch"],
)
def test_sums_of_the_worked_example(priority: str, prod_usage: int, prod_delta: int, prod_estimate: int) -> None:
    world = World(node("n", "96"))
    labels = PROD if priority else BATCH
    spec = (
        {"cpu": "4", "memory": None, "limits": {"cpu": "4"}}
        if priority
        else dict(cpu=None, memory=None, limits={}, **{"kubernetes.io__batch_cpu": "4000"})
    )
    a = pod("a", on="n", labels=labels, status={"conditions": [condition("PodScheduled", 300)]}, **spec)  # type: ignore[arg-type]
    b = pod("b", on="n", labels=labels, status={"conditions": [condition("PodScheduled", 30)]}, **spec)  # type: ignore[arg-type]
    c = pod(
        "c",
        on="n",
        labels=BATCH,
        cpu=None,
        memory=None,
        status={"conditions": [condition("PodScheduled", 300)]},
        **{"kubernetes.io__batch_cpu": "1000"},  # type: ignore[arg-type]
    )
    for assigned in (a, b, c):
        world.plugin.pod_seen(assigned)
    reported = [
        pod_usage("default/a", "3", "1Gi", "koord-prod" if priority else ""),
        pod_usage("default/b", "1", "1Gi", priority),
    ]
    world.plugin.set_metric(metric("n", "6", "10Gi", pods=reported))
    load = world.plugin.loads["n"]
    assert (load.node_delta[0], load.estimated[0], load.existing(None)[0]) == (3250, 7650, 9250)
    assert (load.prod_usage[0], load.prod_delta[0], load.existing_prod()[0]) == (prod_usage, prod_delta, prod_estimate)
    page = world.plugin.node_page("n")
    assert page["nodeDelta"]["cpu"] == "3250m"
    assert page["nodeDeltaPods"] == ["default/b", "default/c"]
    assert page["nodeEstimatedPods"] == ["default/a", "default/b", "default/c"]
    assert [pod["pod"]["metadata"]["name"] for pod in page["pods"]] == ["a", "c", "b"]
    assert world.plugin.node_page("unknown") == {}


def test_the_page_lists_no_delta_of_zero() -> None:
    """A pod that uses more CPU than was estimated adds nothing for it. Usage is listed also if it is 0."""
    world = World(node("n", "96"))
    world.plugin.pod_seen(pod("a", on="n", cpu="4", memory="8Gi", labels=PROD))
    world.plugin.set_metric(metric("n", "90", "1Gi", pods=[pod_usage("default/a", "90", "1Gi", "koord-prod")]))
    page = world.plugin.node_page("n")
    assert (page["nodeDelta"].keys(), page["nodeDeltaPods"]) == ({"memory"}, ["default/a"])
    assert (page["prodDelta"].keys(), page["prodDeltaPods"]) == ({"memory"}, ["default/a"])
    world.plugin.set_metric(metric("n", "0", "0"))
    world.plugin.pod_gone(next(iter(world.plugin.loads["n"].pods.values())).pod)
    page = world.plugin.node_page("n")
    assert (page["nodeDelta"], page["prodDelta"]) == ({}, {})
    assert page["prodUsage"] == page["nodeEstimated"] == {"cpu": "0", "memory": "0"}


CPU_OVER = "node(s) cpu usage exceed threshold"


@pytest.mark.parametrize(
    ("settings", "report", "subject", "expected"),
    [
        pytest.param({}, metric("n", "60", "256Gi"), pod(cpu=None, memory=None), "", id="63 of 65 percent"),
        pytest.param({}, metric("n", "70", "256Gi"), pod(cpu=None, memory=None), CPU_OVER, id="73 of 65 percent"),
        pytest.param(
            {"prodUsageThresholds": {"cpu": 60}},
            metric(
                "n",
                "10",
                "1Gi",
                pods=[
                    pod_usage("default/x", "30", "1Gi", "koord-prod"),
                    pod_usage("default/y", "23", "1Gi", "koord-prod"),
                ],
            ),
            both("20", "1Gi", labels=PROD),
            CPU_OVER,
            id="prod usage",
        ),
        pytest.param(
            {},
            metric("n", "53", "1Gi"),
            pod(cpu=None, memory=None, labels=MID, **{"kubernetes.io__mid_cpu": "12000"}),  # type: ignore[arg-type]
            CPU_OVER,
            id="mid pod",
        ),
        pytest.param(
            {"aggregated": {"usageThresholds": {"cpu": 60}, "usageAggregationType": "p95"}},
            metric("n", "10", "1Gi", aggregated={"5m": {"p95": usage("70", "1Gi")}}),
            pod(cpu=None, memory=None),
            "node(s) cpu aggregated usage exceed threshold",
            id="longest window",
        ),
        pytest.param(
            {
                "aggregated": {
                    "usageThresholds": {"cpu": 60},
                    "usageAggregationType": "p95",
                    "usageAggregatedDuration": "10m",
                }
            },
            metric("n", "90", "1Gi", aggregated={"5m": {"p95": usage("70", "1Gi")}}),
            pod(cpu=None, memory=None),
            "",
            id="window not reported: estimates alone",
        ),
        pytest.param({}, metric("n", "90", "1Gi", bare=True), pod(), "", id="no nodeMetric in the status"),
        pytest.param({}, metric("n", "1", "1Gi", at=None), pod(), "node(s) nodeMetric expired", id="no time"),
        pytest.param({}, metric("n", "1", "1Gi", at=NOW - 180), pod(), "node(s) nodeMetric expired", id="expired"),
        pytest.param({}, metric("n", "1", "1Gi", at=NOW - 179), pod(), "", id="not yet expired"),
        pytest.param(
            {"enableScheduleWhenNodeMetricsExpired": True},
            metric("n", "90", "1Gi", at=NOW - 999),
            pod(),
            "",
            id="expired passes",
        ),
        pytest.param(
            {"filterExpiredNodeMetrics": False},
            metric("n", "90", "1Gi", at=NOW - 999),
            pod(),
            CPU_OVER,
            id="stale data used",
        ),
        pytest.param(
            {"usageThresholds": {"cpu": 0, "memory": 0}},
            metric("n", "90", "1Gi", at=NOW - 999),
            pod(),
            "",
            id="thresholds off",
        ),
        pytest.param({}, metric("n", "90", "511Gi"), pod(), CPU_OVER, id="first resource by name"),
    ],
)
def test_filter(settings: dict[str, Any], report: Any, subject: Pod, expected: str) -> None:
    world = World(node("n", **BIG), **settings)
    for reported in report.status.pods_metric:
        world.reserve(old(reported.name))
    world.plugin.set_metric(report)
    assert world.reasons(subject) == [expected]


def test_assigned_prod_pods_count_before_they_are_reported() -> None:
    world = World(node("n", **BIG), prodUsageThresholds={"memory": 70})
    world.reserve(both("1", "200Gi", labels=PROD))
    world.reserve(old("x"))
    world.plugin.set_metric(metric("n", "1", "1Gi", pods=[pod_usage("default/x", "1", "100Gi", "koord-prod")]))
    assert world.reasons(both("1", "200Gi", labels=PROD)) == ["node(s) memory usage exceed threshold"]


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        ('{"usageThresholds":{"cpu":80}}', ""),
        ('{"usageThresholds":{"cpu":50}}', CPU_OVER),
        (
            '{"aggregatedUsage":{"usageThresholds":{"cpu":30},"usageAggregationType":"p95"}}',
            "node(s) cpu aggregated usage exceed threshold",
        ),
        ('{"aggregatedUsage":{"usageThresholds":{"cpu":30}}}', CPU_OVER),
        ("{", CPU_OVER),
    ],
    ids=["more", "less", "aggregated", "aggregated without a type", "malformed"],
)
def test_a_node_may_have_its_own_thresholds(annotation: str, expected: str) -> None:
    world = World(node("n", **BIG, annotations={"scheduling.koordinator.sh/usage-thresholds": annotation}))
    world.plugin.set_metric(metric("n", "70", "1Gi", aggregated={"5m": {"p95": usage("40", "1Gi")}}))
    assert world.reasons(pod(cpu=None, memory=None)) == [expected]


def test_pods_of_daemon_sets_pass() -> None:
    world = World(node("n", **BIG))
    world.plugin.set_metric(metric("n", "90", "1Gi"))
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "u", "controller": True}
    candidate = pod(metadata={"ownerReferences": [owner]})
    assert world.reasons(candidate) == [""]
    info = world.cluster.info(candidate)
    assert not world.plugin.filter(world.state, info, np.array([0])).any()


POD16: dict[str, Any] = {"cpu": "16", "memory": "32Gi"}


@pytest.mark.parametrize(
    ("settings", "report", "assigned", "subject", "expected"),
    [
        pytest.param({}, metric("n"), (), both(**POD16), 90, id="idle"),
        pytest.param({}, metric("n", "32", "10Gi"), (), both(**POD16), 72, id="usage"),
        pytest.param(
            {"aggregated": {"scoreAggregationType": "p95"}},
            metric("n", "90", "500Gi", aggregated={"5m": {"p95": usage("32", "10Gi")}}),
            (),
            both(**POD16),
            72,
            id="p95",
        ),
        pytest.param(
            {"aggregated": {"scoreAggregationType": "p95", "scoreAggregatedDuration": "10m"}},
            metric("n", "32", "10Gi", aggregated={"5m": {"p95": usage("32", "10Gi")}}),
            (),
            both(**POD16),
            90,
            id="other windows only",
        ),
        pytest.param(
            {"aggregated": {"scoreAggregationType": "p95", "scoreAggregatedDuration": "10m"}},
            metric("n", "32", "10Gi", aggregated={"5m": {"p95": usage("32", "10Gi")}}),
            (both(**POD16),),
            both(**POD16),
            81,
            id="other windows only, with a pod",
        ),
        pytest.param({}, metric("n", "32", "10Gi"), (both(**POD16),), both(**POD16), 63, id="a pod not reported yet"),
        pytest.param(
            {"scoreAccordingProdUsage": True},
            metric("n", "1", "1Gi", pods=[pod_usage("default/x", "100", "100Gi", "koord-prod")]),
            (old("x"),),
            both(**POD16, labels=PROD),
            38,
            id="prod usage beyond capacity",
        ),
        pytest.param({"dominantResourceWeight": 10}, metric("n"), (), both(**POD16), 85, id="dominant resource alone"),
        pytest.param(
            {"dominantResourceWeight": 10, "supportedResources": ["example.com/x"]},
            metric("n"),
            (),
            both(**POD16),
            85,
            id="a tracked resource that the node lacks",
        ),
        pytest.param({}, metric("n"), (), pod(cpu=None, memory=None), 99, id="empty pod"),
        pytest.param({}, metric("other"), (), both(**POD16), 0, id="no metric"),
        pytest.param({}, metric("n", at=NOW - 180), (), both(**POD16), 0, id="expired"),
        pytest.param(
            {"filterExpiredNodeMetrics": False},
            metric("n", at=NOW - 180),
            (),
            both(**POD16),
            0,
            id="expired, though not filtered",
        ),
        pytest.param({}, metric("n", bare=True), (), both(**POD16), 0, id="no nodeMetric in the status"),
    ],
)
def test_score(settings: dict[str, Any], report: Any, assigned: tuple[Pod, ...], subject: Pod, expected: int) -> None:
    world = World(node("n", **BIG), **settings)
    for other in assigned:
        world.reserve(other)
    world.plugin.set_metric(report)
    assert world.scores(subject) == [expected]


def test_time_alone_expires_reports_and_touches_their_rows() -> None:
    world = World(node("a", **BIG), node("b", **BIG))
    world.plugin.set_metric(metric("a", at=NOW))
    world.plugin.set_metric(metric("b", at=NOW + 60))
    candidate = pod(cpu=None, memory=None)
    assert world.reasons(candidate) == ["", ""]
    position = world.cluster.table.pod_log.end
    world.clock.jump(180)
    assert world.reasons(candidate) == ["node(s) nodeMetric expired", ""]
    assert world.cluster.table.pod_log.since(position) == [0]
    assert world.scores(candidate) == [0, 99]
    world.plugin.set_metric(metric("a", at=NOW + 180))
    assert world.reasons(candidate) == ["", ""]


def test_unreserve_and_forget_revert_reserve() -> None:
    world = World(node("n", **BIG))
    world.plugin.set_metric(metric("n", "1", "1Gi"))
    before = world.scores(both(**POD16))
    for undo in ("unreserve", "forgotten", "deleted"):
        info = world.reserve(both(**POD16))
        assert world.scores(both(**POD16)) < before
        if undo == "unreserve":
            world.plugin.unreserve(world.state, info, 0)
        elif undo == "forgotten":
            world.plugin.forgotten(info)
        else:
            world.plugin.pod_gone(info.pod)
        assert world.scores(both(**POD16)) == before


def test_pod_events_move_and_end_pods() -> None:
    world = World(node("a"), node("b"))
    plugin = world.plugin
    info = world.reserve(pod("p"))
    bound = msgspec.structs.replace(info.pod, spec=msgspec.structs.replace(info.pod.spec, node_name="a"))
    plugin.pod_changed(info.pod, bound)
    assert list(plugin.loads) == ["a"]
    moved = msgspec.structs.replace(info.pod, spec=msgspec.structs.replace(info.pod.spec, node_name="b"))
    plugin.pod_changed(bound, moved)
    assert list(plugin.loads) == ["b"]
    ended = msgspec.structs.replace(moved, status=wire.convert({"phase": "Succeeded"}, type(moved.status)))
    plugin.pod_changed(moved, ended)
    assert plugin.loads == {}
    plugin.pod_seen(ended)
    assert plugin.loads == {}


def test_pods_that_stand_for_reservations_are_not_counted() -> None:
    world = World(node("a"))
    world.reserve(pod(annotations={"scheduling.koordinator.sh/reserve-pod": "true"}))
    assert world.plugin.loads == {}


def test_a_reused_row_has_no_old_data() -> None:
    world = World(node("a", **BIG))
    world.plugin.set_metric(metric("a", "90", "1Gi"))
    assert world.reasons(pod()) == [CPU_OVER]
    world.cluster.table.remove_node("a")
    world.cluster.table.set_node(node("b", **BIG))
    assert world.reasons(pod()) == [""]
    assert world.scores(pod()) == [0]


def test_a_metric_wakes_pods_that_its_node_accepts() -> None:
    world = World(node("a", **BIG))
    (metrics,) = [interest for interest in world.plugin.interests() if interest.resource == "NodeMetric"]
    assert metrics.hint is not None
    info = world.cluster.info(pod())
    full, free = metric("a", "90", "1Gi"), metric("a", "1", "1Gi")
    world.plugin.set_metric(full)
    assert not metrics.hint(info, None, full)
    world.plugin.set_metric(free)
    assert metrics.hint(info, full, free)
    world.plugin.drop_metric(free)
    assert metrics.hint(info, free, None)
    assert not metrics.hint(info, None, metric("unknown"))


def test_a_node_wakes_pods_that_it_accepts() -> None:
    world = World(node("a", **BIG), node("new", **BIG))
    (nodes,) = [interest for interest in world.plugin.interests() if interest.resource == "Node"]
    assert nodes.hint is not None
    world.plugin.set_metric(metric("a", "90", "1Gi"))
    info = world.cluster.info(pod())
    assert nodes.hint(info, None, node("new", **BIG))
    assert not nodes.hint(info, node("a", **BIG), node("a", **BIG))


def test_absurd_amounts_do_not_overflow() -> None:
    world = World(node("n", cpu="9Ei", memory="8Ei"), dominantResourceWeight=100)
    world.plugin.set_metric(metric("n", "9Ei", "8Ei"))
    candidate = pod(cpu="9E", memory="8Ei")
    assert world.reasons(candidate) == [CPU_OVER]
    assert world.scores(candidate) == [0]


def test_a_pods_event_may_come_before_its_nodes() -> None:
    world = World()
    candidate = pod(on="n")
    world.cluster.put(candidate)
    world.plugin.pod_seen(candidate)
    assert set(world.plugin.loads["n"].pods) == {candidate.metadata.uid}
    world.cluster.table.set_node(node("n"))
    assert world.reasons(pod()) == [""]

"""After any history LoadAwareScheduling's columns match a new computation from the objects."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from control.scheduler.config.args import LoadAwareSchedulingAggregatedArgs, LoadAwareSchedulingArgs
from control.scheduler.framework.plugin import CycleState
from control.scheduler.plugins.loadaware import LoadAwareScheduling
from control.scheduler.state.pods import PodInfo
from koordlet.api.encoding.wire import Duration
from tests.control.scheduler.build import Cluster, node, pod
from tests.control.scheduler.loadreports import NOW, metric, pod_usage, usage
from tests.control.scheduler.plain import loadaware as plain
from tests.fakeclock import FakeClock

PERCENT = st.integers(0, 100)
NODES = ("a", "b", "c")


@st.composite
def configurations(draw: st.DrawFn) -> LoadAwareSchedulingArgs:
    aggregated = draw(
        st.none()
        | st.builds(
            LoadAwareSchedulingAggregatedArgs,
            usage_thresholds=st.dictionaries(st.sampled_from(plain.NAMES), PERCENT, max_size=2),
            usage_aggregation_type=st.sampled_from(("", "p95", "avg")),
            usage_aggregated_duration=st.sampled_from((Duration("0"), Duration("5m"), Duration("10m"))),
            score_aggregation_type=st.sampled_from(("", "p95", "avg")),
            score_aggregated_duration=st.sampled_from((Duration("0"), Duration("5m"))),
        )
    )
    return LoadAwareSchedulingArgs(
        filter_expired_node_metrics=draw(st.booleans()),
        enable_schedule_when_node_metrics_expired=draw(st.booleans()),
        resource_weights=draw(st.dictionaries(st.sampled_from(plain.NAMES), st.integers(1, 100), max_size=2)),
        dominant_resource_weight=draw(st.sampled_from((0, 1, 50))),
        usage_thresholds={name: draw(PERCENT) for name in plain.NAMES},
        prod_usage_thresholds=draw(st.dictionaries(st.sampled_from(plain.NAMES), PERCENT, max_size=2)),
        prod_usage_include_sys=draw(st.booleans()),
        score_according_prod_usage=draw(st.booleans()),
        estimated_seconds_after_pod_scheduled=draw(st.sampled_from((None, 100))),
        aggregated=aggregated,
    )


KINDS = st.sampled_from(("", "koord-prod", "koord-mid", "koord-batch", "koord-free"))
AMOUNT = st.sampled_from((None, "0", "1", "3", "7"))


@st.composite
def pods(draw: st.DrawFn) -> Any:
    kind = draw(KINDS)
    cpu, memory, limit = draw(AMOUNT), draw(AMOUNT), draw(AMOUNT)
    more: dict[str, str] = {}
    if kind in ("koord-mid", "koord-batch"):
        short = kind.removeprefix("koord-")
        more = {f"kubernetes.io__{short}_cpu": "1500", f"kubernetes.io__{short}_memory": f"{memory or 1}Gi"}
        cpu = memory = None
    return pod(
        cpu=cpu,
        memory=memory and f"{memory}Gi",
        limits={} if limit is None else {"cpu": limit, "memory": "4Gi"},
        labels={"koordinator.sh/priority-class": kind} if kind else {},
        **more,  # type: ignore[arg-type]
    )


@st.composite
def reports(draw: st.DrawFn, name: str, pods: list[PodInfo], now: float) -> Any:
    cores, gigas = st.integers(0, 9), st.integers(0, 36)
    windows = draw(st.lists(st.sampled_from(("5m", "10m")), unique=True))
    return metric(
        name,
        str(draw(cores)),
        f"{draw(gigas)}Gi",
        at=draw(st.sampled_from((None, now, now - 30, now - 170, now - 180, now - 400))),
        pods=[
            pod_usage(pod.key, f"{draw(st.integers(0, 4000))}m", "1Gi", draw(KINDS))
            for pod in pods
            if draw(st.booleans())
        ],
        aggregated={
            window: {draw(st.sampled_from(("p95", "avg"))): usage(str(draw(cores)), "2Gi")} for window in windows
        },
        system=(str(draw(cores)), "3Gi"),
        bare=draw(st.integers(0, 7)) == 0,
    )


@given(configurations(), st.data())
def test_agrees_with_the_plain_implementation(args: LoadAwareSchedulingArgs, data: st.DataObject) -> None:
    cluster = Cluster(*(node(name, cpu=data.draw(st.sampled_from(("0", "8", "16")))) for name in NODES))
    clock = FakeClock(NOW)
    cluster.use(clock=clock)
    plugin = LoadAwareScheduling(args, cluster.handle)
    nodes = {name: plain.PlainNode(cluster.table.node(cluster.table.rows[name])) for name in NODES}
    running: dict[str, tuple[PodInfo, str]] = {}
    for _ in range(data.draw(st.integers(1, 12))):
        name = data.draw(st.sampled_from(NODES))
        row = cluster.table.rows[name]
        match data.draw(st.sampled_from(("report", "report", "reserve", "reserve", "end", "time", "forget", "node"))):
            case "report":
                there = [info for info, on in running.values() if on == name]
                report = data.draw(reports(name, there, clock.now()))
                before = nodes[name].metric
                if report.status.update_time is None and before is not None:
                    report.status.update_time = before.status.update_time  # what the specification keeps
                nodes[name].metric = report
                plugin.set_metric(report)
            case "reserve":
                info = cluster.info(data.draw(pods()))
                plugin.reserve(CycleState(), info, row)
                running[info.uid] = (info, name)
                nodes[name].pods[info.uid] = plain.PlainPod(info.pod, clock.now())
            case "end" if running:
                info, on = running.pop(data.draw(st.sampled_from(sorted(running))))
                plugin.unreserve(CycleState(), info, cluster.table.rows[on])
                del nodes[on].pods[info.uid]
            case "time":
                clock.jump(data.draw(st.sampled_from((10, 60, 180))))
            case "forget" if nodes[name].metric is not None:
                plugin.drop_metric(nodes[name].metric)  # type: ignore[arg-type]
                nodes[name].metric = None
            case "node":
                nodes[name].node = node(name, cpu=data.draw(st.sampled_from(("4", "9"))))
                cluster.table.set_node(nodes[name].node)
    subject = data.draw(pods())
    info, now, everything = cluster.info(subject), clock.now(), cluster.table.all
    plugin.pre_filter(CycleState(), info)
    numbers = plugin.filter(CycleState(), info, everything)
    messages = [plugin.reasons.status(int(number)).message for number in numbers]
    assert messages == [plain.verdict(subject, nodes[name], args, now) for name in NODES]
    assert plugin.score(CycleState(), info, everything).tolist() == [
        plain.score(subject, nodes[name], args, now) for name in NODES
    ]
    few = np.array(data.draw(st.sampled_from(([2, 0], [1, 0, 2, 1, 0]))), np.intp)
    assert plugin.filter(CycleState(), info, few).tolist() == numbers[few].tolist()
    assert plugin.score(CycleState(), info, few).tolist() == plugin.score(CycleState(), info, everything)[few].tolist()


def test_taking_everything_back_leaves_no_trace() -> None:
    cluster = Cluster(node("a"))
    plugin = LoadAwareScheduling(LoadAwareSchedulingArgs(), cluster.handle)
    infos = [cluster.info(pod()) for _ in range(5)]
    for info in infos:
        plugin.reserve(CycleState(), info, 0)
    for info in infos:
        plugin.unreserve(CycleState(), info, 0)
    assert plugin.loads == {}
    assert plugin._node_of == {}

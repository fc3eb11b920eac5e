"""The arbitrator and a plain one agree on random clusters, and no limit is exceeded."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from control.descheduler.migration.decide.arbitration import Outcome, arbitrate, arrange, counts_in_arbitration
from control.descheduler.migration.decide.args import MigrationControllerArgs
from control.descheduler.migration.decide.filters import MigrationFilter
from control.descheduler.migration.decide.moving import MovingPods
from koordlet.api.core import Pod
from koordlet.api.crs.migration import PodMigrationJob
from tests.control.descheduler.migration.build import NOW, ListedView, job, pod
from tests.control.descheduler.migration.plain import PlainArbitrator

KINDS = {"rs": "ReplicaSet", "sts": "StatefulSet", "j1": "Job", "j2": "Job", "ds": "DaemonSet", "": ""}
NAMES = {Outcome.PASSED: "passed", Outcome.FORBIDDEN: "forbidden", Outcome.WAITING: "waiting"}
LIMITS = st.sampled_from([None, 0, 1, 2, 3])
AMOUNTS = st.sampled_from([None, 0, 1, 2, 3, "0%", "20%", "50%", "100%"])


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[Pod], list[PodMigrationJob], dict[str, int], set[str], dict[str, Any]]:
    pods = [_pod(draw, number) for number in range(draw(st.integers(1, 9)))]
    jobs: list[PodMigrationJob] = []
    for number in range(draw(st.integers(1, 8))):
        subject = draw(st.sampled_from([*pods, "gone"]))
        phase = draw(st.sampled_from(["", "", "", "Pending", "Running", "Succeeded", "Failed"]))
        uid = draw(st.sampled_from([True, True, False]))
        jobs.append(job(subject, name=f"m{number}", phase=phase, age=draw(st.integers(0, 5)), uid=uid, ttl="0s"))  # type: ignore[arg-type]
    waiting = [each.metadata.uid for each in jobs if each.status.phase in ("", "Pending")]
    passed = set(draw(st.lists(st.sampled_from(waiting), max_size=2))) if waiting else set()
    replicas = {f"uid-{by}": draw(st.integers(0, 30)) for by in KINDS if by}
    limits = {name: draw(LIMITS) for name in ("globally", "node", "namespace")}
    limits |= {name: draw(AMOUNTS) for name in ("workload", "unavailable")}  # type: ignore[misc]
    return pods, jobs, replicas, passed, limits


def _pod(draw: st.DrawFn, number: int) -> Pod:
    by = draw(st.sampled_from(list(KINDS)))
    notes = draw(
        st.sampled_from(
            [
                {},
                {},
                {"scheduling.koordinator.sh/eviction-cost": "2147483647"},
                {"scheduling.koordinator.sh/eviction-cost": "-7"},
                {"controller.kubernetes.io/pod-deletion-cost": "3"},
                {"descheduler.alpha.kubernetes.io/evict": "x"},
            ]
        )
    )
    return pod(
        f"p{number}",
        by=by,
        kind=KINDS[by] or "x",
        namespace="default",
        on=draw(st.sampled_from(["n1", "n2", ""])),
        ready=draw(st.booleans()),
        created=NOW - draw(st.integers(1, 3)),
        annotations=notes,
        labels=draw(st.sampled_from([{}, {"koordinator.sh/qosClass": "BE"}, {"koordinator.sh/qosClass": "LSR"}])),
        spec={"priority": draw(st.sampled_from([0, 1, 9500, 5500]))},
    )


def rules_for(limits: dict[str, Any]) -> MigrationFilter:
    return MigrationFilter.of(
        MigrationControllerArgs(
            max_migrating_globally=limits["globally"],
            max_migrating_per_node=limits["node"],
            max_migrating_per_namespace=limits["namespace"],
            max_migrating_per_workload=limits["workload"],
            max_unavailable_per_workload=limits["unavailable"],
        )
    )


@settings(max_examples=200)
@given(clusters())
def test_order_and_verdicts_are_those_of_the_plain_arbitrator(
    cluster: tuple[list[Pod], list[PodMigrationJob], dict[str, int], set[str], dict[str, Any]],
) -> None:
    pods, jobs, replicas, passed, limits = cluster
    plain = PlainArbitrator(pods, copy.deepcopy(jobs), replicas, sorted(passed), limits)
    expected = plain.round()

    view, rules = ListedView(pods, jobs, replicas), rules_for(limits)
    waiting = [each for each in jobs if each.status.phase in ("", "Pending") and each.metadata.uid not in passed]
    order = arrange(waiting, view, passed)
    moving = MovingPods(view, (each for each in jobs if counts_in_arbitration(each, passed)))
    result = {}
    for each in order:
        verdict = arbitrate(each, view, rules, moving, NOW)
        result[each.metadata.name] = NAMES[verdict.outcome]
        if verdict.outcome is Outcome.PASSED:
            moving.add(each)
        elif verdict.outcome is Outcome.FORBIDDEN:
            each.status.phase = "Failed"
    assert ([each.metadata.name for each in order], result) == expected

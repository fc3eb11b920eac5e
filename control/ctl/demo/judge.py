"""Checks of koordlet's pages against the demo's expectations; each returns a result with its figures. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from control.ctl import text
from control.ctl.demo.kernelfiles import AverageUsage
from control.ctl.views.interference import active, headline
from control.ctl.views.toptable import culprit_name, is_self, worst
from koordlet.api.crs.migration import PodMigrationJob
from koordlet.api.crs.nodemetric import ResourceMap
from koordlet.api.pages.interference import PodInterferenceReport
from koordlet.api.pages.top import Top, TopRow

RELATIVE_TOLERANCE = 0.05
CPU_FLOOR_CORES = 0.005
"""Smaller differences are rounding (NodeMetric counts whole milli-cores)."""
MEMORY_FLOOR_BYTES = float(1 << 20)
"""A few pages more or less of a small process are no difference."""
FOREIGN_WORK_CORES = 0.5
"""Cores of work outside Kubernetes from which on it may be the worst culprit instead of the demo's pods."""

RECOVERED_PERCENT = 50
"""A service has recovered when it waits at most this share of what it waited before."""


@dataclass(frozen=True, slots=True)
class DemoResult:
    """One ✓ or ✗ with the figures that decided it."""

    ok: bool
    text: str


def agrees(reported: float, measured: float, floor: float) -> bool:
    """Whether `reported` is within 5 % of `measured`, or within the floor."""
    return abs(reported - measured) <= max(RELATIVE_TOLERANCE * abs(measured), floor)


def compare(what: str, reported: ResourceMap, measured: AverageUsage | None) -> list[DemoResult]:
    """CPU and memory of one entry of NodeMetric against the kernel's files."""
    if measured is None:
        return [DemoResult(False, f"{what}: the kernel's files were not sampled over the report's window")]
    verdicts = []
    for resource, kernel, floor, show in (
        ("cpu", measured.cores, CPU_FLOOR_CORES, text.cores),
        ("memory", measured.memory, MEMORY_FLOOR_BYTES, text.size),
    ):
        amount = reported.resources.get(resource)
        if amount is None:
            verdicts.append(DemoResult(False, f"{what} {resource}: not in NodeMetric"))
            continue
        reported_value = amount.milli_value() / 1000
        off = f"{abs(reported_value - kernel) / kernel * 100:.1f} % apart" if kernel else "nothing used"
        verdicts.append(
            DemoResult(
                agrees(reported_value, kernel, floor),
                f"{what} {resource}: NodeMetric {show(reported_value)}, kernel {show(kernel)} ({off})",
            )
        )
    return verdicts


def find(top: Top, pod: str) -> TopRow | None:
    """The row of a pod's first container."""
    return next((row for row in top.rows if row.kind == "container" and row.pod == pod), None)


def has_foreign_work(top: Top) -> bool:
    """Whether work outside Kubernetes uses enough CPU to hide the demo's pods."""
    return (top.system_cpu or 0) > FOREIGN_WORK_CORES


def culprit_named(top: Top, victim: str, culprits: Iterable[str], *, shared: bool = False) -> DemoResult:
    """Whether one of the pods `culprits` is the worst culprit of the victim's waiting.

    With `shared`, on a machine with foreign work, it is enough that it is the worst among pods.
    """
    row = find(top, victim)
    if row is None:
        return DemoResult(False, f"koordlet does not show pod {victim} (yet)")
    worst_culprit = worst(row)
    if row.sched is None or worst_culprit is None:
        down = [f"{probe.name}: {probe.reason}" for probe in top.probes if not probe.up]
        return DemoResult(False, f"no culprit of {victim}'s waiting{f' ({down[0]})' if down else ''}")
    named = f"{victim} waits {text.percent(row.sched.wait)} % of the time, p99 {text.seconds(row.sched.p99)}; "
    named += f"worst culprit {culprit_name(row, worst_culprit)} with {text.percent(worst_culprit.share)} %"
    expected = set(culprits)
    if worst_culprit.kind == "container" and worst_culprit.pod in expected:
        return DemoResult(True, named)
    pods = [culprit for culprit in row.sched.culprits if culprit.kind == "container" and not is_self(row, culprit)]
    ok = (
        shared
        and has_foreign_work(top)
        and worst_culprit.kind != "container"
        and bool(pods)
        and pods[0].pod in expected
    )
    of_pods = f", of pods {culprit_name(row, pods[0])} with {text.percent(pods[0].share)} %" if ok else ""
    return DemoResult(ok, named + of_pods + _busy(top))


def _busy(top: Top) -> str:
    """A note about foreign work, if there is some."""
    return f" (other work on this machine uses {text.cores(top.system_cpu)})" if (top.system_cpu or 0) > 0.2 else ""


def own_throttling_shown(top: Top, pod: str, *, shared: bool = False) -> DemoResult:
    """Whether the pod waits for its own quota, and this is not attributed to others.

    With `shared`, on a machine with foreign work, it may wait longer because of others, and so exhaust its quota less
    often.
    """
    row = find(top, pod)
    if row is None or row.sched is None or row.throttled is None:
        return DemoResult(False, f"koordlet shows no throttling figures of pod {pod} (yet)")
    figures = (
        f"{pod} is throttled in {text.percent(row.throttled)} % of its periods: each second it waits "
        f"{text.seconds(row.sched.throttled)} for its own quota and {text.seconds(row.sched.wait)} because of others"
    )
    if row.throttled > 0.5 and row.sched.throttled > row.sched.wait:
        return DemoResult(True, figures)
    return DemoResult(
        shared and has_foreign_work(top) and row.throttled > 0 and row.sched.throttled > 0, figures + _busy(top)
    )


def interference_explained(explained: PodInterferenceReport, culprits: Iterable[str], *, shared: bool) -> DemoResult:
    """Whether koordlet reports interference with the pod, with one of the pods `culprits` as the worst culprit.

    With `shared` (foreign work) it is enough that it is the worst among pods.
    """
    verdicts = active(explained, "neighbour")
    if not verdicts:
        return DemoResult(False, f"koordlet reports about {explained.pod}: {headline(explained)}")
    _, verdict = verdicts[0]
    candidates = [culprit for culprit in verdict.culprits if culprit.kind == "container" or not shared]
    return DemoResult(
        bool(candidates) and candidates[0].pod in set(culprits), f"{explained.pod}: {headline(explained)}"
    )


def own_trouble_explained(explained: PodInterferenceReport) -> DemoResult:
    """Whether koordlet reports own trouble of the pod."""
    return DemoResult(bool(active(explained, "self")), f"{explained.pod}: {headline(explained)}")


def neighbour_moved(jobs: Sequence[PodMigrationJob], pods: Sequence[dict[str, Any]], node: str) -> DemoResult:
    """Whether a PodMigrationJob with a Reservation has succeeded, and all pods of the neighbour run on the node."""
    if not jobs:
        return DemoResult(False, "no PodMigrationJob exists")
    job = jobs[0]
    reserved = job.spec.reservation_options is not None and job.status.node_name == node
    places = ", ".join(f"{pod['metadata']['name']} on {pod['spec'].get('nodeName') or 'no node'}" for pod in pods)
    running = [pod["spec"].get("nodeName") == node and pod["status"].get("phase") == "Running" for pod in pods]
    good = len(jobs) == 1 and job.status.phase == "Succeeded" and reserved and running == [True]
    return DemoResult(good, f"{len(jobs)} job, {job.status.phase or 'Pending'} {job.status.status}: {places}".rstrip())


def recovered(before: Top, after: Top, victim: str, neighbour: str, *, shared: bool = False) -> DemoResult:
    """Whether the victim waits at most half as long as before, and not for the neighbour, whose pods have its name as
    a prefix.

    With `shared`, on a machine with foreign work, it may wait for that instead.
    """
    rows = find(before, victim), find(after, victim)
    if rows[0] is None or rows[1] is None or rows[0].sched is None or rows[1].sched is None:
        return DemoResult(False, f"koordlet does not show the waiting of pod {victim}")
    was, now = rows[0].sched.wait, rows[1].sched.wait
    blamed = [each.pod for each in rows[1].sched.culprits if each.pod.startswith(f"{neighbour}-")]
    good = not blamed and (now * 100 <= was * RECOVERED_PERCENT or (shared and has_foreign_work(after)))
    words = f"{victim} waits {text.percent(now)} % of the time, before the move {text.percent(was)} %"
    return DemoResult(good, words + (f"; {blamed[0]} still delays it" if blamed else "") + _busy(after))

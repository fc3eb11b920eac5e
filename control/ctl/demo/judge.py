"""What the demo expects to see, as pure checks over koordlet's answers: each gives a verdict with its figures."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from control.ctl import text
from control.ctl.demo.kernelfiles import Use
from control.ctl.views.interference import active, headline
from control.ctl.views.toptable import culprit_name, is_self, worst
from koordlet.api.crs.nodemetric import ResourceMap
from koordlet.api.pages.interference import PodExplained
from koordlet.api.pages.top import Top, TopRow

TOLERANCE = 0.05
CPU_FLOOR = 0.005
"""Cores: below this a difference is rounding (NodeMetric counts whole milli-cores)."""
MEMORY_FLOOR = float(1 << 20)
"""Bytes: a few pages more or less of a small process say nothing."""
STRANGERS = 0.5
"""Cores that work outside Kubernetes uses: above it that may well be the worst culprit, and koordlet must say so."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One ✓ or ✗ with the figures that decided it."""

    ok: bool
    text: str


def agrees(reported: float, measured: float, floor: float) -> bool:
    """Within 5 % of what was measured, or within the floor."""
    return abs(reported - measured) <= max(TOLERANCE * abs(measured), floor)


def compare(what: str, reported: ResourceMap, measured: Use | None) -> list[Verdict]:
    """CPU and memory of one line of NodeMetric against the kernel's files."""
    if measured is None:
        return [Verdict(False, f"{what}: the kernel's files were not sampled over the report's window")]
    verdicts = []
    for resource, kernel, floor, show in (
        ("cpu", measured.cores, CPU_FLOOR, text.cores),
        ("memory", measured.memory, MEMORY_FLOOR, text.size),
    ):
        amount = reported.resources.get(resource)
        if amount is None:
            verdicts.append(Verdict(False, f"{what} {resource}: not in NodeMetric"))
            continue
        said = amount.milli_value() / 1000
        off = f"{abs(said - kernel) / kernel * 100:.1f} % apart" if kernel else "nothing used"
        verdicts.append(
            Verdict(
                agrees(said, kernel, floor),
                f"{what} {resource}: NodeMetric {show(said)}, kernel {show(kernel)} ({off})",
            )
        )
    return verdicts


def find(top: Top, pod: str) -> TopRow | None:
    """The row of a pod's first container."""
    return next((row for row in top.rows if row.kind == "container" and row.pod == pod), None)


def strangers(top: Top) -> bool:
    """Does other work use this machine so much that it hides the demo's pods?"""
    return (top.system_cpu or 0) > STRANGERS


def culprit_named(top: Top, victim: str, culprits: Iterable[str], *, shared: bool = False) -> Verdict:
    """Is one of the pods `culprits` the worst culprit of the victim's waiting?

    With `shared` it is enough on a machine with `strangers` that of all pods it is the worst.
    """
    row = find(top, victim)
    if row is None:
        return Verdict(False, f"koordlet does not show pod {victim} (yet)")
    found = worst(row)
    if row.sched is None or found is None:
        down = [f"{probe.name}: {probe.reason}" for probe in top.probes if not probe.up]
        return Verdict(False, f"no culprit of {victim}'s waiting is known{f' ({down[0]})' if down else ''}")
    named = f"{victim} waits {text.percent(row.sched.wait)} % of the time, p99 {text.seconds(row.sched.p99)}; "
    named += f"worst culprit {culprit_name(row, found)} with {text.percent(found.share)} %"
    wanted = set(culprits)
    if found.kind == "container" and found.pod in wanted:
        return Verdict(True, named)
    pods = [one for one in row.sched.culprits if one.kind == "container" and not is_self(row, one)]
    ok = shared and strangers(top) and found.kind != "container" and bool(pods) and pods[0].pod in wanted
    of_pods = f", of pods {culprit_name(row, pods[0])} with {text.percent(pods[0].share)} %" if ok else ""
    return Verdict(ok, named + of_pods + _busy(top))


def _busy(top: Top) -> str:
    """What hides the demo's pods: other work on this machine."""
    return f" (other work on this machine uses {text.cores(top.system_cpu)})" if (top.system_cpu or 0) > 0.2 else ""


def throttling_told_apart(top: Top, pod: str, *, shared: bool = False) -> Verdict:
    """Does the pod wait for its own quota, and is that not blamed on others?

    With `shared` it may wait longer because of others on a machine with `strangers`, and so use its quota up less.
    """
    row = find(top, pod)
    if row is None or row.sched is None or row.throttled is None:
        return Verdict(False, f"koordlet shows no throttling figures of pod {pod} (yet)")
    said = (
        f"{pod} is throttled in {text.percent(row.throttled)} % of its periods: each second it waits "
        f"{text.seconds(row.sched.throttled)} for its own quota and {text.seconds(row.sched.wait)} because of others"
    )
    if row.throttled > 0.5 and row.sched.throttled > row.sched.wait:
        return Verdict(True, said)
    return Verdict(shared and strangers(top) and row.throttled > 0 and row.sched.throttled > 0, said + _busy(top))


def interference_explained(said: PodExplained, culprits: Iterable[str], *, shared: bool = False) -> Verdict:
    """Does koordlet say that a neighbour hurts the pod, and that one of the pods `culprits` is the worst?

    With `shared` (there are `strangers`) it is enough that it is the worst of all pods.
    """
    found = active(said, "neighbour")
    if not found:
        return Verdict(False, f"koordlet says of {said.pod}: {headline(said)}")
    _, verdict = found[0]
    blamed = [one for one in verdict.culprits if one.kind == "container" or not shared]
    return Verdict(bool(blamed) and blamed[0].pod in set(culprits), f"{said.pod}: {headline(said)}")


def own_doing_explained(said: PodExplained) -> Verdict:
    """Does koordlet say that the pod is in its own way?"""
    return Verdict(bool(active(said, "self")), f"{said.pod}: {headline(said)}")

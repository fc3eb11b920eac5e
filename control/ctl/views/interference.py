"""`koordctl explain pod`, interference: text and small charts of what delays a pod, when, how much, the culprits, and
the advice. Pure.

Shows koordlet's data without judging anything. Charts are unicode; colours carry no additional information.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from rich.text import Text

from control.ctl import text
from koordlet.api.pages.interference import (
    ContainerInterferenceReport,
    CulpritReport,
    PodInterferenceReport,
    SeriesReport,
    SignalReport,
    StateChangeReport,
    ThrottledPodReport,
    VerdictReport,
)

BLOCKS = "▁▂▃▄▅▆▇█"
HYPERVISOR = "steal"
ALARMS = ("interfered", "recovering")
WIDTH = 60
BAR = 24
NOTABLE_SHARE = 0.05
"""From this share of its time on, losses without a culprit on the node are shown."""
EXIT_NEIGHBOUR = 3
EXIT_SELF = 4
"""Exit statuses of `--exit-code`."""
WAITING = {
    "cpu": "waiting for a CPU",
    "memory": "waiting for memory",
    "io": "waiting for a disk",
    "network": "waiting for the network",
    "cache": "on slower instructions",
}
_KINDS = {"root": "the host's own tasks", "gone": "an ended cgroup"}
PARTS = {
    "quota": "its CPU quota ran out",
    "threads": "its own threads waited for each other",
    "limit": "it reached its own memory limit",
    "shared": "memory reclaim that it shares with others",
    "throttle": "its own I/O limit",
    "own": "its own requests",
}


def sparkline(values: Sequence[float], top: float = 1.0, width: int = WIDTH) -> str:
    """The last values as blocks; if they do not fit, several share one block (the largest counts). Blank where unknown
    (< 0).

    `top` is the value of a full block; a larger value raises it.
    """
    per = max(-(-len(values) // width), 1)
    start = len(values) % per
    groups = [values[:start]] if start else []
    groups += [values[at : at + per] for at in range(start, len(values), per)]
    peaks = [max(group) for group in groups]
    top = max(top, *peaks, 1e-12)
    return "".join(" " if peak < 0 else BLOCKS[min(int(peak / top * 8), 7)] for peak in peaks)


def bar(share: float, width: int = BAR) -> str:
    """A share of 1 as a bar of `width` characters."""
    filled = round(min(max(share, 0.0), 1.0) * width)
    return "█" * filled + "░" * (width - filled)


def active(explained: PodInterferenceReport, cause: str) -> list[tuple[ContainerInterferenceReport, VerdictReport]]:
    """Verdicts with an active alarm, worst first."""
    verdicts = [
        (container, verdict)
        for container in explained.containers
        for verdict in container.verdicts
        if verdict.state in ALARMS and cause in (None, verdict.cause)
    ]
    return sorted(verdicts, key=lambda pair: (pair[1].cause != "neighbour", -pair[1].score))


def exit_status(explained: PodInterferenceReport) -> int:
    """0: no active alarm; `EXIT_NEIGHBOUR`: other pods interfere; `EXIT_SELF`: own trouble only."""
    if active(explained, "neighbour"):
        return EXIT_NEIGHBOUR
    return EXIT_SELF if active(explained, "self") else 0


def culprit_words(culprit: CulpritReport) -> str:
    if culprit.kind == "kernel":
        return f"kernel: {culprit.name}"
    if culprit.kind in _KINDS:
        return _KINDS[culprit.kind]
    words = culprit.label
    return f"{words} ({culprit.qos})" if culprit.qos else words


def headline(explained: PodInterferenceReport) -> str:
    """Summary of the page in one sentence."""
    if not explained.enabled:
        return "Interference detection is disabled on this node (interferenceStrategy.enable)."
    if not explained.judged:
        return f"Pods of QoS class {explained.qos or 'none'} are not observed on this node (interferenceStrategy)."
    if not explained.containers:
        return "The pod has no running container on this node."
    neighbours, own = active(explained, "neighbour"), active(explained, "self")
    if neighbours:
        _, worst = neighbours[0]
        culprits = ", ".join(culprit_words(culprit) for culprit in worst.culprits[:2]) or "none in particular"
        lost = f"it loses {text.percent(worst.lost)} % of its time {WAITING[worst.resource]}"
        return f"Interference: {lost}. Culprits: {culprits}."
    if own:
        _, worst = own[0]
        return (
            f"No interference. Own trouble: it loses {text.percent(worst.lost)} % of its time "
            f"{WAITING[worst.resource]}: {own_words(worst)}."
        )
    steal = max(container.hypervisor for container in explained.containers)
    if steal >= NOTABLE_SHARE:
        return (
            "No interference on this node. The hypervisor takes CPUs away from the node (steal): "
            f"it loses {text.percent(steal)} % of its time."
        )
    past = [
        change for container in explained.containers for change in container.changes if change.verdict.state in ALARMS
    ]
    if any(change.verdict.cause == "neighbour" for change in past):
        return "No interference now; there was some before (below)."
    if past:
        return "No interference; it had own trouble before (below)."
    return "No interference and no own trouble in koordlet's history."


def throttle_words(report: ThrottledPodReport) -> str:
    """`40 % of 950m left (quota 38000 us), at the floor`."""
    had = {"cpu": f"{report.had}m", "io": f"{text.size(report.had)}/s", "network": "its class"}
    words = f"{report.percent} % of {had.get(report.resource, text.size(report.had))} left ({report.left})"
    if report.problem:
        return f"{words}, but {report.problem}"
    return f"{words}, at the floor" if report.floor else words


def own_words(verdict: VerdictReport) -> str:
    """`its CPU quota ran out (0.62 s per second)`."""
    parts = sorted(verdict.parts.items(), key=lambda part: -part[1])
    return ", ".join(f"{PARTS.get(name, name)} ({value:.2f} s per second)" for name, value in parts[:2]) or "own use"


def page(explained: PodInterferenceReport, now: float) -> Iterator[Text]:
    """Lines of the whole page; `now` is Unix time."""
    yield Text.assemble(
        (f"pod {explained.namespace}/{explained.pod}", "bold"), f"  {explained.qos}  on node {explained.node}"
    )
    status = exit_status(explained)
    style = "bold red" if status == EXIT_NEIGHBOUR else "bold yellow" if status else "bold green"
    yield Text(headline(explained), style=style if explained.judged and explained.enabled else "bold")
    for throttled in explained.held_back:
        since = text.age(now - throttled.since)
        yield Text(f"Throttled in {throttled.resource} for {since}: {throttle_words(throttled)}.", "yellow")
        yield Text(f"  because {throttled.why}", style="dim")
    for culprit in explained.held_back_for:
        name = f"{culprit.namespace}/{culprit.pod}"
        yield Text(f"{name} is throttled for it in {culprit.resource}: {throttle_words(culprit)}.", "green")
    for container in explained.containers:
        yield from _container(container, explained.step, now)
    if explained.enabled and explained.judged:
        known = ", ".join(f"{name} ({source})" for name, source in explained.sources.items())
        yield Text()
        yield Text(f"Sources: {known or 'none yet'}", style="dim")
        if explained.missing:
            yield Text(f"Unavailable: {', '.join(f'{n} ({why})' for n, why in explained.missing.items())}", style="dim")


def _container(container: ContainerInterferenceReport, step: float, now: float) -> Iterator[Text]:
    yield Text()
    yield Text(f"container {container.name}", style="bold")
    shown = [
        series
        for series in container.series
        if series.cause == "neighbour" or max(series.values, default=0.0) >= NOTABLE_SHARE
    ]
    for series in shown:
        yield _chart(series)
    if shown:
        span = text.age(max(len(series.values) for series in shown) * step)
        yield Text(f"  {'':<28}the last {span}; a block is the maximum of its interval, full height is 100 %", "dim")
    if container.hypervisor >= NOTABLE_SHARE:
        yield Text(f"  {'cpu':<8} {HYPERVISOR:<18} now {text.percent(container.hypervisor)} %", style="yellow")
    for verdict in sorted(container.verdicts, key=lambda verdict: -verdict.score):
        if verdict.state in ALARMS:
            yield from _verdict(verdict, now)
    if container.changes:
        yield Text("  history")
        for change in container.changes:
            yield Text(f"    {change_words(change)}")


def _chart(series: SeriesReport) -> Text:
    what = "lost to others" if series.cause == "neighbour" else "own trouble"
    now = series.values[-1] if series.values else -1.0
    if series.resource == "cache":
        figures = f" now {now:.2f} cycles per instruction" if now >= 0 else ""
        line = f"  {'cache':<8} {'cycles per instr.':<18} {sparkline(series.values, 4.0)}{figures}"
    else:
        figures = f" now {text.percent(now)} %" if now >= 0 else ""
        line = f"  {series.resource:<8} {what:<18} {sparkline(series.values)}{figures}"
    if series.usual is not None:
        shown = f"{series.usual:.2f}" if series.resource == "cache" else f"{text.percent(series.usual)} %"
        line += f", usually below {shown}"
    return Text(line, style="" if series.state in ("", "quiet") else "yellow" if series.cause == "self" else "red")


def _verdict(verdict: VerdictReport, now: float) -> Iterator[Text]:
    duration = text.age(now - verdict.began)
    if verdict.cause == "self":
        yield Text(f"  {verdict.resource}: own trouble for {duration}: {own_words(verdict)}", style="yellow")
    else:
        yield Text(
            f"  {verdict.resource}: {verdict.state} for {duration}, severity {verdict.severity}, "
            f"confidence {text.percent(verdict.confidence)} %",
            style="red",
        )
    for culprit in verdict.culprits:
        share = f"{bar(culprit.share)} {text.percent(culprit.share):>3} % of its waiting"
        yield Text(f"    {share}  {culprit_words(culprit)}  ({text.seconds(culprit.seconds)} per second)")
    for signal in verdict.signals:
        yield Text(f"    {signal_words(signal)}", style="dim")
    yield Text(f"    advice: {verdict.advice}")


def signal_words(signal: SignalReport) -> str:
    """`lost to others 43 %, usually 2 % (21 times); alarm from 20 %`."""

    def show(value: float | None) -> str:
        if signal.unit == "share":
            return f"{text.percent(value)} %"
        return text.seconds(value) if signal.unit == "seconds" else f"{value:.2f}"

    words = f"{signal.name} {show(signal.now)}"
    if signal.usual is not None:
        times = f" ({signal.now / signal.usual:.1f} times)" if signal.usual > 0 else ""
        words += f", usually {show(signal.usual)}{times}"
    if signal.limit is not None:
        words += f"; alarm from {show(signal.limit)}"
    return words


def change_words(change: StateChangeReport) -> str:
    """One line of the history, in local time."""
    verdict = change.verdict
    at = time.strftime("%H:%M:%S", time.localtime(change.at))
    if verdict.state == "quiet":
        return f"{at}  {verdict.resource}: ended after {text.age(change.at - verdict.began)}"
    if verdict.cause == "self":
        return f"{at}  {verdict.resource}: own trouble: {own_words(verdict)}"
    culprits = ", ".join(
        f"{culprit_words(culprit)} {text.percent(culprit.share)} %" for culprit in verdict.culprits[:3]
    )
    culprits = culprits or "no particular culprit"
    return f"{at}  {verdict.resource}: lost {text.percent(verdict.lost)} % of its time to {culprits}"

"""`koordctl explain pod`: in words and small charts what hurt a pod, when, how much, who, and what to do. Pure.

Only what koordlet says is shown: nothing is judged here. Charts are unicode; without colours they say the same.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from rich.text import Text

from control.ctl import text
from koordlet.api.pages.interference import (
    Blamed,
    ChangeSaid,
    ContainerExplained,
    HeldBack,
    PodExplained,
    SeriesSaid,
    SignalSaid,
    VerdictSaid,
)

BLOCKS = "▁▂▃▄▅▆▇█"
HYPERVISOR = "to the hypervisor"
ALARMS = ("interfered", "recovering")
WIDTH = 60
BAR = 24
NOTABLE = 0.05
"""Part of its time from which on what no neighbour took is shown."""
EXIT_NEIGHBOUR, EXIT_SELF = 3, 4
"""Exit statuses of `--exit-code`."""
WAITING = {
    "cpu": "waiting for a CPU",
    "memory": "waiting for memory",
    "io": "waiting for a disk",
    "network": "waiting for the network",
    "cache": "on instructions that take longer",
}
_KINDS = {"root": "the host's own tasks", "gone": "something that has ended"}
PARTS = {
    "quota": "its CPU quota ran out",
    "threads": "its own threads were in each other's way",
    "limit": "it was at its own memory limit",
    "shared": "it pressed on memory that it shares with others",
    "throttle": "its own I/O limit held it back",
    "own": "its own requests",
}


def sparkline(values: Sequence[float], top: float = 1.0, width: int = WIDTH) -> str:
    """The last values as blocks, several in one where they do not fit (the largest counts); blank where unknown (< 0).

    `top` is the height of a full block; a larger value raises it.
    """
    per = max(-(-len(values) // width), 1)
    start = len(values) % per
    groups = [values[:start]] if start else []
    groups += [values[at : at + per] for at in range(start, len(values), per)]
    peaks = [max(group) for group in groups]
    top = max(top, *peaks, 1e-12)
    return "".join(" " if peak < 0 else BLOCKS[min(int(peak / top * 8), 7)] for peak in peaks)


def bar(share: float, width: int = BAR) -> str:
    """A share of 1 as a bar of that width."""
    filled = round(min(max(share, 0.0), 1.0) * width)
    return "█" * filled + "░" * (width - filled)


def active(said: PodExplained, cause: str | None = None) -> list[tuple[ContainerExplained, VerdictSaid]]:
    """Verdicts whose alarm is on, the worst first."""
    found = [
        (container, verdict)
        for container in said.containers
        for verdict in container.verdicts
        if verdict.state in ALARMS and cause in (None, verdict.cause)
    ]
    return sorted(found, key=lambda one: (one[1].cause != "neighbour", -one[1].score))


def exit_status(said: PodExplained) -> int:
    """0: nothing is wrong now; `EXIT_NEIGHBOUR`: a neighbour hurts it; `EXIT_SELF`: only itself."""
    if active(said, "neighbour"):
        return EXIT_NEIGHBOUR
    return EXIT_SELF if active(said, "self") else 0


def culprit_words(culprit: Blamed) -> str:
    if culprit.kind == "kernel":
        return f"kernel: {culprit.name}"
    if culprit.kind in _KINDS:
        return _KINDS[culprit.kind]
    words = culprit.label
    return f"{words} ({culprit.qos})" if culprit.qos else words


def headline(said: PodExplained) -> str:
    """The whole page in one sentence."""
    if not said.enabled:
        return "Interference detection is switched off on this node (interferenceStrategy.enable)."
    if not said.judged:
        return f"Pods of QoS class {said.qos or 'none'} are not judged on this node (interferenceStrategy)."
    if not said.containers:
        return "The pod has no container that runs here."
    neighbours, own = active(said, "neighbour"), active(said, "self")
    if neighbours:
        _, worst = neighbours[0]
        who = ", ".join(culprit_words(one) for one in worst.culprits[:2]) or "nobody stands out"
        return (
            f"Hurt now: it loses {text.percent(worst.lost)} % of its time {WAITING[worst.resource]}. Because of: {who}."
        )
    if own:
        _, worst = own[0]
        return (
            f"Nobody else hurts it. By its own doing it loses {text.percent(worst.lost)} % of its time "
            f"{WAITING[worst.resource]}: {own_words(worst)}."
        )
    taken = max(one.hypervisor for one in said.containers)
    if taken >= NOTABLE:
        return (
            f"Nobody on this node hurts it. The hypervisor takes CPUs away from the node: "
            f"it loses {text.percent(taken)} % of its time to that."
        )
    past = [change for container in said.containers for change in container.changes if change.verdict.state in ALARMS]
    if any(change.verdict.cause == "neighbour" for change in past):
        return "Nothing hurts it now; it was hurt before (below)."
    if past:
        return "Nothing hurts it now; nobody else did before either, it was in its own way (below)."
    return "Nothing hurt it in the time that koordlet remembers."


def held_back_words(one: HeldBack) -> str:
    """`40 % of 950m left (quota 38000 us), no further`."""
    had = {"cpu": f"{one.had}m", "io": f"{text.size(one.had)} a second", "network": "its class"}
    words = f"{one.percent} % of {had.get(one.resource, text.size(one.had))} left ({one.left})"
    if one.problem:
        return f"{words}, but {one.problem}"
    return f"{words}, no further" if one.floor else words


def own_words(verdict: VerdictSaid) -> str:
    """`its CPU quota ran out (0.62 s a second)`."""
    parts = sorted(verdict.parts.items(), key=lambda part: -part[1])
    return ", ".join(f"{PARTS.get(name, name)} ({value:.2f} s a second)" for name, value in parts[:2]) or "own use"


def page(said: PodExplained, now: float) -> Iterator[Text]:
    """Lines of the whole page; `now` is Unix time."""
    yield Text.assemble((f"pod {said.namespace}/{said.pod}", "bold"), f"  {said.qos}  on node {said.node}")
    status = exit_status(said)
    style = "bold red" if status == EXIT_NEIGHBOUR else "bold yellow" if status else "bold green"
    yield Text(headline(said), style=style if said.judged and said.enabled else "bold")
    for one in said.held_back:
        yield Text(f"Held back in {one.resource} for {text.age(now - one.since)}: {held_back_words(one)}.", "yellow")
        yield Text(f"  because {one.why}", style="dim")
    for one in said.held_back_for:
        yield Text(f"{one.namespace}/{one.pod} is held back for it in {one.resource}: {held_back_words(one)}.", "green")
    for container in said.containers:
        yield from _container(container, said.step, now)
    if said.enabled and said.judged:
        known = ", ".join(f"{name} ({source})" for name, source in said.sources.items())
        yield Text()
        yield Text(f"Judged by: {known or 'nothing yet'}", style="dim")
        if said.missing:
            yield Text(f"Not known: {', '.join(f'{n} ({why})' for n, why in said.missing.items())}", style="dim")


def _container(container: ContainerExplained, step: float, now: float) -> Iterator[Text]:
    yield Text()
    yield Text(f"container {container.name}", style="bold")
    shown = [one for one in container.series if one.cause == "neighbour" or max(one.values, default=0.0) >= NOTABLE]
    for series in shown:
        yield _chart(series)
    if shown:
        span = text.age(max(len(one.values) for one in shown) * step)
        yield Text(
            f"  {'':<28}the last {span}, a block is the worst of its time; full height is all of its time", "dim"
        )
    if container.hypervisor >= NOTABLE:
        yield Text(f"  {'cpu':<8} {HYPERVISOR:<18} now {text.percent(container.hypervisor)} %", style="yellow")
    for verdict in sorted(container.verdicts, key=lambda one: -one.score):
        if verdict.state in ALARMS:
            yield from _verdict(verdict, now)
    if container.changes:
        yield Text("  what happened")
        for change in container.changes:
            yield Text(f"    {change_words(change)}")


def _chart(series: SeriesSaid) -> Text:
    what = "lost to others" if series.cause == "neighbour" else "by its own doing"
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


def _verdict(verdict: VerdictSaid, now: float) -> Iterator[Text]:
    for_how_long = text.age(now - verdict.began)
    if verdict.cause == "self":
        yield Text(f"  {verdict.resource}: its own doing for {for_how_long}: {own_words(verdict)}", style="yellow")
    else:
        yield Text(
            f"  {verdict.resource}: {verdict.state} for {for_how_long}, severity {verdict.severity}, "
            f"confidence {text.percent(verdict.confidence)} %",
            style="red",
        )
    for culprit in verdict.culprits:
        share = f"{bar(culprit.share)} {text.percent(culprit.share):>3} % of its waiting"
        yield Text(f"    {share}  {culprit_words(culprit)}  ({text.seconds(culprit.seconds)} a second)")
    for signal in verdict.signals:
        yield Text(f"    {signal_words(signal)}", style="dim")
    yield Text(f"    next: {verdict.advice}")


def signal_words(signal: SignalSaid) -> str:
    """`lost to others 43 %, usually 2 % (21 times); trouble from 20 %`."""

    def show(value: float | None) -> str:
        if signal.unit == "share":
            return f"{text.percent(value)} %"
        return text.seconds(value) if signal.unit == "seconds" else f"{value:.2f}"

    words = f"{signal.name} {show(signal.now)}"
    if signal.usual is not None:
        times = f" ({signal.now / signal.usual:.1f} times)" if signal.usual > 0 else ""
        words += f", usually {show(signal.usual)}{times}"
    if signal.limit is not None:
        words += f"; trouble from {show(signal.limit)}"
    return words


def change_words(change: ChangeSaid) -> str:
    """One line of the diary, in local time."""
    verdict = change.verdict
    at = time.strftime("%H:%M:%S", time.localtime(change.at))
    if verdict.state == "quiet":
        return f"{at}  {verdict.resource}: over after {text.age(change.at - verdict.began)}"
    if verdict.cause == "self":
        return f"{at}  {verdict.resource}: its own doing: {own_words(verdict)}"
    who = ", ".join(f"{culprit_words(one)} {text.percent(one.share)} %" for one in verdict.culprits[:3])
    who = who or "nobody that stands out"
    return f"{at}  {verdict.resource}: lost {text.percent(verdict.lost)} % of its time to {who}"

"""Rows and columns of `koordctl top`, for the table and the live view. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from control.ctl import text
from control.ctl.terminal import printable
from koordlet.api.pages.top import Top, TopCulprit, TopRow

SORTS = ("cpu", "memory", "wait", "p99", "name")
SELF = "self"
_AS_CULPRIT = {"group": "system"}
"""Kinds of rows that have another name as culprits."""
_KINDS = {"root": "(root tasks)", "idle": "(idle)", "gone": "(ended)", "unknown": "(not recorded)"}


@dataclass(frozen=True, slots=True)
class TopColumn:
    """One column: head, cell, whether it is right-aligned, and whether only `-o wide` shows it."""

    head: str
    cell: Callable[[TopRow], str]
    figure: bool = True
    wide: bool = False


def culprit_name(row: TopRow, culprit: TopCulprit) -> str:
    """The culprit that held the CPU: `self`, a pod's container, or a kind of host work."""
    if is_self(row, culprit):
        return SELF
    if culprit.kind in _KINDS:
        return _KINDS[culprit.kind]
    if culprit.kind == "kernel":
        return f"kernel:{culprit.name}"
    if culprit.kind == "qos":
        return f"qos:{culprit.name or culprit.qos}"
    namespace = "" if culprit.namespace == row.namespace else culprit.namespace
    return "/".join(part for part in (namespace, culprit.pod, culprit.name) if part) or culprit.kind


def is_self(row: TopRow, culprit: TopCulprit) -> bool:
    """Whether the row's own tasks wait for each other."""
    kind = _AS_CULPRIT.get(row.kind, row.kind)
    return (culprit.kind, culprit.namespace, culprit.pod, culprit.name) == (kind, row.namespace, row.pod, row.name)


def worst(row: TopRow) -> TopCulprit | None:
    """The culprit with the largest share, if the row waited at all."""
    return row.sched.culprits[0] if row.sched is not None and row.sched.culprits else None


def worst_cell(row: TopRow) -> str:
    """`default/batch-0/burn (87%)`."""
    culprit = worst(row)
    return text.ABSENT if culprit is None else f"{culprit_name(row, culprit)} ({text.percent(culprit.share)}%)"


def verdict_cell(row: TopRow) -> str:
    """`cpu 2.3x` while other pods interfere, `cpu self` during own trouble; the worst resource of each."""
    cells: dict[str, str] = {}
    for verdict in row.verdicts:
        score = f"{verdict.score:.1f}x" if verdict.cause == "neighbour" else SELF
        cells.setdefault(verdict.cause, f"{verdict.resource} {score}")
    return ", ".join(cells.values()) or text.ABSENT


def name_cell(row: TopRow) -> str:
    """The container's name, or the name of a group outside Kubernetes."""
    return row.name or row.id or text.ABSENT


def _pressure(resource: str) -> Callable[[TopRow], str]:
    return lambda row: text.percent(None if row.pressure is None else getattr(row.pressure, resource))


def _sched(member: str, show: Callable[[float | None], str]) -> Callable[[TopRow], str]:
    return lambda row: show(None if row.sched is None else getattr(row.sched, member))


COLUMNS: tuple[TopColumn, ...] = (
    TopColumn("NAMESPACE", lambda row: row.namespace or text.ABSENT, figure=False),
    TopColumn("POD", lambda row: row.pod or text.ABSENT, figure=False),
    TopColumn("CONTAINER", name_cell, figure=False),
    TopColumn("QOS", lambda row: row.qos or text.ABSENT, figure=False),
    TopColumn("PRIORITY", lambda row: row.priority or text.ABSENT, figure=False, wide=True),
    TopColumn("KIND", lambda row: row.kind or text.ABSENT, figure=False, wide=True),
    TopColumn("CPU", lambda row: text.cores(row.cpu)),
    TopColumn("MEM", lambda row: text.size(row.memory)),
    TopColumn("PSI-CPU%", _pressure("cpu")),
    TopColumn("PSI-MEM%", _pressure("memory")),
    TopColumn("PSI-IO%", _pressure("io")),
    TopColumn("P50", _sched("p50", text.seconds)),
    TopColumn("P99", _sched("p99", text.seconds)),
    TopColumn("WAIT%", _sched("wait", text.percent)),
    TopColumn("THROTTLED%", lambda row: text.percent(row.throttled)),
    TopColumn("QUOTA-WAIT%", _sched("throttled", text.percent), wide=True),
    TopColumn("WAITS", lambda row: text.ABSENT if row.sched is None else str(row.sched.count), wide=True),
    TopColumn("WORST CULPRIT", worst_cell, figure=False),
    TopColumn("INTERFERENCE", verdict_cell, figure=False),
    TopColumn("ID", lambda row: row.id or text.ABSENT, figure=False, wide=True),
)


def columns(*, wide: bool) -> tuple[TopColumn, ...]:
    return tuple(column for column in COLUMNS if wide or not column.wide)


def _figure(value: float | None) -> float:
    return -1.0 if value is None else value


_SORT_KEYS: dict[str, Callable[[TopRow], float]] = {
    "cpu": lambda row: _figure(row.cpu),
    "memory": lambda row: _figure(row.memory),
    "wait": lambda row: _figure(None if row.sched is None else row.sched.wait),
    "p99": lambda row: _figure(None if row.sched is None else row.sched.p99),
    "name": lambda row: 0.0,
}


def select(rows: Sequence[TopRow], *, sort: str = "cpu", namespace: str | None = None, find: str = "") -> list[TopRow]:
    """Rows to show, in order: largest first, equal and absent ones by name.

    `namespace` keeps one namespace (rows outside Kubernetes have none); `find` keeps rows with that text in namespace,
    pod, name, QoS class or culprit, case-insensitively.
    """
    kept = [row for row in rows if namespace is None or row.namespace == namespace]
    if find:
        kept = [row for row in kept if find.lower() in _haystack(row)]
    key = _SORT_KEYS[sort]
    return sorted(kept, key=lambda row: (-key(row), row.namespace, row.pod, name_cell(row)))


def _haystack(row: TopRow) -> str:
    return " ".join((row.namespace, row.pod, row.name, row.id, row.qos, worst_cell(row))).lower()


def node_lines(top: Top, width: int = 24) -> list[str]:
    """The head: node, CPU and memory with bars, use outside pods, and unavailable probes."""
    cpu = None if top.cpu is None or not top.cpus else top.cpu / top.cpus
    memory = None if top.memory is None or not top.memory_total else top.memory / top.memory_total
    lines = [
        f"{top.node or 'this host'}  {len(top.rows)} containers and services; latency over {top.window:g} s",
        f"CPU [{text.bar(cpu, width)}] {text.percent(cpu)}%  {text.cores(top.cpu)} of {top.cpus} cores, "
        f"system {text.cores(top.system_cpu)}",
        f"MEM [{text.bar(memory, width)}] {text.percent(memory)}%  {text.size(top.memory)} of "
        f"{text.size(top.memory_total)}, system {text.size(top.system_memory)}",
    ]
    lines += [f"probe {probe.name} is not loaded: {probe.reason}" for probe in top.probes if not probe.up]
    return lines


def details(row: TopRow) -> list[str]:
    """All data of one row: its figures, and all culprits with shares and waits."""
    title = "/".join(part for part in (row.namespace, row.pod, name_cell(row)) if part)
    lines = [f"{title}  {row.qos or row.kind} {row.priority}".rstrip()]
    if row.sched is None:
        return [*lines, "no schedule latency: see the probes in `koordctl status`"]
    sched = row.sched
    lines.append(
        f"{sched.count} waits, p50 {text.seconds(sched.p50)}, p99 {text.seconds(sched.p99)}; each second it waits "
        f"{text.seconds(sched.wait)} for CPUs that others hold and {text.seconds(sched.throttled)} for its own quota"
    )
    if not sched.culprits:
        return [*lines, "no culprits"]
    lines += [
        f"  {text.percent(culprit.share):>5}%  {text.seconds(culprit.wait):>7}/s  {culprit_name(row, culprit)}"
        f"{f' [{culprit.qos}]' if culprit.qos else ''}"
        for culprit in sched.culprits
    ]
    return lines


def table(rows: Sequence[TopRow], *, wide: bool = False) -> Table:
    """Rows as a plain table like kubectl's."""
    shown = columns(wide=wide)
    result = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in shown:
        result.add_column(column.head, justify="right" if column.figure else "left", no_wrap=True, overflow="ignore")
    for row in rows:
        result.add_row(*(Text(printable(column.cell(row))) for column in shown))
    return result

"""`koordctl status`: parts, probes, the Node and its NodeMetric, each as far as it can be asked.

Nothing here fails because another thing is missing: without Kubernetes there are the parts and koordlet, without
`up` there is a lone koordlet, and what could not be asked says why.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path

import aiohttp
import msgspec
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from control.ctl import text
from control.ctl.node import containers, processes
from control.ctl.node.parts import PARTS, Layout, of
from control.ctl.node.state import State
from control.ctl.views.koordletclient import KoordletUnreachable, fetch_enforcement, fetch_ready, fetch_top
from koordlet.api.core import Node
from koordlet.api.crs.slo import NodeMetric
from koordlet.api.pages.enforcement import Enforcement
from koordlet.api.pages.top import FeatureState
from koordlet.kube import Client, Config, KubeError

CPU_SECONDS = 0.5
ASK_SECONDS = 3.0


class PartStatus(msgspec.Struct, rename="camel", omit_defaults=True):
    """One part; figures are absent when it does not run."""

    name: str
    running: bool = False
    pid: int | None = None
    uptime_seconds: float | None = None
    rss_bytes: int | None = None
    cpu_cores: float | None = None
    ready: bool | None = None
    reason: str = ""
    log: str = ""


class KoordletStatus(msgspec.Struct, rename="camel", omit_defaults=True):
    """What koordlet says of itself."""

    url: str
    reachable: bool = False
    error: str = ""
    node: str = ""
    checks: dict[str, str | None] = {}
    probes: list[FeatureState] = []
    conditions: list[FeatureState] = []
    enforcement: Enforcement | None = None


class ConditionStatus(msgspec.Struct, rename="camel", omit_defaults=True):
    """One of the Node's conditions."""

    type: str
    status: str
    reason: str = ""
    message: str = ""


class NodeStatus(msgspec.Struct, rename="camel", omit_defaults=True):
    """The Node and its NodeMetric in the API server."""

    name: str = ""
    error: str = ""
    conditions: list[ConditionStatus] = []
    metric_age_seconds: float | None = None
    metric_error: str = ""


class Report(msgspec.Struct, rename="camel"):
    """Everything; `-o json` prints it."""

    parts: list[PartStatus]
    koordlet: KoordletStatus
    kubernetes: NodeStatus
    pods: str = ""
    """What pods are here, in words; empty when nothing was brought up"""


async def gather(state_dir: Path, state: State, *, koordlet_url: str, kubeconfig: str | None) -> Report:
    """Ask all of them at once."""
    parts, koordlet = await asyncio.gather(_parts(state_dir, state), _koordlet(koordlet_url))
    admin = Layout(state_dir).admin_kubeconfig
    found = kubeconfig or (str(admin) if admin.exists() else None)
    name = state.settings.node_name if state.settings is not None else koordlet.node
    pods = containers.words(state.settings) if state.settings is not None else ""
    return Report(parts, koordlet, await _kubernetes(found, name), pods)


async def _parts(state_dir: Path, state: State) -> list[PartStatus]:
    if state.settings is None:
        return []
    return list(await asyncio.gather(*(_part(state_dir, state, part.name) for part in of(state.settings))))


async def _part(state_dir: Path, state: State, name: str) -> PartStatus:
    part = next(part for part in PARTS if part.name == name)
    record = state.parts.get(name)
    if record is None:
        return PartStatus(name, reason="not started")
    used = processes.use(record.process)
    if used is None or not processes.alive(record.process):
        return PartStatus(name, reason="ended; `koordctl up` starts it again", log=record.log)
    assert state.settings is not None
    problem, share = await asyncio.gather(
        part.problem(Layout(state_dir), state.settings), asyncio.to_thread(_cpu_share, record.process)
    )
    return PartStatus(
        name,
        running=True,
        pid=record.process.pid,
        uptime_seconds=round(used.uptime, 1),
        rss_bytes=used.rss,
        cpu_cores=share,
        ready=problem is None,
        reason=problem or "",
        log=record.log,
    )


def _cpu_share(process: processes.ProcessId) -> float | None:
    share = processes.cpu_share(process, CPU_SECONDS)
    return None if share is None else round(share, 4)


async def _koordlet(url: str) -> KoordletStatus:
    try:
        async with aiohttp.ClientSession() as session:
            top = await fetch_top(url, session)
            checks = await fetch_ready(url, session)
            enforcement = await fetch_enforcement(url, session)
    except KoordletUnreachable as error:
        return KoordletStatus(url, error=str(error))
    return KoordletStatus(
        url,
        reachable=True,
        node=top.node,
        checks=checks,
        probes=top.probes,
        conditions=top.conditions,
        enforcement=enforcement,
    )


async def _kubernetes(kubeconfig: str | None, name: str) -> NodeStatus:
    try:
        config = Config.load(kubeconfig, user_agent="koordctl", timeout=ASK_SECONDS)
    except KubeError as error:
        return NodeStatus(name, error=str(error))
    if not name:
        return NodeStatus(error="the name of this Node is not known: neither `koordctl up` ran nor koordlet answers")
    async with Client(config) as client:
        try:
            node = await client.get(Node, name)
        except KubeError as error:
            return NodeStatus(name, error=str(error))
        found = NodeStatus(
            name,
            conditions=[ConditionStatus(c.type, c.status, c.reason, c.message) for c in node.status.conditions],
        )
        try:
            updated = (await client.get(NodeMetric, name)).status.update_time
        except KubeError as error:
            found.metric_error = str(error)
            return found
    if updated is None:
        found.metric_error = "not reported yet"
    else:
        found.metric_age_seconds = round(time.time() - updated.timestamp(), 1)
    return found


# --- as text


def _table(*heads: str) -> Table:
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for head in heads:
        made.add_column(head, overflow="fold")
    return made


def _mark(good: bool | None) -> Text:
    return Text({None: "-", True: "yes", False: "no"}[good], style={None: "", True: "green", False: "red"}[good])


def render(report: Report) -> Group:
    """The report as tables."""
    blocks: list[Table | Text] = []
    if report.parts:
        parts = _table("PART", "RUNNING", "PID", "UPTIME", "RSS", "CPU", "READY", "REASON")
        for one in report.parts:
            parts.add_row(
                one.name,
                _mark(one.running),
                text.ABSENT if one.pid is None else str(one.pid),
                text.age(one.uptime_seconds),
                text.size(one.rss_bytes),
                text.cores(one.cpu_cores),
                _mark(one.ready),
                Text(one.reason),
            )
        blocks += [parts, *([Text(report.pods)] if report.pods else []), Text()]
    blocks += [*_koordlet_blocks(report.koordlet), Text(), *_node_blocks(report.kubernetes)]
    return Group(*blocks)


def _koordlet_blocks(koordlet: KoordletStatus) -> list[Table | Text]:
    if not koordlet.reachable:
        return [Text(f"koordlet: {koordlet.error}")]
    failed = {name: reason for name, reason in koordlet.checks.items() if reason is not None}
    lines = [Text(f"koordlet at {koordlet.url}: {'ready' if not failed else 'not ready'}")]
    lines += [Text(f"  {name}: {reason}") for name, reason in failed.items()]
    features = _table("PROBE OR FEATURE", "WORKS", "SOURCE", "REASON")
    for one in [*koordlet.probes, *koordlet.conditions]:
        features.add_row(one.name, _mark(one.up), one.source or text.ABSENT, Text(one.reason))
    return [*lines, features, *_enforcement_blocks(koordlet.enforcement)]


def _enforcement_blocks(enforcement: Enforcement | None) -> list[Table | Text]:
    """A row a strategy, and every setting that is disputed or does not hold."""
    if enforcement is None:
        return []
    counts = Counter(one.owner for one in enforcement.settings)
    strategies = _table("STRATEGY", "SETTINGS", "SAYS")
    for name, said in enforcement.strategies.items():
        strategies.add_row(name, str(counts[name]), Text(said))
    blocks: list[Table | Text] = [Text(), strategies, *_not_in_force(enforcement), *_held_back(enforcement)]
    odd = [one for one in enforcement.settings if one.overruled or one.problem]
    if odd or enforcement.stuck:
        settings = _table("SETTING", "VALUE", "OWNER", "OVERRULED", "PROBLEM")
        for one in odd:
            settings.add_row(one.setting, str(one.value), one.owner, ", ".join(one.overruled), Text(one.problem))
        for setting, cause in enforcement.stuck.items():
            settings.add_row(setting, text.ABSENT, text.ABSENT, "", Text(f"can't be given back: {cause}"))
        blocks += [Text(), settings]
        blocks += [Text(f"{', '.join(r.resources)}: {' before '.join(r.owners)} ({r.why})") for r in enforcement.rules]
    return blocks


def _not_in_force(enforcement: Enforcement) -> list[Table | Text]:
    if not enforcement.node_slo:
        return []
    fields = _table("NODESLO FIELD", "WHY IT IS NOT IN FORCE")
    for path, reason in enforcement.node_slo.items():
        fields.add_row(path, Text(reason))
    return [Text(), fields]


def _held_back(enforcement: Enforcement) -> list[Table | Text]:
    if not enforcement.held_back:
        return []
    pods = _table("HELD BACK", "RESOURCE", "LEFT", "BECAUSE")
    for one in enforcement.held_back:
        pods.add_row(f"{one.namespace}/{one.pod}", one.resource, Text(f"{one.percent} %, {one.left}"), Text(one.why))
    return [Text(), pods]


def _node_blocks(node: NodeStatus) -> list[Table | Text]:
    if node.error:
        return [Text(f"Kubernetes: {node.error}")]
    conditions = _table("NODE CONDITION", "STATUS", "REASON")
    for one in node.conditions:
        conditions.add_row(one.type, one.status, Text(one.reason))
    age = node.metric_error or f"reported {text.age(node.metric_age_seconds)} ago"
    return [Text(f"node {node.name}; NodeMetric: {age}"), conditions]


def show(report: Report, console: Console, *, as_json: bool) -> None:
    """Print it."""
    if as_json:
        body = msgspec.json.format(msgspec.json.encode(report), indent=2)
        console.print(body.decode(), markup=False, soft_wrap=True)
    else:
        console.print(render(report))

"""`koordctl status`: parts, probes, the Node and its NodeMetric, as far as each can be queried.

A missing source does not fail the others: without Kubernetes there are the parts and koordlet, without `up` there is
koordlet alone. Each source that cannot be queried shows the reason.
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

from control import processid
from control.ctl import text
from control.ctl.node import containers, processes
from control.ctl.node.parts import PARTS, Layout, of
from control.ctl.node.state import UpState
from control.ctl.views.koordletclient import KoordletUnreachable, fetch_enforcement, fetch_ready, fetch_top
from control.processid import ProcessId
from koordlet.api.core import Node
from koordlet.api.crs.slo import NodeMetric
from koordlet.api.pages.enforcement import Enforcement
from koordlet.api.pages.top import FeatureState
from koordlet.kube import Client, ClientConfig, KubeError

CPU_SAMPLE_S = 0.5
REQUEST_TIMEOUT_S = 3.0


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
    """koordlet's own status."""

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


class KubernetesStatus(msgspec.Struct, rename="camel", omit_defaults=True):
    """The Node and its NodeMetric in the API server."""

    name: str = ""
    error: str = ""
    conditions: list[ConditionStatus] = []
    metric_age_seconds: float | None = None
    metric_error: str = ""


class StatusReport(msgspec.Struct, rename="camel"):
    """The whole status; `-o json` prints it."""

    parts: list[PartStatus]
    koordlet: KoordletStatus
    kubernetes: KubernetesStatus
    pods: str = ""
    """How pods run here, in words; empty when nothing was brought up"""


async def collect_status(state_dir: Path, state: UpState, *, koordlet_url: str, kubeconfig: str | None) -> StatusReport:
    """Query all sources concurrently."""
    parts, koordlet = await asyncio.gather(_parts(state_dir, state), _koordlet(koordlet_url))
    admin = Layout(state_dir).admin_kubeconfig
    path = kubeconfig or (str(admin) if admin.exists() else None)
    name = state.settings.node_name if state.settings is not None else koordlet.node
    pods = containers.describe_runtime(state.settings) if state.settings is not None else ""
    return StatusReport(parts, koordlet, await _kubernetes(path, name), pods)


async def _parts(state_dir: Path, state: UpState) -> list[PartStatus]:
    if state.settings is None:
        return []
    return list(await asyncio.gather(*(_part(state_dir, state, part.name) for part in of(state.settings))))


async def _part(state_dir: Path, state: UpState, name: str) -> PartStatus:
    part = next(part for part in PARTS if part.name == name)
    record = state.parts.get(name)
    if record is None:
        return PartStatus(name, reason="not started")
    usage = processes.usage(record.process)
    if usage is None or not processid.alive(record.process):
        return PartStatus(name, reason="ended; `koordctl up` starts it again", log=record.log)
    assert state.settings is not None
    problem, share = await asyncio.gather(
        part.problem(Layout(state_dir), state.settings), asyncio.to_thread(_cpu_share, record.process)
    )
    return PartStatus(
        name,
        running=True,
        pid=record.process.pid,
        uptime_seconds=round(usage.uptime, 1),
        rss_bytes=usage.rss,
        cpu_cores=share,
        ready=problem is None,
        reason=problem or "",
        log=record.log,
    )


def _cpu_share(process: ProcessId) -> float | None:
    share = processes.cpu_share(process, CPU_SAMPLE_S)
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


async def _kubernetes(kubeconfig: str | None, name: str) -> KubernetesStatus:
    try:
        config = ClientConfig.load(kubeconfig, user_agent="koordctl", timeout=REQUEST_TIMEOUT_S)
    except KubeError as error:
        return KubernetesStatus(name, error=str(error))
    if not name:
        return KubernetesStatus(
            error="the name of this Node is unknown: `koordctl up` has not run and koordlet does not respond"
        )
    async with Client(config) as client:
        try:
            node = await client.get(Node, name)
        except KubeError as error:
            return KubernetesStatus(name, error=str(error))
        status = KubernetesStatus(
            name,
            conditions=[ConditionStatus(c.type, c.status, c.reason, c.message) for c in node.status.conditions],
        )
        try:
            updated = (await client.get(NodeMetric, name)).status.update_time
        except KubeError as error:
            status.metric_error = str(error)
            return status
    if updated is None:
        status.metric_error = "not reported yet"
    else:
        status.metric_age_seconds = round(time.time() - updated.timestamp(), 1)
    return status


# Text output


def _table(*heads: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for head in heads:
        table.add_column(head, overflow="fold")
    return table


def _mark(good: bool | None) -> Text:
    return Text({None: "-", True: "yes", False: "no"}[good], style={None: "", True: "green", False: "red"}[good])


def render(report: StatusReport) -> Group:
    """The report as tables."""
    blocks: list[Table | Text] = []
    if report.parts:
        parts = _table("PART", "RUNNING", "PID", "UPTIME", "RSS", "CPU", "READY", "REASON")
        for part in report.parts:
            parts.add_row(
                part.name,
                _mark(part.running),
                text.ABSENT if part.pid is None else str(part.pid),
                text.age(part.uptime_seconds),
                text.size(part.rss_bytes),
                text.cores(part.cpu_cores),
                _mark(part.ready),
                Text(part.reason),
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
    for feature in [*koordlet.probes, *koordlet.conditions]:
        features.add_row(feature.name, _mark(feature.up), feature.source or text.ABSENT, Text(feature.reason))
    return [*lines, features, *_enforcement_blocks(koordlet.enforcement)]


def _enforcement_blocks(enforcement: Enforcement | None) -> list[Table | Text]:
    """A row per strategy, and every setting that has several owners or is not in force."""
    if enforcement is None:
        return []
    counts = Counter(setting.owner for setting in enforcement.settings)
    strategies = _table("STRATEGY", "SETTINGS", "STATUS")
    for name, status in enforcement.strategies.items():
        strategies.add_row(name, str(counts[name]), Text(status))
    blocks: list[Table | Text] = [Text(), strategies, *_not_in_force(enforcement), *_throttled(enforcement)]
    disputed = [setting for setting in enforcement.settings if setting.overruled or setting.problem]
    if disputed or enforcement.stuck:
        rows = _table("SETTING", "VALUE", "OWNER", "OVERRULED", "PROBLEM")
        for entry in disputed:
            rows.add_row(entry.setting, str(entry.value), entry.owner, ", ".join(entry.overruled), Text(entry.problem))
        for setting, cause in enforcement.stuck.items():
            rows.add_row(setting, text.ABSENT, text.ABSENT, "", Text(f"cannot be restored: {cause}"))
        blocks += [Text(), rows]
        blocks += [Text(f"{', '.join(r.resources)}: {' before '.join(r.owners)} ({r.why})") for r in enforcement.rules]
    return blocks


def _not_in_force(enforcement: Enforcement) -> list[Table | Text]:
    if not enforcement.node_slo:
        return []
    fields = _table("NODESLO FIELD", "NOT IN FORCE BECAUSE")
    for path, reason in enforcement.node_slo.items():
        fields.add_row(path, Text(reason))
    return [Text(), fields]


def _throttled(enforcement: Enforcement) -> list[Table | Text]:
    if not enforcement.held_back:
        return []
    pods = _table("THROTTLED", "RESOURCE", "LEFT", "REASON")
    for pod in enforcement.held_back:
        left = Text(f"{pod.percent} %, {pod.left}")
        pods.add_row(f"{pod.namespace}/{pod.pod}", pod.resource, left, Text(pod.why))
    return [Text(), pods]


def _node_blocks(node: KubernetesStatus) -> list[Table | Text]:
    if node.error:
        return [Text(f"Kubernetes: {node.error}")]
    conditions = _table("NODE CONDITION", "STATUS", "REASON")
    for condition in node.conditions:
        conditions.add_row(condition.type, condition.status, Text(condition.reason))
    age = node.metric_error or f"reported {text.age(node.metric_age_seconds)} ago"
    return [Text(f"node {node.name}; NodeMetric: {age}"), conditions]


def show(report: StatusReport, console: Console, *, as_json: bool) -> None:
    """Print the report."""
    if as_json:
        body = msgspec.json.format(msgspec.json.encode(report), indent=2)
        console.print(body.decode(), markup=False, soft_wrap=True)
    else:
        console.print(render(report))

"""`koordctl top` of a cluster: one row per node, from Node and NodeMetric; or the containers of a namespace, from the
koordlets of their nodes. Pure but for `fetch_*`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec
from rich.table import Table

from control.ctl import text
from control.ctl.cluster.access import ClusterSources
from control.ctl.errors import CtlError
from control.ctl.views.koordletclient import fetch_top
from koordlet.api import names
from koordlet.api.core import Node
from koordlet.api.crs.slo import NodeMetric
from koordlet.api.encoding.quantity import Quantity
from koordlet.api.pages.top import Top, TopRow
from koordlet.kube import KubeError

MAX_NODES: Final = 100
"""koordlets that one command queries."""
CONCURRENT: Final = 8
COLUMNS: Final = ("NODE", "CPU", "CPU%", "MEM", "MEM%", "BATCH CPU", "BATCH MEM", "REPORTED")


class NodeRow(msgspec.Struct, rename="camel", omit_defaults=True):
    """One node; milli-cores, bytes and seconds. None: not reported."""

    node: str
    cpu: int | None = None
    memory: int | None = None
    cpu_capacity: int | None = None
    memory_capacity: int | None = None
    batch_cpu: int | None = None
    batch_memory: int | None = None
    report_age_seconds: float | None = None


async def fetch_nodes(cluster: ClusterSources, now: float) -> list[NodeRow]:
    """All nodes by name; `now` is Unix time. Raises CtlError."""
    try:
        nodes, metrics = await asyncio.gather(cluster.client.list(Node), cluster.client.list(NodeMetric))
    except KubeError as error:
        raise CtlError(f"cannot list nodes and their NodeMetrics: {error}") from error
    by_name = {metric.metadata.name: metric for metric in metrics}
    rows = [node_row(node, by_name.get(node.metadata.name), now) for node in nodes]
    return sorted(rows, key=lambda row: row.node)


def node_row(node: Node, metric: NodeMetric | None, now: float) -> NodeRow:
    """The row of one node."""
    capacity, allocatable = node.status.capacity, node.status.allocatable
    row = NodeRow(
        node.metadata.name,
        cpu_capacity=_milli(capacity.get("cpu")),
        memory_capacity=_value(capacity.get("memory")),
        batch_cpu=_value(allocatable.get(names.RESOURCE_BATCH_CPU)),
        batch_memory=_value(allocatable.get(names.RESOURCE_BATCH_MEMORY)),
    )
    status = metric.status if metric is not None else None
    if status is not None and status.node_metric is not None and status.node_metric.node_usage is not None:
        usage = status.node_metric.node_usage.resources or {}
        row.cpu, row.memory = _milli(usage.get("cpu")), _value(usage.get("memory"))
    if status is not None and status.update_time is not None:
        row.report_age_seconds = max(now - status.update_time.unix, 0.0)
    return row


def nodes_table(rows: Sequence[NodeRow]) -> Table:
    """One row per node."""
    result = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in COLUMNS:
        result.add_column(column, no_wrap=True)
    for row in rows:
        age = row.report_age_seconds
        result.add_row(
            row.node,
            _cores(row.cpu),
            _percent(row.cpu, row.cpu_capacity),
            text.size(row.memory) if row.memory is not None else text.ABSENT,
            _percent(row.memory, row.memory_capacity),
            _cores(row.batch_cpu),
            text.size(row.batch_memory) if row.batch_memory is not None else text.ABSENT,
            f"{text.age(age)} ago" if age is not None else text.ABSENT,
        )
    return result


async def fetch_namespace(cluster: ClusterSources, namespace: str) -> tuple[list[TopRow], list[str]]:
    """Containers of a namespace on all its nodes, and the nodes that did not respond, with the reason. Raises CtlError
    when the namespace is on more than MAX_NODES nodes, or no koordlet responds."""
    nodes = await cluster.pods.nodes_of(namespace)
    if len(nodes) > MAX_NODES:
        raise CtlError(f"namespace {namespace} runs on {len(nodes)} nodes", "Choose one with --node.")
    limit = asyncio.Semaphore(CONCURRENT)

    async def of(node: str) -> Top | CtlError:
        async with limit:
            try:
                async with cluster.koordlet(node) as source:
                    return await fetch_top(source.url, source.session)
            except CtlError as error:
                return error

    pages = await asyncio.gather(*(of(node) for node in nodes))
    rows = [row for page in pages if isinstance(page, Top) for row in page.rows if row.namespace == namespace]
    failures = [
        f"{node}: {page.message}" for node, page in zip(nodes, pages, strict=True) if isinstance(page, CtlError)
    ]
    if failures and len(failures) == len(nodes):
        raise CtlError(f"no koordlet responds; {failures[0]}")
    return rows, failures


def _milli(amount: Quantity | None) -> int | None:
    return amount.milli_value() if amount is not None else None


def _value(amount: Quantity | None) -> int | None:
    return amount.value() if amount is not None else None


def _cores(milli: int | None) -> str:
    return f"{milli}m" if milli is not None else text.ABSENT


def _percent(part: int | None, whole: int | None) -> str:
    return f"{100 * part / whole:.0f}" if part is not None and whole else text.ABSENT

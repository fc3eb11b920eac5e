"""The commands that show pages of koordlet and the scheduler, of this machine or of a cluster: top, explain, quota."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.text import Text

from control.ctl.cluster.access import ClusterSources
from control.ctl.cluster.choice import Where, cluster_options, sources, state_dir_option
from control.ctl.errors import CtlError
from control.ctl.terminal import UNCUT_COLUMNS, SafeConsole
from control.ctl.views.clustertop import NodeRow, fetch_namespace, fetch_nodes, nodes_table
from control.ctl.views.interference import exit_status, page
from control.ctl.views.koordletclient import DEFAULT_URL, fetch_explanation, fetch_top
from control.ctl.views.output import FORMATS, formatted
from control.ctl.views.placement import fetch_placement, placement_page
from control.ctl.views.quotas import fetch_quotas, quota_table
from control.ctl.views.toptable import SORTS, node_lines, select, table
from koordlet.api.pages.interference import PodInterferenceReport
from koordlet.api.pages.placement import PodPlacement
from koordlet.api.pages.top import Top, TopRow
from koordlet.app.clock import SYSTEM_CLOCK

_koordlet_url = click.option(
    "--koordlet-url", envvar="KOORDLET_URL", help=f"URL of a koordlet.  [default: that of `up`, {DEFAULT_URL}]"
)
_scheduler_url = click.option(
    "--scheduler-url", envvar="KOORD_SCHEDULER_URL", help="URL of the scheduler.  [default: that of `up`]"
)


class NamespaceTop(msgspec.Struct, rename="camel", omit_defaults=True):
    """Output of `top -n NAMESPACE -o json` for a cluster."""

    rows: list[TopRow]
    failures: list[str] = []


@click.command()
@click.option("--once", is_flag=True, help="Print one table and exit.")
@click.option("--json", "as_json", is_flag=True, help="Print the data as JSON and exit; same as -o json.")
@click.option(
    "-o", "--output", type=click.Choice([*FORMATS, "wide"]), help="json, yaml, or a table with additional columns."
)
@click.option("--sort", type=click.Choice(SORTS), default="cpu", show_default=True, help="Order of rows.")
@click.option("-n", "--namespace", help="Only this namespace.")
@click.option("-A", "--all-namespaces", is_flag=True, help="All namespaces, and cgroups outside Kubernetes (default).")
@click.option(
    "--interval", type=click.FloatRange(min=0.2), default=2.0, show_default=True, help="Seconds between updates."
)
@click.option("--node", help="Only this node of a cluster.")
@_koordlet_url
@cluster_options
@state_dir_option
def top(
    once: bool,
    as_json: bool,
    output: str | None,
    sort: str,
    namespace: str | None,
    all_namespaces: bool,
    interval: float,
    node: str | None,
    koordlet_url: str | None,
    kubeconfig: str | None,
    context: str | None,
    state_dir: Path,
) -> None:
    """Show CPU, memory, pressure, schedule latency and the worst culprit per container.

    Of a cluster: with --node the containers of a node, with -n those of a namespace on all its nodes, else one row per
    node. Of this machine: the containers, also without Kubernetes. If the output is not a terminal, one table is
    printed.
    """
    if all_namespaces and namespace is not None:
        raise click.UsageError("-A and -n exclude each other")
    where = Where(state_dir, koordlet_url, kubeconfig=kubeconfig, context=context, node=node)
    data = "json" if as_json else output if output in FORMATS else None
    live = data is None and not once and sys.stdout.isatty()
    asyncio.run(_top(where, data, sort, namespace, wide=output == "wide", interval=interval if live else None))


async def _top(
    where: Where, data: str | None, sort: str, namespace: str | None, *, wide: bool, interval: float | None
) -> None:
    async with sources(where) as pages:
        if isinstance(pages, ClusterSources) and where.node is None:
            await _cluster_top(pages, data, sort, namespace, wide=wide)
            return
        async with pages.koordlet(where.node or "") as koordlet:
            if interval is not None:
                from control.ctl.views.topapp import TopApp  # importing textual takes 0.3 s

                await TopApp(
                    lambda: fetch_top(koordlet.url, koordlet.session),
                    koordlet.url,
                    interval=interval,
                    sort=sort,
                    namespace=namespace,
                    wide=wide,
                ).run_async()
                return
            top_page = await fetch_top(koordlet.url, koordlet.session)
    if data is not None:
        top_page.rows = select(top_page.rows, sort=sort, namespace=namespace)
        click.echo(formatted(top_page, data))
    else:
        print_top(top_page, SafeConsole(highlight=False), sort=sort, namespace=namespace, wide=wide)


async def _cluster_top(
    cluster: ClusterSources, data: str | None, sort: str, namespace: str | None, *, wide: bool
) -> None:
    console = SafeConsole(width=UNCUT_COLUMNS, color_system="auto", highlight=False)
    if namespace is None:
        nodes: list[NodeRow] = await fetch_nodes(cluster, SYSTEM_CLOCK.now())
        if data is not None:
            click.echo(formatted(nodes, data))
        else:
            console.print(nodes_table(nodes))
        return
    rows, failures = await fetch_namespace(cluster, namespace)
    rows = select(rows, sort=sort, namespace=namespace)
    if data is not None:
        click.echo(formatted(NamespaceTop(rows, failures), data))
        return
    console.print(table(rows, wide=wide))
    for failure in failures:
        click.echo(f"not asked: node {failure}", err=True)


@click.group()
def explain() -> None:
    """Explain a pod's placement and interference."""


@explain.command("pod")
@click.argument("name")
@click.option("-n", "--namespace", default="default", show_default=True, help="The pod's namespace.")
@click.option("-o", "--output", type=click.Choice(["text", *FORMATS]), default="text", help="Output format.")
@click.option(
    "--exit-code", is_flag=True, help="Exit with 3 while other pods interfere with it, 4 while it has own trouble."
)
@_koordlet_url
@_scheduler_url
@click.option(
    "--only", type=click.Choice(["placement", "interference"]), help="Print one part only; -o json prints one part."
)
@cluster_options
@state_dir_option
def explain_pod(
    name: str,
    namespace: str,
    output: str,
    exit_code: bool,
    koordlet_url: str | None,
    scheduler_url: str | None,
    only: str | None,
    kubeconfig: str | None,
    context: str | None,
    state_dir: Path,
) -> None:
    """Show why a pod is on its node or pending, and what interferes with it: since when, how much, and which culprits.

    Placement comes from the scheduler, per plugin and on the present cluster; interference comes from the node's
    koordlet, for the last 15 minutes. Exit status 1 when neither knows the pod.
    """
    where = Where(state_dir, koordlet_url, scheduler_url, kubeconfig, context)
    explanation = asyncio.run(_explain(where, namespace, name, output, only))
    if exit_code and explanation is not None:
        raise SystemExit(exit_status(explanation))


async def _explain(
    where: Where, namespace: str, name: str, output: str, only: str | None
) -> PodInterferenceReport | None:
    """Print the parts; the interference report if it was printed."""
    console = SafeConsole(highlight=False)
    async with sources(where) as pages:
        placement: PodPlacement | None = None
        if only == "placement" or (only is None and output == "text"):
            try:
                async with pages.scheduler() as scheduler:
                    placement = await fetch_placement(scheduler.url, namespace, name, scheduler.session)
                if placement is None and only == "placement":
                    hint = "Check its .spec.schedulerName."
                    raise CtlError(f"the scheduler does not know pod {namespace}/{name}", hint)
            except CtlError:
                if only == "placement":
                    raise
        if placement is not None and output != "text":
            click.echo(formatted(placement, output))
            return None
        if placement is not None:
            print_placement(placement, console)
            if only == "placement" or not placement.node:
                return None
            console.print()
        try:
            node = await pages.pods.node_of(namespace, name) if isinstance(pages, ClusterSources) else ""
            if isinstance(pages, ClusterSources) and not node:
                raise CtlError(f"pod {namespace}/{name} is not on a node")
            async with pages.koordlet(node) as koordlet:
                explanation = await fetch_explanation(koordlet.url, namespace, name, koordlet.session)
        except CtlError as error:
            if placement is None:
                raise
            console.print(f"No interference data: {error.message}", style="yellow", soft_wrap=True)
            return None
    if output == "text":
        print_explanation(explanation, console)
    else:
        click.echo(formatted(explanation, output))
    return explanation


@click.command()
@click.argument("name", default="")
@click.option("-o", "--output", type=click.Choice(["table", *FORMATS]), default="table", help="Output format.")
@_scheduler_url
@cluster_options
@state_dir_option
def quota(
    name: str, output: str, scheduler_url: str | None, kubeconfig: str | None, context: str | None, state_dir: Path
) -> None:
    """Show the tree of ElasticQuotas: min, max, request, used, and what each may use now (runtime).

    With NAME, only this quota and those below it. A quota that uses all that it may use, and requests more, is
    highlighted. The figures are the scheduler's. Exit status 1 when there is no such quota.
    """
    where = Where(state_dir, scheduler_url=scheduler_url, kubeconfig=kubeconfig, context=context)
    asyncio.run(_quota(where, name, output))


async def _quota(where: Where, name: str, output: str) -> None:
    async with sources(where) as pages, pages.scheduler() as scheduler:
        quotas = await fetch_quotas(scheduler.url, name, scheduler.session)
    if output != "table":
        click.echo(formatted(quotas, output))
        return
    SafeConsole(width=UNCUT_COLUMNS, color_system="auto", highlight=False).print(quota_table(quotas))


def print_placement(placement: PodPlacement, console: Console) -> None:
    """Print the scheduler's part of the page."""
    for line in placement_page(placement):
        console.print(line, soft_wrap=isinstance(line, Text))


def print_explanation(explanation: PodInterferenceReport, console: Console) -> None:
    """Print koordlet's part of the page, not cut at the terminal's width."""
    for line in page(explanation, SYSTEM_CLOCK.now()):
        console.print(line, soft_wrap=True)


def print_top(
    top_page: Top, console: Console, *, sort: str = "cpu", namespace: str | None = None, wide: bool = False
) -> None:
    """Print head and table, not cut at the terminal's width, so that culprits are complete."""
    for line in node_lines(top_page):
        console.print(line, markup=False, soft_wrap=True)
    console.print()
    rows = select(top_page.rows, sort=sort, namespace=namespace)
    uncut = SafeConsole(file=console.file, width=UNCUT_COLUMNS, color_system="auto", highlight=False)
    uncut.print(table(rows, wide=wide))

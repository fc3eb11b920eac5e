"""The commands of `koordctl migrate`: the change from Koordinator to this system."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import click
from rich.table import Table

from control.ctl.cluster.access import opened
from control.ctl.cluster.choice import cluster_options
from control.ctl.migrate.model import MigrationItem, MigrationReport
from control.ctl.terminal import UNCUT_COLUMNS, SafeConsole
from control.ctl.views.output import FORMATS, formatted

STYLES = {"same": None, "differs": "yellow", "action": "red"}


@click.group()
def migrate() -> None:
    """Change a cluster from Koordinator to this system."""


@migrate.command("check")
@click.option("-o", "--output", type=click.Choice(["table", *FORMATS]), default="table", help="Output format.")
@cluster_options
def check(output: str, kubeconfig: str | None, context: str | None) -> None:
    """Show what stays the same, what differs and what is to be done, before Koordinator is replaced.

    Reads CRDs, ConfigMaps, flags and gates of Deployments and DaemonSets, role bindings and webhooks. Changes nothing.
    """
    report = asyncio.run(_checked(kubeconfig, context))
    if output != "table":
        click.echo(formatted(report, output))
        return
    SafeConsole(width=UNCUT_COLUMNS, color_system="auto", highlight=False).print(report_table(report.items))
    click.echo(
        f"\n{report.count('same')} the same, {report.count('differs')} different, {report.count('action')} to do"
    )


async def _checked(kubeconfig: str | None, context: str | None) -> MigrationReport:
    from control.ctl.migrate.read import check_cluster  # imports the parsers of all binaries: 0.5 s

    async with opened(kubeconfig, context) as cluster:
        return await check_cluster(cluster.client)


def report_table(items: Sequence[MigrationItem]) -> Table:
    """What is to be done first."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("RESULT", "AREA", "SUBJECT", "WHAT", "TO DO"):
        table.add_column(column, no_wrap=True)
    order = list(reversed(STYLES))
    for item in sorted(items, key=lambda item: order.index(item.outcome)):
        table.add_row(item.outcome, item.area, item.subject, item.detail, item.todo or "-", style=STYLES[item.outcome])
    return table

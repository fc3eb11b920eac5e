"""The commands of `koordctl` about moving pods."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from control.ctl.cluster.choice import cluster_options, state_dir_option
from control.ctl.node.parts import Layout
from control.ctl.terminal import UNCUT_COLUMNS, SafeConsole
from control.ctl.views.migrations import fetch_migrations, migration_page, migrations_table, summaries
from control.ctl.views.output import FORMATS, formatted
from koordlet.app.clock import SYSTEM_CLOCK


@click.command("migrations")
@click.argument("name", default="")
@click.option("-a", "--all", "ended", is_flag=True, help="Show ended migrations, too.")
@click.option("-o", "--output", type=click.Choice(["table", *FORMATS]), default="table", help="Output format.")
@cluster_options
@state_dir_option
def migrations_command(
    name: str, ended: bool, output: str, kubeconfig: str | None, context: str | None, state_dir: Path
) -> None:
    """Show which pods koord-descheduler moves, why, and how far each migration is.

    With NAME, all steps of one PodMigrationJob. Exit status 1 when there is no such job.
    """
    jobs = asyncio.run(fetch_migrations(kubeconfig_path(kubeconfig, state_dir, context), name, context))
    now = SYSTEM_CLOCK.now()
    migrations = summaries(jobs, now, ended=ended or bool(name))
    if output != "table":
        click.echo(formatted(migrations, output))
        return
    console = SafeConsole(highlight=False)
    if name:
        for line in migration_page(jobs[0], now):
            console.print(line, soft_wrap=True)
    elif migrations:
        uncut = SafeConsole(file=console.file, width=UNCUT_COLUMNS, color_system="auto", highlight=False)
        uncut.print(migrations_table(migrations))
    else:
        console.print("No pod is being moved.")


def kubeconfig_path(kubeconfig: str | None, state_dir: Path, context: str | None) -> str | None:
    """The chosen file, else that of `koordctl up`; None: the usual places, also where a context is chosen."""
    if context is not None:
        return kubeconfig
    admin = Layout(state_dir).admin_kubeconfig
    return kubeconfig or (str(admin) if admin.exists() else None)

"""The command line of `koordctl` and `kubectl koord`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import click

from control.ctl.cluster.choice import STATE_DIR, Where, cluster_options, has_kubeconfig, sources, state_dir_option
from control.ctl.draincommands import drain_command
from control.ctl.errors import CtlError
from control.ctl.migratecommands import migrate
from control.ctl.movecommands import kubeconfig_path, migrations_command
from control.ctl.node.containers import RUNTIMES
from control.ctl.node.down import down as take_down
from control.ctl.node.parts import Layout
from control.ctl.node.state import NodeSettings
from control.ctl.node.state import load as load_state
from control.ctl.node.status import collect_status as gather_status
from control.ctl.node.status import show as show_status
from control.ctl.node.up import up as bring_up
from control.ctl.pagecommands import explain, quota, top
from control.ctl.progress import TerminalProgress
from control.ctl.terminal import UNCUT_COLUMNS, SafeConsole
from control.ctl.views.clusterstatus import component_table, fetch_components
from control.ctl.views.cpumap import cpu_page, fetch_cpus
from control.ctl.views.devicemap import device_page, fetch_devices
from control.ctl.views.koordletclient import DEFAULT_URL
from control.ctl.views.output import FORMATS, formatted
from control.ctl.views.overcommit import fetch_node, overcommit_of
from control.ctl.views.overcommit import page as node_page
from control.ctl.views.reservations import details, fetch_reservations, reservation_table
from koordlet.api.pages.nodecpus import NodeCPUPage
from koordlet.api.pages.nodedevices import NodeDevicePage
from koordlet.app.clock import SYSTEM_CLOCK
from koordlet.app.version import version_line

_PORT = click.IntRange(0, 65535)


def _version(context: click.Context, _: click.Parameter, shown: bool) -> None:
    if shown:
        click.echo(version_line("koordctl"))
        context.exit()


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version.")
def cli() -> None:
    """Run a co-location node on this machine, and show which containers delay each other."""


@cli.command()
@state_dir_option
@click.option("--node-name", help="Name of the Node.  [default: the hostname]")
@click.option(
    "--cgroup-driver", type=click.Choice(["cgroupfs", "systemd"]), help="Cgroup driver, which names pod cgroups."
)
@click.option("--port", "apiserver_port", type=_PORT, help="API server port; 0: a free one.  [default: 6443]")
@click.option("--kubelet-port", type=_PORT, help="Stand-in kubelet port; 0: a free one.  [default: 10250]")
@click.option("--koordlet-port", type=_PORT, help="koordlet port; 0: a free one.  [default: 9316]")
@click.option("--manager-port", type=_PORT, help="Manager's HTTP port; 0: a free one.  [default: 9317]")
@click.option("--webhook-port", type=_PORT, help="Manager's webhook port; 0: a free one.  [default: 9876]")
@click.option("--scheduler-port", type=_PORT, help="Scheduler's HTTP port; 0: a free one.  [default: 10251]")
@click.option("--runtimeproxy-port", type=_PORT, help="Runtime proxy's HTTP port; 0: a free one.  [default: 9318]")
@click.option(
    "--runtime",
    type=click.Choice(RUNTIMES),
    help="Container runtime of pods; auto: containerd if it works.  [default: auto]",
)
@click.option("--probes", type=click.Choice(["auto", "core", "bcc", "off"]), help="Source of schedule latency.")
@click.option("--bpf-pin-dir", help="Directory of pinned BPF maps.  [default: /sys/fs/bpf/koordlet]")
@click.option("--report-interval", type=click.IntRange(1), help="Seconds between NodeMetric reports.  [default: 60]")
@click.option(
    "--aggregate-duration", type=click.IntRange(60), help="Seconds over which NodeMetric averages.  [default: 300]"
)
@click.option(
    "--bare/--no-bare",
    default=None,
    help="Without manager, scheduler and koordlet: a node on which they are installed as pods, from deploy/embedded.",
)
@click.option("--without", default="", help="Parts not to start: apiserver, manager, scheduler, kubelet, koordlet.")
def up(state_dir: Path, without: str, **options: Any) -> None:
    """Start API server, manager, scheduler, stand-in kubelet and koordlet on this machine.

    Running parts are not touched, so a repeated `up` restarts a part that was killed. Options are stored: a later `up`
    needs none of them.
    """
    progress = TerminalProgress()
    parts = [name.strip() for name in without.split(",") if name.strip()]
    settings = asyncio.run(bring_up(state_dir, options, without=parts, progress=progress))
    for line in next_commands(state_dir, settings):
        progress.say(line)


def next_commands(state_dir: Path, settings: NodeSettings) -> list[str]:
    """Commands that `up` suggests at its end."""
    url = "" if settings.koordlet_url == DEFAULT_URL else f" --koordlet-url={settings.koordlet_url}"
    at = "" if state_dir == STATE_DIR else f" --state-dir={state_dir}"
    return [
        "",
        f"  export KUBECONFIG={Layout(state_dir).admin_kubeconfig}",
        "  kubectl get nodes,pods -A",
        f"  koordctl top{url}",
        f"  koordctl status{at}",
        f"  koordctl down{at}",
    ]


@cli.command()
@state_dir_option
@click.option("--purge", is_flag=True, help="Also remove the state directory: all objects, keys and logs.")
def down(state_dir: Path, purge: bool) -> None:
    """Stop what `up` started, and check that nothing is left.

    Pods end with their node. Exit status 1 when a process, cgroup, mount, pinned map or (with --purge) file remains.
    """
    progress = TerminalProgress()
    remaining = take_down(state_dir, purge=purge, progress=progress)
    for line in remaining.lines():
        (progress.bad if "left:" in line else progress.good)(line)
    if remaining:
        raise SystemExit(1)


@cli.command()
@state_dir_option
@click.option("--koordlet-url", envvar="KOORDLET_URL", help=f"URL of koordlet.  [default: that of `up`, {DEFAULT_URL}]")
@cluster_options
@click.option("-o", "--output", type=click.Choice(["table", *FORMATS]), default="table", help="Output format.")
def status(state_dir: Path, koordlet_url: str | None, kubeconfig: str | None, context: str | None, output: str) -> None:
    """Show parts, probes, missing kernel features, Node and NodeMetric; of an installed cluster, its components.

    Exit status 1 when a started part has ended, koordlet does not respond, or a component of the cluster is not ready.
    """
    state = load_state(state_dir)
    where = Where(state_dir, koordlet_url, kubeconfig=kubeconfig, context=context)
    if state.settings is None and where.is_cluster(node_here=False, kubeconfig_here=has_kubeconfig()):
        _cluster_status(kubeconfig, context, output)
        return
    url = koordlet_url or (state.settings.koordlet_url if state.settings is not None else DEFAULT_URL)
    report = asyncio.run(gather_status(state_dir, state, koordlet_url=url, kubeconfig=kubeconfig))
    if output == "yaml":
        click.echo(formatted(report, output))
    else:
        show_status(report, SafeConsole(highlight=False), as_json=output == "json")
    ended = any(part.log and not part.running for part in report.parts)
    if ended or not report.koordlet.reachable:
        raise SystemExit(1)


def _cluster_status(kubeconfig: str | None, context: str | None, output: str) -> None:
    components = asyncio.run(fetch_components(kubeconfig, context))
    if output == "table":
        SafeConsole(width=UNCUT_COLUMNS, color_system="auto", highlight=False).print(component_table(components))
    else:
        click.echo(formatted(components, output))
    if not all(component.ready for component in components):
        raise SystemExit(1)


@cli.command("node")
@click.argument("name")
@click.option("-o", "--output", type=click.Choice(["text", *FORMATS]), default="text", help="Output format.")
@click.option("--scheduler-url", envvar="KOORD_SCHEDULER_URL", help="URL of the scheduler.  [default: that of `up`]")
@cluster_options
@state_dir_option
def node_command(
    name: str, output: str, scheduler_url: str | None, kubeconfig: str | None, context: str | None, state_dir: Path
) -> None:
    """Show how a node's capacity is used: prod, reserved, overcommitted to batch and mid pods, and the formulas with
    numbers. Show its cores by NUMA node, its devices by PCIe switch, and which pods hold them.

    The first part is what koord-manager wrote, the second what the scheduler knows. Exit status 1 when there is no
    such Node.
    """
    path = kubeconfig_path(kubeconfig, state_dir, context)
    overcommit = overcommit_of(asyncio.run(fetch_node(path, name, context)))
    if output != "text":
        click.echo(formatted(overcommit, output))
        return
    console = SafeConsole(highlight=False)
    for line in node_page(overcommit, SYSTEM_CLOCK.now()):
        console.print(line, soft_wrap=True)
    cpus, devices = asyncio.run(_held(Where(state_dir, None, scheduler_url, kubeconfig, context), name))
    for text_line in [f"No map of CPUs: {cpus}"] if isinstance(cpus, str) else cpu_page(cpus):
        console.print(text_line, soft_wrap=True)
    for text_line in device_page(devices) if devices is not None else ():
        console.print(text_line, soft_wrap=True)


async def _held(where: Where, node: str) -> tuple[NodeCPUPage | str, NodeDevicePage | None]:
    """The CPUs and devices of a node, as the scheduler knows them."""
    try:
        async with sources(where) as pages, pages.scheduler() as scheduler:
            cpus = await fetch_cpus(scheduler.url, node, scheduler.session)
            return cpus, await fetch_devices(scheduler.url, node, scheduler.session)
    except CtlError as error:
        return error.message, None


@cli.command("reservation")
@click.argument("name", default="")
@click.option("-o", "--output", type=click.Choice(["table", *FORMATS]), default="table", help="Output format.")
@cluster_options
@state_dir_option
def reservation_command(name: str, output: str, kubeconfig: str | None, context: str | None, state_dir: Path) -> None:
    """Show Reservations: node, phase, what each offers, what its owner pods use, what remains, and when it expires.

    With NAME, also its conditions and its owner pods. Exit status 1 when there is no such Reservation.
    """
    reservations = asyncio.run(fetch_reservations(kubeconfig_path(kubeconfig, state_dir, context), name, context))
    if output != "table":
        click.echo(formatted(reservations, output))
        return
    console, now = SafeConsole(highlight=False), SYSTEM_CLOCK.now()
    if not reservations:
        console.print("There are no Reservations.")
        return
    uncut = SafeConsole(file=console.file, width=UNCUT_COLUMNS, color_system="auto", highlight=False)
    uncut.print(reservation_table(reservations, now))
    for line in details(reservations[0], now) if name else ():
        console.print(line, markup=False, soft_wrap=True)


for command in (top, explain, quota, migrations_command, drain_command, migrate):
    cli.add_command(command)


def program() -> str:
    """The name under which the user runs this program."""
    return "kubectl koord" if Path(sys.argv[0]).name.startswith("kubectl-koord") else "koordctl"


def main() -> int:
    """Exit status: 0, 1 for a reported error, 2 for a wrong command line, 130 for Ctrl-C."""
    try:
        cli.main(prog_name=program(), standalone_mode=False)
    except CtlError as error:
        SafeConsole(stderr=True, highlight=False).print(f"{program()}: {error}", markup=False, soft_wrap=True)
        return 1
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())

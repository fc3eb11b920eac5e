"""The command line of `koordctl` and `kubectl koord`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from control.ctl.errors import CtlError
from control.ctl.movecommands import kubeconfig_path, migrations_command
from control.ctl.node.containers import RUNTIMES
from control.ctl.node.down import down as take_down
from control.ctl.node.parts import Layout
from control.ctl.node.state import NodeSettings
from control.ctl.node.state import load as load_state
from control.ctl.node.status import collect_status as gather_status
from control.ctl.node.status import show as show_status
from control.ctl.node.up import up as bring_up
from control.ctl.progress import TerminalProgress
from control.ctl.terminal import SafeConsole
from control.ctl.views.cpumap import cpu_page, fetch_cpus
from control.ctl.views.interference import exit_status, page
from control.ctl.views.koordletclient import DEFAULT_URL, fetch_explanation, fetch_top
from control.ctl.views.overcommit import fetch_node, overcommit_of
from control.ctl.views.overcommit import page as node_page
from control.ctl.views.placement import fetch_placement, placement_page
from control.ctl.views.quotas import fetch_quotas, quota_table
from control.ctl.views.reservations import details, fetch_reservations, reservation_table
from control.ctl.views.schedulerclient import DEFAULT_SCHEDULER_URL
from control.ctl.views.toptable import SORTS, node_lines, select, table
from koordlet.api.encoding.wire import encode
from koordlet.api.pages.interference import PodInterferenceReport
from koordlet.api.pages.placement import PodPlacement
from koordlet.api.pages.top import Top
from koordlet.app.clock import SYSTEM_CLOCK
from koordlet.app.version import version_line

STATE_DIR = Path("/var/lib/koord")

state_dir_option = click.option(
    "--state-dir",
    type=click.Path(path_type=Path, file_okay=False, resolve_path=True),
    default=STATE_DIR,
    show_default=True,
    help="Directory of the node's state and logs.",
)
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
@click.option("--report-interval", type=click.IntRange(30), help="Seconds between NodeMetric reports.  [default: 60]")
@click.option(
    "--aggregate-duration", type=click.IntRange(60), help="Seconds over which NodeMetric averages.  [default: 300]"
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
@click.option("--kubeconfig", help="kubeconfig to use.  [default: that of `up`, KUBECONFIG]")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", help="Output format.")
def status(state_dir: Path, koordlet_url: str | None, kubeconfig: str | None, output: str) -> None:
    """Show parts, probes, missing kernel features, Node and NodeMetric.

    Exit status 1 when a started part has ended, or koordlet does not respond.
    """
    state = load_state(state_dir)
    url = koordlet_url or (state.settings.koordlet_url if state.settings is not None else DEFAULT_URL)
    report = asyncio.run(gather_status(state_dir, state, koordlet_url=url, kubeconfig=kubeconfig))
    show_status(report, SafeConsole(highlight=False), as_json=output == "json")
    ended = any(part.log and not part.running for part in report.parts)
    if ended or not report.koordlet.reachable:
        raise SystemExit(1)


@cli.command()
@click.option("--once", is_flag=True, help="Print one table and exit.")
@click.option("--json", "as_json", is_flag=True, help="Print the data as JSON and exit; same as -o json.")
@click.option("-o", "--output", type=click.Choice(["json", "wide"]), help="json, or a table with additional columns.")
@click.option("--sort", type=click.Choice(SORTS), default="cpu", show_default=True, help="Order of rows.")
@click.option("-n", "--namespace", help="Only this namespace.")
@click.option("-A", "--all-namespaces", is_flag=True, help="All namespaces, and cgroups outside Kubernetes (default).")
@click.option(
    "--interval", type=click.FloatRange(min=0.2), default=2.0, show_default=True, help="Seconds between updates."
)
@click.option("--koordlet-url", envvar="KOORDLET_URL", help=f"URL of koordlet.  [default: that of `up`, {DEFAULT_URL}]")
@state_dir_option
def top(
    once: bool,
    as_json: bool,
    output: str | None,
    sort: str,
    namespace: str | None,
    all_namespaces: bool,
    interval: float,
    koordlet_url: str | None,
    state_dir: Path,
) -> None:
    """Show CPU, memory, pressure, schedule latency and the worst culprit per container.

    Needs a running koordlet, with or without Kubernetes. If the output is not a terminal, one table is printed.
    """
    if all_namespaces and namespace is not None:
        raise click.UsageError("-A and -n exclude each other")
    url = koordlet_url or _koordlet_url(state_dir)
    if as_json or output == "json":
        top_page = asyncio.run(fetch_top(url))
        top_page.rows = select(top_page.rows, sort=sort, namespace=namespace)
        click.echo(encode(top_page))
    elif once or not sys.stdout.isatty():
        top_page = asyncio.run(fetch_top(url))
        print_top(top_page, SafeConsole(highlight=False), sort=sort, namespace=namespace, wide=output == "wide")
    else:
        from control.ctl.views.topapp import TopApp  # importing textual takes 0.3 s

        TopApp(
            lambda: fetch_top(url), url, interval=interval, sort=sort, namespace=namespace, wide=output == "wide"
        ).run()


@cli.group()
def explain() -> None:
    """Explain a pod's placement and interference."""


@explain.command("pod")
@click.argument("name")
@click.option("-n", "--namespace", default="default", show_default=True, help="The pod's namespace.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", help="Output format.")
@click.option(
    "--exit-code", is_flag=True, help="Exit with 3 while other pods interfere with it, 4 while it has own trouble."
)
@click.option("--koordlet-url", envvar="KOORDLET_URL", help=f"URL of koordlet.  [default: that of `up`, {DEFAULT_URL}]")
@click.option("--scheduler-url", envvar="KOORD_SCHEDULER_URL", help="URL of the scheduler.  [default: that of `up`]")
@click.option(
    "--only", type=click.Choice(["placement", "interference"]), help="Print one part only; -o json prints one part."
)
@state_dir_option
def explain_pod(
    name: str,
    namespace: str,
    output: str,
    exit_code: bool,
    koordlet_url: str | None,
    scheduler_url: str | None,
    only: str | None,
    state_dir: Path,
) -> None:
    """Show why a pod is on its node or pending, and what interferes with it: since when, how much, and which culprits.

    Placement comes from the scheduler, per plugin and on the present cluster; interference comes from the node's
    koordlet, for the last 15 minutes. Exit status 1 when neither knows the pod.
    """
    console = SafeConsole(highlight=False)
    placement: PodPlacement | None = None
    placement_error: CtlError | None = None
    if only == "placement" or (only is None and output == "text"):
        try:
            url = scheduler_url or _settings(state_dir, lambda s: s.scheduler_url, DEFAULT_SCHEDULER_URL)
            placement = asyncio.run(fetch_placement(url, namespace, name))
        except CtlError as error:
            placement_error = error
        if placement is None and only == "placement":
            unknown = CtlError(f"the scheduler does not know pod {namespace}/{name}", "Check its .spec.schedulerName.")
            raise placement_error or unknown
    if placement is not None and output == "json":
        click.echo(encode(placement))
        return
    if placement is not None:
        print_placement(placement, console)
        if only == "placement" or not placement.node:
            return
        console.print()
    try:
        explanation = asyncio.run(fetch_explanation(koordlet_url or _koordlet_url(state_dir), namespace, name))
    except CtlError as error:
        if placement is None:
            raise
        console.print(f"No interference data: {error.message}", style="yellow", soft_wrap=True)
        return
    if output == "json":
        click.echo(encode(explanation))
    else:
        print_explanation(explanation, console)
    if exit_code:
        raise SystemExit(exit_status(explanation))


def print_placement(placement: PodPlacement, console: Console) -> None:
    """Print the scheduler's part of the page."""
    for line in placement_page(placement):
        console.print(line, soft_wrap=isinstance(line, Text))


def print_explanation(explanation: PodInterferenceReport, console: Console) -> None:
    """Print koordlet's part of the page, not cut at the terminal's width."""
    for line in page(explanation, SYSTEM_CLOCK.now()):
        console.print(line, soft_wrap=True)


@cli.command("node")
@click.argument("name")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", help="Output format.")
@click.option("--kubeconfig", help="kubeconfig to use.  [default: that of `up`, KUBECONFIG]")
@click.option("--scheduler-url", envvar="KOORD_SCHEDULER_URL", help="URL of the scheduler.  [default: that of `up`]")
@state_dir_option
def node_command(name: str, output: str, kubeconfig: str | None, scheduler_url: str | None, state_dir: Path) -> None:
    """Show how a node's capacity is used: prod, reserved, overcommitted to batch and mid pods, and the formulas with
    numbers. Show its cores by NUMA node, and which pods hold them.

    The first part is what koord-manager wrote, the second what the scheduler knows. Exit status 1 when there is no
    such Node.
    """
    overcommit = overcommit_of(asyncio.run(fetch_node(kubeconfig_path(kubeconfig, state_dir), name)))
    if output == "json":
        click.echo(encode(overcommit))
        return
    console = SafeConsole(highlight=False)
    for line in node_page(overcommit, SYSTEM_CLOCK.now()):
        console.print(line, soft_wrap=True)
    url = scheduler_url or _settings(state_dir, lambda settings: settings.scheduler_url, DEFAULT_SCHEDULER_URL)
    cpus = asyncio.run(fetch_cpus(url, name))
    for text_line in [f"No map of CPUs: {cpus}"] if isinstance(cpus, str) else cpu_page(cpus):
        console.print(text_line, soft_wrap=True)


@cli.command("quota")
@click.argument("name", default="")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", help="Output format.")
@click.option("--scheduler-url", envvar="KOORD_SCHEDULER_URL", help="URL of the scheduler.  [default: that of `up`]")
@state_dir_option
def quota_command(name: str, output: str, scheduler_url: str | None, state_dir: Path) -> None:
    """Show the tree of ElasticQuotas: min, max, request, used, and what each may use now (runtime).

    With NAME, only this quota and those below it. A quota that uses all that it may use, and asks for more, is
    highlighted. The figures are the scheduler's. Exit status 1 when there is no such quota.
    """
    url = scheduler_url or _settings(state_dir, lambda settings: settings.scheduler_url, DEFAULT_SCHEDULER_URL)
    quotas = asyncio.run(fetch_quotas(url, name))
    if output == "json":
        click.echo(encode(quotas))
        return
    console = SafeConsole(highlight=False)
    SafeConsole(file=console.file, width=1000, color_system="auto", highlight=False).print(quota_table(quotas))


@cli.command("reservation")
@click.argument("name", default="")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", help="Output format.")
@click.option("--kubeconfig", help="kubeconfig to use.  [default: that of `up`, KUBECONFIG]")
@state_dir_option
def reservation_command(name: str, output: str, kubeconfig: str | None, state_dir: Path) -> None:
    """Show Reservations: node, phase, what each offers, what its owner pods use, what remains, and when it expires.

    With NAME, also its conditions and its owner pods. Exit status 1 when there is no such Reservation.
    """
    reservations = asyncio.run(fetch_reservations(kubeconfig_path(kubeconfig, state_dir), name))
    if output == "json":
        click.echo(encode(reservations))
        return
    console, now = SafeConsole(highlight=False), SYSTEM_CLOCK.now()
    if not reservations:
        console.print("There are no Reservations.")
        return
    uncut = SafeConsole(file=console.file, width=1000, color_system="auto", highlight=False)
    uncut.print(reservation_table(reservations, now))
    for line in details(reservations[0], now) if name else ():
        console.print(line, markup=False, soft_wrap=True)


cli.add_command(migrations_command)


def _koordlet_url(state_dir: Path) -> str:
    return _settings(state_dir, lambda settings: settings.koordlet_url, DEFAULT_URL)


def _settings(state_dir: Path, value_of: Callable[[NodeSettings], str], default: str) -> str:
    """A value of the node brought up here, else `default`, also when the state is not readable."""
    try:
        settings = load_state(state_dir).settings
    except CtlError:
        return default
    return default if settings is None else value_of(settings)


def print_top(
    top_page: Top, console: Console, *, sort: str = "cpu", namespace: str | None = None, wide: bool = False
) -> None:
    """Print head and table, not cut at the terminal's width, so that culprits are complete."""
    for line in node_lines(top_page):
        console.print(line, markup=False, soft_wrap=True)
    console.print()
    rows = select(top_page.rows, sort=sort, namespace=namespace)
    uncut = SafeConsole(file=console.file, width=1000, color_system="auto", highlight=False)
    uncut.print(table(rows, wide=wide))


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

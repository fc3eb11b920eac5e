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
from control.ctl.node.containers import RUNTIMES
from control.ctl.node.down import down as take_down
from control.ctl.node.parts import Layout
from control.ctl.node.state import Settings
from control.ctl.node.state import load as load_state
from control.ctl.node.status import gather as gather_status
from control.ctl.node.status import show as show_status
from control.ctl.node.up import up as bring_up
from control.ctl.progress import Progress
from control.ctl.views.interference import exit_status, page
from control.ctl.views.koordletclient import DEFAULT_URL, fetch_explanation, fetch_top
from control.ctl.views.overcommit import fetch_node, lending_of
from control.ctl.views.overcommit import page as node_page
from control.ctl.views.placement import DEFAULT_SCHEDULER_URL, fetch_placement, placement_page
from control.ctl.views.toptable import SORTS, node_lines, select, table
from koordlet.api.encoding.wire import encode
from koordlet.api.pages.interference import PodExplained
from koordlet.api.pages.placement import PodPlacement
from koordlet.api.pages.top import Top
from koordlet.app.clock import SYSTEM_CLOCK
from koordlet.version import VERSION

STATE_DIR = Path("/var/lib/koord")

state_dir_option = click.option(
    "--state-dir",
    type=click.Path(path_type=Path, file_okay=False, resolve_path=True),
    default=STATE_DIR,
    show_default=True,
    help="Where a node brought up here keeps state and logs.",
)
_PORT = click.IntRange(0, 65535)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(VERSION, prog_name="koordctl")
def cli() -> None:
    """Bring a co-location node up on this machine, and see who waits for whom."""


@cli.command()
@state_dir_option
@click.option("--node-name", help="Name of the Node.  [default: the hostname]")
@click.option("--cgroup-driver", type=click.Choice(["cgroupfs", "systemd"]), help="Naming of pod cgroups.")
@click.option("--port", "apiserver_port", type=_PORT, help="API server; 0 takes a free one.  [default: 6443]")
@click.option("--kubelet-port", type=_PORT, help="Stand-in kubelet; 0 takes a free one.  [default: 10250]")
@click.option("--koordlet-port", type=_PORT, help="koordlet; 0 takes a free one.  [default: 9316]")
@click.option("--manager-port", type=_PORT, help="The manager's pages; 0 takes a free one.  [default: 9317]")
@click.option("--webhook-port", type=_PORT, help="Its webhooks; 0 takes a free one.  [default: 9876]")
@click.option("--scheduler-port", type=_PORT, help="The scheduler's pages; 0 takes a free one.  [default: 10251]")
@click.option("--runtimeproxy-port", type=_PORT, help="The runtime proxy's page; 0: a free one.  [default: 9318]")
@click.option(
    "--runtime", type=click.Choice(RUNTIMES), help="What pods run as; auto: containerd if it works.  [default: auto]"
)
@click.option("--probes", type=click.Choice(["auto", "core", "bcc", "off"]), help="Where schedule latency comes from.")
@click.option("--bpf-pin-dir", help="Where koordlet pins BPF maps.  [default: /sys/fs/bpf/koordlet]")
@click.option("--report-interval", type=click.IntRange(30), help="Seconds between NodeMetric reports.  [default: 60]")
@click.option("--aggregate-duration", type=click.IntRange(60), help="Seconds NodeMetric averages.  [default: 300]")
@click.option("--without", default="", help="Parts not to start: apiserver, manager, scheduler, kubelet, koordlet.")
def up(state_dir: Path, without: str, **given: Any) -> None:
    """Start API server, manager, scheduler, stand-in kubelet and koordlet on this machine.

    What runs already is left alone, so `up` again heals a part that was killed. Options are remembered: a later `up`
    needs none of them.
    """
    progress = Progress()
    parts = [name.strip() for name in without.split(",") if name.strip()]
    settings = asyncio.run(bring_up(state_dir, given, without=parts, progress=progress))
    for line in how_to_go_on(state_dir, settings):
        progress.say(line)


def how_to_go_on(state_dir: Path, settings: Settings) -> list[str]:
    """What `up` prints last."""
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
@click.option("--purge", is_flag=True, help="Remove the state directory too: all objects, keys and logs.")
def down(state_dir: Path, purge: bool) -> None:
    """Stop what `up` started, and check that nothing is left.

    Pods end with their node. Exit status 1 when a process, cgroup, mount, pinned map or (with --purge) file remains.
    """
    progress = Progress()
    found = take_down(state_dir, purge=purge, progress=progress)
    for line in found.lines():
        (progress.bad if "left:" in line else progress.good)(line)
    if found:
        raise SystemExit(1)


@cli.command()
@state_dir_option
@click.option("--koordlet-url", envvar="KOORDLET_URL", help=f"koordlet to ask.  [default: that of `up`, {DEFAULT_URL}]")
@click.option("--kubeconfig", help="API server to ask.  [default: that of `up`, KUBECONFIG]")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", help="How to print it.")
def status(state_dir: Path, koordlet_url: str | None, kubeconfig: str | None, output: str) -> None:
    """Show parts, probes, missing kernel features, Node and NodeMetric.

    Exit status 1 when a part that was started has ended, or koordlet does not answer.
    """
    known = load_state(state_dir)
    url = koordlet_url or (known.settings.koordlet_url if known.settings is not None else DEFAULT_URL)
    report = asyncio.run(gather_status(state_dir, known, koordlet_url=url, kubeconfig=kubeconfig))
    show_status(report, Console(highlight=False), as_json=output == "json")
    ended = any(part.log and not part.running for part in report.parts)
    if ended or not report.koordlet.reachable:
        raise SystemExit(1)


@cli.command()
@click.option("--once", is_flag=True, help="Print one table and end.")
@click.option("--json", "as_json", is_flag=True, help="Print koordlet's picture as JSON and end; same as -o json.")
@click.option("-o", "--output", type=click.Choice(["json", "wide"]), help="json, or a table with more columns.")
@click.option("--sort", type=click.Choice(SORTS), default="cpu", show_default=True, help="Order of rows.")
@click.option("-n", "--namespace", help="Only this namespace.")
@click.option(
    "-A", "--all-namespaces", is_flag=True, help="All namespaces, and what runs outside Kubernetes (default)."
)
@click.option("--interval", type=click.FloatRange(min=0.2), default=2.0, show_default=True, help="Seconds.")
@click.option("--koordlet-url", envvar="KOORDLET_URL", help=f"koordlet to ask.  [default: that of `up`, {DEFAULT_URL}]")
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
    """Show per container: CPU, memory, pressure, schedule latency, and who makes it wait.

    Needs a running koordlet, with or without Kubernetes. Where the output is no terminal, one table is printed.
    """
    if all_namespaces and namespace is not None:
        raise click.UsageError("-A and -n exclude each other")
    url = koordlet_url or _koordlet_url(state_dir)
    if as_json or output == "json":
        picture = asyncio.run(fetch_top(url))
        picture.rows = select(picture.rows, sort=sort, namespace=namespace)
        click.echo(encode(picture))
    elif once or not sys.stdout.isatty():
        picture = asyncio.run(fetch_top(url))
        print_picture(picture, Console(highlight=False), sort=sort, namespace=namespace, wide=output == "wide")
    else:
        from control.ctl.views.topapp import TopApp  # textual takes 0.3 s to import, which --once need not wait for

        TopApp(
            lambda: fetch_top(url), url, interval=interval, sort=sort, namespace=namespace, wide=output == "wide"
        ).run()


@cli.group()
def explain() -> None:
    """Say why something is slow."""


@explain.command("pod")
@click.argument("name")
@click.option("-n", "--namespace", default="default", show_default=True, help="The pod's namespace.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", help="How to print it.")
@click.option("--exit-code", is_flag=True, help="End with 3 while a neighbour hurts the pod, 4 while it hurts itself.")
@click.option("--koordlet-url", envvar="KOORDLET_URL", help=f"koordlet to ask.  [default: that of `up`, {DEFAULT_URL}]")
@click.option("--scheduler-url", envvar="KOORD_SCHEDULER_URL", help="Scheduler to ask.  [default: that of `up`]")
@click.option("--only", type=click.Choice(["placement", "interference"]), help="Half of it; json has one half.")
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
    """Show why a pod is on its node, or on none, and what hurts it, since when, how much, and because of whom.

    The scheduler is asked for the former, plugin by plugin on the cluster as it is now; the node's koordlet for the
    latter, over the last quarter of an hour. Exit status 1 when neither knows the pod.
    """
    console = Console(highlight=False)
    placed, no_placement = None, None
    if only == "placement" or (only is None and output == "text"):
        try:
            url = scheduler_url or _settings(state_dir, lambda s: s.scheduler_url, DEFAULT_SCHEDULER_URL)
            placed = asyncio.run(fetch_placement(url, namespace, name))
        except CtlError as error:
            no_placement = error
        if placed is None and only == "placement":
            unknown = CtlError(f"the scheduler knows no pod {namespace}/{name}", "Look at its .spec.schedulerName.")
            raise no_placement or unknown
    if placed is not None and output == "json":
        click.echo(encode(placed))
        return
    if placed is not None:
        print_placement(placed, console)
        if only == "placement" or not placed.node:
            return
        console.print()
    try:
        said = asyncio.run(fetch_explanation(koordlet_url or _koordlet_url(state_dir), namespace, name))
    except CtlError as error:
        if placed is None:
            raise
        console.print(f"What hurts it is not known here: {error.message}", style="yellow", soft_wrap=True)
        return
    if output == "json":
        click.echo(encode(said))
    else:
        print_explanation(said, console)
    if exit_code:
        raise SystemExit(exit_status(said))


def print_placement(said: PodPlacement, console: Console) -> None:
    """The scheduler's part of the page."""
    for line in placement_page(said):
        console.print(line, soft_wrap=isinstance(line, Text))


def print_explanation(said: PodExplained, console: Console) -> None:
    """The page, never cut at the width of the terminal."""
    for line in page(said, SYSTEM_CLOCK.now()):
        console.print(line, soft_wrap=True)


@cli.command("node")
@click.argument("name")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", help="How to print it.")
@click.option("--kubeconfig", help="API server to ask.  [default: that of `up`, KUBECONFIG]")
@state_dir_option
def node_command(name: str, output: str, kubeconfig: str | None, state_dir: Path) -> None:
    """Show where a node's capacity goes: prod, reserved, lent to batch and mid pods, and the formulas with numbers.

    Tells what koord-manager wrote, when and why. Exit status 1 when there is no such Node.
    """
    admin = Layout(state_dir).admin_kubeconfig
    asked = kubeconfig or (str(admin) if admin.exists() else None)
    said = lending_of(asyncio.run(fetch_node(asked, name)))
    if output == "json":
        click.echo(encode(said))
        return
    console = Console(highlight=False)
    for line in node_page(said, SYSTEM_CLOCK.now()):
        console.print(line, soft_wrap=True)


def _koordlet_url(state_dir: Path) -> str:
    return _settings(state_dir, lambda settings: settings.koordlet_url, DEFAULT_URL)


def _settings(state_dir: Path, wanted: Callable[[Settings], str], default: str) -> str:
    """Of the node brought up here, else the default; asking needs no right to read the state."""
    try:
        settings = load_state(state_dir).settings
    except CtlError:
        return default
    return default if settings is None else wanted(settings)


def print_picture(
    picture: Top, console: Console, *, sort: str = "cpu", namespace: str | None = None, wide: bool = False
) -> None:
    """Head and table, never cut at the width of the terminal: a cut culprit is no culprit."""
    for line in node_lines(picture):
        console.print(line, markup=False, soft_wrap=True)
    console.print()
    rows = select(picture.rows, sort=sort, namespace=namespace)
    uncut = Console(file=console.file, width=1000, color_system="auto", highlight=False)
    uncut.print(table(rows, wide=wide))


def main() -> int:
    """Exit status: 0, 1 for a failure that is explained, 2 for a wrong command line, 130 for Ctrl-C."""
    try:
        cli.main(standalone_mode=False)
    except CtlError as error:
        Console(stderr=True, highlight=False).print(f"koordctl: {error}", markup=False, soft_wrap=True)
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

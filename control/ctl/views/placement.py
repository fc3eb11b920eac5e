"""`koordctl explain pod`, the scheduler's part: which node lost or won and why, plugin by plugin.

Judged by the scheduler on the cluster as it is now; nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import aiohttp
from rich.table import Table
from rich.text import Text

from control.ctl.errors import CtlError
from koordlet.api.encoding.wire import WireError, decode
from koordlet.api.pages.placement import NodeScored, NodesRefused, PodPlacement

DEFAULT_SCHEDULER_URL = "http://127.0.0.1:10251"
TIMEOUT = aiohttp.ClientTimeout(total=4.0)
STATES = {
    "placed": "runs on",
    "assumed": "is being bound to",
    "active": "is about to be scheduled",
    "out": "is being scheduled right now",
    "backoff": "waits a little before it is tried again",
    "error": "waits a little after an error before it is tried again",
    "unschedulable": "waits for something that lets it fit",
    "gated": "is kept out of the queue",
}


async def fetch_placement(url: str, namespace: str, pod: str) -> PodPlacement | None:
    """None for a pod that this scheduler does not know. Raises CtlError when no scheduler answers."""
    address = f"{url.rstrip('/')}/apis/v1/explain/{quote(namespace, safe='')}/{quote(pod, safe='')}"
    hint = "Start one with `koordctl up`, or give --scheduler-url as http://HOST:PORT of the replica that leads."
    try:
        async with aiohttp.ClientSession(timeout=TIMEOUT) as session, session.get(address) as response:
            status, body = response.status, await response.read()
    except aiohttp.InvalidURL as error:
        raise CtlError(f"{url!r} is not a URL", hint) from error
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise CtlError(f"no scheduler answers at {url}: {str(error) or type(error).__name__}", hint) from error
    if status == 404:
        return None
    if status != 200:
        raise CtlError(f"the scheduler at {url} answers HTTP {status}: {body[:200].decode(errors='replace')}", hint)
    try:
        return decode(body, PodPlacement, where=address)
    except WireError as error:
        raise CtlError(f"{error}: is it a koord-scheduler?", hint) from error


def placement_page(said: PodPlacement) -> Iterator[Text | Table]:
    """What to print, top to bottom."""
    where = f" {said.node}" if said.node else ""
    yield Text.assemble((said.pod, "bold"), f" {STATES.get(said.state, said.state)}{where}", _attempts(said))
    if said.gated_by:
        yield Text(f"  Kept out by {said.gated_by}.")
    if said.nominated:
        yield Text(f"  Room is being made for it on {said.nominated}.")
    if said.message:
        yield Text(f"  {said.message}", style="yellow")
    if said.rejected_by:
        yield Text(f"  Tried again when something changes for {', '.join(said.rejected_by)}, or after 5 minutes.")
    if said.scored:
        fit = "1 fits" if said.feasible == 1 else f"{said.feasible} fit"
        now = ", were it placed now" if said.node else ""
        yield Text(f"\nOf {said.nodes} nodes {fit}{now}; weighted scores by plugin:")
        yield _scores(said.scored, said.node)
    if said.refused:
        yield Text("\nNodes that do not fit, and who says so:")
        yield _refusals(said.refused)


def _attempts(said: PodPlacement) -> str:
    return f" ({said.attempts} attempt{'s' if said.attempts != 1 else ''})" if said.attempts else ""


def _scores(scored: list[NodeScored], own: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    plugins = sorted({name for one in scored for name, score in one.scores.items() if score})
    table.add_column("")
    table.add_column("NODE")
    for name in ("TOTAL", *plugins):
        table.add_column(name, justify="right")
    for one in scored:
        cells = [str(one.scores.get(name, 0)) for name in plugins]
        table.add_row("→" if one.node == own else "", one.node, str(one.total), *cells)
    return table


def _refusals(refused: list[NodesRefused]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("NODES", "PLUGIN", "REASON", "PREEMPTION", "SUCH AS"):
        table.add_column(name, justify="right" if name == "NODES" else "left", overflow="fold")
    for one in refused:
        helps = "might help" if one.preemption_might_help else "can't help"
        table.add_row(str(one.count), one.plugin or "-", one.reason, helps, ", ".join(one.nodes[:3]))
    return table

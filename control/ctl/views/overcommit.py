"""`koordctl node NAME`: where a node's capacity goes, and the formulas with their numbers.

Everything comes from the Node: what it holds now, and the manager's explanation, which was written together with the
amounts (`koordlet.api.pages.overcommit`). Nothing is worked out anew, so what is shown is what happened. `page` is
pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec
from rich.text import Text

from control.ctl import text
from control.ctl.errors import CtlError
from koordlet.api import names
from koordlet.api.core import Node
from koordlet.api.encoding.quantity import Quantity
from koordlet.api.encoding.wire import WireError
from koordlet.api.pages.overcommit import (
    DISABLED,
    OVERCOMMIT,
    OVERCOMMIT_REASONS,
    BatchTerms,
    MidTerms,
    OvercommitExplanation,
)
from koordlet.api.sloconfig.colocation import REQUEST, USAGE
from koordlet.kube import Client, Config, KubeError, NotFound

ASK_SECONDS: Final = 5.0
RESOURCES: Final = ("cpu", "memory")
_ON_NODE: Final = {
    "batch": (names.RESOURCE_BATCH_CPU, names.RESOURCE_BATCH_MEMORY),
    "mid": (names.RESOURCE_MID_CPU, names.RESOURCE_MID_MEMORY),
}
_WIDTH: Final = 24
_LABEL: Final = 30


class NodeLending(msgspec.Struct, rename="camel", omit_defaults=True):
    """What `-o json` prints; amounts in milli-cores and bytes."""

    node: str
    capacity: dict[str, int] = {}
    allocatable: dict[str, int] = {}
    batch: dict[str, int] = {}
    mid: dict[str, int] = {}
    lending: OvercommitExplanation | None = None
    """None: no manager has written to this node"""


async def fetch_node(kubeconfig: str | None, name: str) -> Node:
    """Raises CtlError."""
    try:
        async with Client(Config.load(kubeconfig, user_agent="koordctl", timeout=ASK_SECONDS)) as client:
            return await client.get(Node, name)
    except NotFound as error:
        raise CtlError(f"there is no Node {name}", "`kubectl get nodes` lists those there are") from error
    except KubeError as error:
        raise CtlError(f"cannot ask for Node {name}: {error}", "--kubeconfig or KUBECONFIG says whom to ask") from error


def lending_of(node: Node) -> NodeLending:
    """The facts of the page. Raises CtlError when the manager's annotation cannot be read."""
    try:
        lending = OVERCOMMIT.get(node.metadata.annotations)
    except WireError as error:
        raise CtlError(f"Node {node.metadata.name}: {error}") from error
    status = node.status
    return NodeLending(
        node=node.metadata.name,
        capacity=_amounts(status.capacity, RESOURCES),
        allocatable=_amounts(status.allocatable, RESOURCES),
        batch=_amounts(status.allocatable, _ON_NODE["batch"]),
        mid=_amounts(status.allocatable, _ON_NODE["mid"]),
        lending=lending,
    )


def _amounts(resources: dict[str, Quantity], wanted: tuple[str, ...]) -> dict[str, int]:
    """By cpu and memory; batch-cpu and mid-cpu count milli-cores already."""
    return {
        short: resources[name].milli_value() if name == "cpu" else resources[name].value()
        for short, name in zip(RESOURCES, wanted, strict=True)
        if name in resources
    }


def page(said: NodeLending, now: float) -> Iterator[Text]:
    """Lines of the whole page; `now` is Unix time."""
    yield Text(f"node {said.node}", style="bold")
    lending = said.lending
    if lending is None:
        yield Text("No manager has written to it: co-location is off, or koord-manager does not run.", style="yellow")
        yield from _where(said, None)
        return
    good = lending.reason in OVERCOMMIT_REASONS
    style = "green" if lending.reason == "AsMeasured" else "yellow" if good else "red"
    yield Text(headline(lending), style=f"bold {style}")
    yield Text(_when(lending, now), style="dim")
    yield from _where(said, lending)
    if lending.batch or lending.mid:
        yield Text()
        yield Text("how it was worked out", style="bold")
    for name, batch in lending.batch.items():
        yield from _batch(name, batch, lending)
    for name, mid in lending.mid.items():
        yield from _mid(name, mid)


def headline(lending: OvercommitExplanation) -> str:
    """The reason in a sentence."""
    if lending.reason in OVERCOMMIT_REASONS:
        held = {name: hold for name, hold in lending.hold.items() if hold.percent < 100}
        if not held:
            return "Lends what was measured to be free."
        parts = [f"{hold.percent} % of its {name} ({hold.because})" for name, hold in held.items()]
        return f"Lends only {', '.join(parts)}."
    return f"Lends nothing: {lending.message}."


def _when(lending: OvercommitExplanation, now: float) -> str:
    parts = []
    if lending.at is not None:
        parts.append(f"written {text.age(now - lending.at.unix)} ago")
    if lending.reported is not None and lending.reason != DISABLED:
        parts.append(f"from a report made {text.age(now - lending.reported.unix)} ago")
    return ", ".join(parts)


def _where(said: NodeLending, lending: OvercommitExplanation | None) -> Iterator[Text]:
    """A table of amounts, each with its part of capacity as a bar."""
    batch = lending.batch if lending is not None else {}
    rows: list[tuple[str, dict[str, int]]] = [("capacity", said.capacity), ("allocatable", said.allocatable)]
    if batch:
        rows += [
            ("reserved by kubelet, annotation", {name: one.reserved for name, one in batch.items()}),
            ("used by the system", {name: one.measured_system for name, one in batch.items()}),
            ("requested by prod and mid pods", {name: one.high_request for name, one in batch.items()}),
            ("used by prod and mid pods", {name: one.high_used for name, one in batch.items()}),
            ("kept free", {name: max(one.margin, 0) for name, one in batch.items()}),
        ]
    rows += [("lent to batch pods", said.batch), ("lent to mid pods", said.mid)]
    yield Text()
    yield Text(f"{'where it goes':<{_LABEL + 2}}{'cpu':>8}  {'':<{_WIDTH}}{'memory':>8}", style="bold")
    for label, amounts in rows:
        cells = []
        for name in RESOURCES:
            amount, whole = amounts.get(name), said.capacity.get(name) or 0
            share = amount / whole if amount is not None and whole else None
            filled = text.bar(share, _WIDTH - 8).rstrip()
            sign = f"{text.percent(share):>4} %" if share is not None else ""
            cells.append(f"{show(name, amount):>8}  {f'{sign} {filled}':<{_WIDTH}}")
        yield Text(f"{label:<{_LABEL + 2}}{''.join(cells)}".rstrip())


def show(resource: str, amount: int | None) -> str:
    """Cores to the digit, so that the formula adds up, or bytes as people read them."""
    if amount is None:
        return text.ABSENT
    return f"{amount / 1000:.3f}".rstrip("0").rstrip(".") if resource == "cpu" else text.size(amount)


def _batch(name: str, terms: BatchTerms, lending: OvercommitExplanation) -> Iterator[Text]:
    def put(amount: int) -> str:
        return show(name, amount)

    margin = f"- {put(terms.margin)} kept free" if terms.margin >= 0 else f"+ {put(-terms.margin)} over capacity"
    system = "reserved" if terms.policy == REQUEST else "system"
    yield Text(
        f"  batch-{name}  {put(terms.capacity)} capacity {margin} - {put(terms.system)} {system}"
        f" - {put(terms.high)} prod and mid ({_by(terms.policy)}) = {put(terms.calculated)}"
        + (f", at most {put(terms.limit)}" if terms.limit is not None else "")
    )
    steps = []
    if terms.percent != 100:
        hold = lending.hold.get(name)
        steps.append(f"x {terms.percent} % ({hold.because if hold is not None else 'interference'})")
    if terms.normalization is not None:
        steps.append(f"x {terms.normalization:.2f} CPU normalization")
    if terms.third_party:
        steps.append(f"- {put(terms.third_party)} lent to third parties")
    if steps:
        yield Text(f"  {'':<{len(name) + 6}}  {' '.join(steps)} = {put(terms.lent)}")


def _by(policy: str) -> str:
    return {USAGE: "by usage", REQUEST: "by request"}.get(policy, "by usage or request, whichever is more")


def _mid(name: str, terms: MidTerms) -> Iterator[Text]:
    def put(amount: int) -> str:
        return show(name, amount)

    if terms.fixed is not None:
        how = f"{put(terms.fixed)} set aside"
    else:
        how = f"the lesser of {put(terms.reclaimable)} predicted to stay unused and {put(terms.unused)} unused"
        how += f" + {put(terms.share)} of {put(terms.unallocated)} not allocated"
    reduced = f", x {terms.percent} %" if terms.percent != 100 else ""
    yield Text(f"  mid-{name}  {how}, at most {put(terms.limit)}{reduced} = {put(terms.lent)}")

"""`koordctl node NAME`: how a node's capacity is used, and the formulas with their numbers.

All data come from the Node: its present resources, and the manager's explanation, which was written together with the
amounts (`koordlet.api.pages.overcommit`). Nothing is recomputed, so the page shows what happened. `page` is pure.
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
from koordlet.kube import Client, ClientConfig, KubeError, NotFound

REQUEST_TIMEOUT_S: Final = 5.0
RESOURCES: Final = ("cpu", "memory")
_ON_NODE: Final = {
    "batch": (names.RESOURCE_BATCH_CPU, names.RESOURCE_BATCH_MEMORY),
    "mid": (names.RESOURCE_MID_CPU, names.RESOURCE_MID_MEMORY),
}
_WIDTH: Final = 24
_LABEL: Final = 30


class NodeOvercommit(msgspec.Struct, rename="camel", omit_defaults=True):
    """Output of `-o json`; amounts in milli-cores and bytes."""

    node: str
    capacity: dict[str, int] = {}
    allocatable: dict[str, int] = {}
    batch: dict[str, int] = {}
    mid: dict[str, int] = {}
    lending: OvercommitExplanation | None = None
    """None: no manager has written to this node"""


async def fetch_node(kubeconfig: str | None, name: str, context: str | None = None) -> Node:
    """Raises CtlError."""
    try:
        config = ClientConfig.load(kubeconfig, context=context, user_agent="koordctl", timeout=REQUEST_TIMEOUT_S)
        async with Client(config) as client:
            return await client.get(Node, name)
    except NotFound as error:
        raise CtlError(f"there is no Node {name}", "`kubectl get nodes` lists the nodes") from error
    except KubeError as error:
        raise CtlError(
            f"cannot get Node {name}: {error}", "Choose the API server with --kubeconfig or KUBECONFIG."
        ) from error


def overcommit_of(node: Node) -> NodeOvercommit:
    """The data of the page. Raises CtlError when the manager's annotation is invalid."""
    try:
        explanation = OVERCOMMIT.get(node.metadata.annotations)
    except WireError as error:
        raise CtlError(f"Node {node.metadata.name}: {error}") from error
    status = node.status
    return NodeOvercommit(
        node=node.metadata.name,
        capacity=_amounts(status.capacity, RESOURCES),
        allocatable=_amounts(status.allocatable, RESOURCES),
        batch=_amounts(status.allocatable, _ON_NODE["batch"]),
        mid=_amounts(status.allocatable, _ON_NODE["mid"]),
        lending=explanation,
    )


def _amounts(resources: dict[str, Quantity], resource_names: tuple[str, ...]) -> dict[str, int]:
    """Amounts of cpu and memory; batch-cpu and mid-cpu count milli-cores already."""
    return {
        short: resources[name].milli_value() if name == "cpu" else resources[name].value()
        for short, name in zip(RESOURCES, resource_names, strict=True)
        if name in resources
    }


def page(overcommit: NodeOvercommit, now: float) -> Iterator[Text]:
    """Lines of the whole page; `now` is Unix time."""
    yield Text(f"node {overcommit.node}", style="bold")
    explanation = overcommit.lending
    if explanation is None:
        yield Text(
            "No manager has written to it: co-location is disabled, or koord-manager does not run.", style="yellow"
        )
        yield from _where(overcommit, None)
        return
    successful = explanation.reason in OVERCOMMIT_REASONS
    style = "green" if explanation.reason == "AsMeasured" else "yellow" if successful else "red"
    yield Text(headline(explanation), style=f"bold {style}")
    yield Text(_when(explanation, now), style="dim")
    yield from _where(overcommit, explanation)
    if explanation.batch or explanation.mid:
        yield Text()
        yield Text("calculation", style="bold")
    for name, batch in explanation.batch.items():
        yield from _batch(name, batch, explanation)
    for name, mid in explanation.mid.items():
        yield from _mid(name, mid)


def headline(explanation: OvercommitExplanation) -> str:
    """The manager's reason in one sentence."""
    if explanation.reason in OVERCOMMIT_REASONS:
        held = {name: hold for name, hold in explanation.hold.items() if hold.percent < 100}
        if not held:
            return "Overcommits all measured free capacity."
        parts = [f"{hold.percent} % of its {name} ({hold.because})" for name, hold in held.items()]
        return f"Overcommits only {', '.join(parts)}."
    return f"Overcommits nothing: {explanation.message}."


def _when(explanation: OvercommitExplanation, now: float) -> str:
    parts = []
    if explanation.at is not None:
        parts.append(f"written {text.age(now - explanation.at.unix)} ago")
    if explanation.reported is not None and explanation.reason != DISABLED:
        parts.append(f"from a report made {text.age(now - explanation.reported.unix)} ago")
    return ", ".join(parts)


def _where(overcommit: NodeOvercommit, explanation: OvercommitExplanation | None) -> Iterator[Text]:
    """A table of amounts, each with its share of capacity as a bar."""
    batch = explanation.batch if explanation is not None else {}
    rows: list[tuple[str, dict[str, int]]] = [
        ("capacity", overcommit.capacity),
        ("allocatable", overcommit.allocatable),
    ]
    if batch:
        rows += [
            ("reserved by kubelet, annotation", {name: terms.reserved for name, terms in batch.items()}),
            ("used by the system", {name: terms.measured_system for name, terms in batch.items()}),
            ("requested by prod and mid pods", {name: terms.high_request for name, terms in batch.items()}),
            ("used by prod and mid pods", {name: terms.high_used for name, terms in batch.items()}),
            ("kept free", {name: max(terms.margin, 0) for name, terms in batch.items()}),
        ]
    rows += [("overcommitted to batch pods", overcommit.batch), ("overcommitted to mid pods", overcommit.mid)]
    yield Text()
    yield Text(f"{'use of capacity':<{_LABEL + 2}}{'cpu':>8}  {'':<{_WIDTH}}{'memory':>8}", style="bold")
    for label, amounts in rows:
        cells = []
        for name in RESOURCES:
            amount, whole = amounts.get(name), overcommit.capacity.get(name) or 0
            share = amount / whole if amount is not None and whole else None
            filled = text.bar(share, _WIDTH - 8).rstrip()
            sign = f"{text.percent(share):>4} %" if share is not None else ""
            cells.append(f"{show(name, amount):>8}  {f'{sign} {filled}':<{_WIDTH}}")
        yield Text(f"{label:<{_LABEL + 2}}{''.join(cells)}".rstrip())


def show(resource: str, amount: int | None) -> str:
    """Exact cores, so that the formula adds up, or bytes with a suffix."""
    if amount is None:
        return text.ABSENT
    return f"{amount / 1000:.3f}".rstrip("0").rstrip(".") if resource == "cpu" else text.size(amount)


def _batch(name: str, terms: BatchTerms, explanation: OvercommitExplanation) -> Iterator[Text]:
    def amount(value: int) -> str:
        return show(name, value)

    margin = f"- {amount(terms.margin)} kept free" if terms.margin >= 0 else f"+ {amount(-terms.margin)} over capacity"
    system = "reserved" if terms.policy == REQUEST else "system"
    yield Text(
        f"  batch-{name}  {amount(terms.capacity)} capacity {margin} - {amount(terms.system)} {system}"
        f" - {amount(terms.high)} prod and mid ({_by(terms.policy)}) = {amount(terms.calculated)}"
        + (f", at most {amount(terms.limit)}" if terms.limit is not None else "")
    )
    steps = []
    if terms.percent != 100:
        hold = explanation.hold.get(name)
        steps.append(f"x {terms.percent} % ({hold.because if hold is not None else 'interference'})")
    if terms.normalization is not None:
        steps.append(f"x {terms.normalization:.2f} CPU normalization")
    if terms.third_party:
        steps.append(f"- {amount(terms.third_party)} given to third parties")
    if steps:
        yield Text(f"  {'':<{len(name) + 6}}  {' '.join(steps)} = {amount(terms.lent)}")


def _by(policy: str) -> str:
    return {USAGE: "by usage", REQUEST: "by request"}.get(policy, "by the larger of usage and request")


def _mid(name: str, terms: MidTerms) -> Iterator[Text]:
    def amount(value: int) -> str:
        return show(name, value)

    if terms.fixed is not None:
        how = f"{amount(terms.fixed)} reserved"
    else:
        how = f"the smaller of {amount(terms.reclaimable)} predicted to stay unused and {amount(terms.unused)} unused"
        how += f" + {amount(terms.share)} of {amount(terms.unallocated)} unallocated"
    reduced = f", x {terms.percent} %" if terms.percent != 100 else ""
    yield Text(f"  mid-{name}  {how}, at most {amount(terms.limit)}{reduced} = {amount(terms.lent)}")

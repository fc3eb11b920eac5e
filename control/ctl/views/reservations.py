"""`koordctl reservation`: Reservations with what they offer, what their owner pods use, and what remains.

All data come from the objects: the scheduler that leads keeps their status up to date. Everything but `fetch` is pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from rich.table import Table

from control.ctl import text
from control.ctl.errors import CtlError
from control.quota.amounts import quantity
from control.reservation.amounts import available, bounded
from control.reservation.expiry import expiry
from control.reservation.model import parse
from koordlet.api.crs.reservation import AVAILABLE, FAILED, PENDING, SUCCEEDED, Reservation
from koordlet.kube import Client, ClientConfig, KubeError, NotFound

REQUEST_TIMEOUT_S: Final = 5.0
ABSENT: Final = "-"
MAX_LISTED_OWNERS: Final = 50
_STYLES: Final = {PENDING: "yellow", FAILED: "red", SUCCEEDED: "dim"}


async def fetch_reservations(kubeconfig: str | None, name: str = "", context: str | None = None) -> list[Reservation]:
    """All of them by name, or only the one that is named. Raises CtlError."""
    try:
        config = ClientConfig.load(kubeconfig, context=context, user_agent="koordctl", timeout=REQUEST_TIMEOUT_S)
        async with Client(config) as client:
            if name:
                return [await client.get(Reservation, name)]
            return sorted(await client.list(Reservation), key=lambda reservation: reservation.metadata.name)
    except NotFound as error:
        missing = f"there is no Reservation {name}" if name else "the cluster has no Reservations"
        hint = "List all with `koordctl reservation`." if name else "Install the CRDs of deploy/crds."
        raise CtlError(missing, hint) from error
    except KubeError as error:
        raise CtlError(
            f"cannot read Reservations: {error}", "Choose the API server with --kubeconfig or KUBECONFIG."
        ) from error


def reservation_table(reservations: Sequence[Reservation], now: float) -> Table:
    """One line per Reservation and resource. `now`: Unix seconds."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("RESERVATION", "NODE", "PHASE", "RESOURCE"):
        table.add_column(column)
    for column in ("ALLOCATABLE", "ALLOCATED", "REMAINING", "OWNERS", "AGE", "EXPIRES"):
        table.add_column(column, justify="right")
    for reservation in reservations:
        style = _STYLES.get(phase(reservation))
        head = [reservation.metadata.name, reservation.status.node_name or ABSENT, phase(reservation)]
        tail = [str(len(reservation.status.current_owners)), age(reservation, now), expires(reservation, now)]
        for row in resource_rows(reservation) or [[ABSENT] * 4]:
            table.add_row(*head, *row, *tail, style=style)
            head, tail = [""] * len(head), [""] * len(tail)
    return table


def phase(reservation: Reservation) -> str:
    return reservation.status.phase or PENDING


def resource_rows(reservation: Reservation) -> list[list[str]]:
    """(resource, offered, used by owners, remaining) by resource. Only an available Reservation has anything left."""
    model = parse(reservation)
    used = bounded(reservation.status.allocated)
    left = available(model.amounts, used, model.inner_reserved) if reservation.status.phase == AVAILABLE else {}
    return [
        [
            name,
            str(quantity(name, amount)),
            str(quantity(name, used.get(name, 0))),
            str(quantity(name, left[name])) if name in left else ABSENT,
        ]
        for name, amount in sorted(model.amounts.items())
    ]


def age(reservation: Reservation, now: float) -> str:
    created = reservation.metadata.creation_timestamp
    return text.age(None if created is None else now - created.unix)


def expires(reservation: Reservation, now: float) -> str:
    """Time until it expires; `-` if it has ended, `never`."""
    if phase(reservation) in (FAILED, SUCCEEDED):
        return ABSENT
    moment = expiry(reservation)
    return "never" if moment is None else text.age(moment - now) if moment > now else "now"


def details(reservation: Reservation, now: float) -> Iterator[str]:
    """Lines below the table of one Reservation: policy, problem, conditions, owner pods."""
    spec, status = reservation.spec, reservation.status
    model = parse(reservation)
    once = "for one pod" if model.allocate_once else "for several pods"
    yield ""
    yield f"Policy {spec.allocate_policy or 'Default'}, {once}" + (", no new pods" if model.unschedulable else "")
    if model.problem:
        yield f"Invalid: {model.problem}"
    for condition in status.conditions:
        since = condition.last_transition_time or condition.last_probe_time
        when = f" since {text.age(now - since.unix)}" if since is not None else ""
        shown = ": ".join(filter(None, (condition.reason, condition.message)))
        yield f"{condition.type}={condition.status}{when}: {shown}"
    for owner in status.current_owners[:MAX_LISTED_OWNERS]:
        yield f"Owner {owner.namespace}/{owner.name}"
    if len(status.current_owners) > MAX_LISTED_OWNERS:
        yield f"and {len(status.current_owners) - MAX_LISTED_OWNERS} more owners"

"""`koordctl quota`: the tree of ElasticQuotas with what each may use and uses, from the scheduler that leads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import aiohttp
from rich.table import Table

from control.ctl.errors import CtlError
from control.ctl.views.schedulerclient import fetch_page
from koordlet.api.names import ROOT_QUOTA
from koordlet.api.pages.quotas import PageAmounts, QuotaPage

COLUMNS = ("MIN", "MAX", "REQUEST", "USED", "RUNTIME", "GUARANTEED")
ABSENT = "-"
UNLIMITED = "unlimited"
_LARGEST = f"{2**63 - 1}"
"""The built-in quotas' maximum, in units or thousandths of a core."""

Quotas = Mapping[str, QuotaPage]


async def fetch_quotas(url: str, name: str = "", session: aiohttp.ClientSession | None = None) -> dict[str, QuotaPage]:
    """All quotas; with `name` only those below it, with it. Raises CtlError."""
    quotas = await fetch_page(url, "/apis/v1/plugins/ElasticQuota/quotas", dict[str, QuotaPage], session)
    if quotas is None:
        raise CtlError("the scheduler has no quotas", "Enable the plugin ElasticQuota in its configuration.")
    if not name:
        return quotas
    if name not in quotas:
        raise CtlError(f"there is no ElasticQuota {name}", "List all with `koordctl quota`.")
    return {quota.name: quota for quota in quotas.values() if _below(quotas, quota, name)}


def quota_table(quotas: Quotas) -> Table:
    """One line per quota and resource, children below their parents."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("QUOTA")
    table.add_column("RESOURCE")
    for column in COLUMNS:
        table.add_column(column, justify="right")
    for depth, quota in lines(quotas):
        title = "  " * depth + quota.name
        for resource in sorted(quota.max) or [ABSENT]:
            style = "yellow" if _over(quota, resource) else None
            table.add_row(title, resource, *cells(quota, resource), style=style)
            title = ""
    return table


def lines(quotas: Quotas) -> Iterator[tuple[int, QuotaPage]]:
    """(depth, quota) from the roots down, by tree and name. Quotas in a cycle, or below a missing parent, are roots."""
    below: dict[str, list[QuotaPage]] = {}
    for quota in sorted(quotas.values(), key=lambda quota: (quota.tree, quota.name)):
        known = quota.parent_name in quotas and quota.parent_name != quota.name
        below.setdefault(quota.parent_name if known else ROOT_QUOTA, []).append(quota)
    seen: set[str] = set()
    for root in (*below.get(ROOT_QUOTA, ()), *quotas.values()):
        stack = [(0, root)]
        while stack:
            depth, quota = stack.pop()
            if quota.name not in seen:
                seen.add(quota.name)
                yield depth, quota
                stack += [(depth + 1, child) for child in reversed(below.get(quota.name, ()))]


def cells(quota: QuotaPage, resource: str) -> list[str]:
    """The figures of one resource, in the order of COLUMNS."""
    lists: tuple[PageAmounts, ...] = (
        quota.min,
        quota.max,
        quota.request,
        quota.used,
        quota.runtime,
        quota.guaranteed,
    )
    texts = [amounts.get(resource, ABSENT) for amounts in lists]
    return [UNLIMITED if text.removesuffix("m") == _LARGEST else text for text in texts]


def _over(quota: QuotaPage, resource: str) -> bool:
    """Whether the quota uses all that it may use and requests more."""
    used, runtime, request = (amounts.get(resource, "") for amounts in (quota.used, quota.runtime, quota.request))
    return used == runtime != request


def _below(quotas: Quotas, quota: QuotaPage, top: str) -> bool:
    """Whether `quota` is `top` or one of its descendants."""
    seen: set[str] = set()
    name = quota.name
    while name in quotas and name not in seen:
        if name == top:
            return True
        seen.add(name)
        name = quotas[name].parent_name
    return False

"""Short ways to write quotas and pods of quotas in plain numbers (cpu in milli-cores)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping

from control.quota.amounts import Amounts, to_list
from control.quota.figures import QuotaPod, RuntimeRules
from control.quota.forest import ForestRules, QuotaForest
from control.quota.info import QuotaInfo
from koordlet.api import names

_uids = itertools.count(1)


def quota(
    name: str,
    parent: str = names.ROOT_QUOTA,
    *,
    min: Mapping[str, int] | int = 0,
    max: Mapping[str, int] | int = 10**9,
    weight: Mapping[str, int] | int | None = None,
    **more: object,
) -> QuotaInfo:
    """Numbers without a resource are those of memory."""
    limit = to_list(_amounts(max))
    return QuotaInfo(
        name=name,
        parent=parent,
        min=to_list(_amounts(min)),
        max=limit,
        weight=limit if weight is None else to_list(_amounts(weight)),
        **more,  # type: ignore[arg-type]
    )


def _amounts(value: Mapping[str, int] | int) -> Amounts:
    return {"memory": value} if isinstance(value, int) else dict(value)


def forest(total: Mapping[str, int] | int, infos: Iterable[QuotaInfo], rules: ForestRules | None = None) -> QuotaForest:
    amounts = _amounts(total)
    quotas = QuotaForest(rules, lambda: amounts)
    for info in infos:
        quotas.put(info)
    return quotas


def guaranteeing() -> ForestRules:
    return ForestRules(RuntimeRules(guarantee=True))


def pod(
    label: str,
    request: Mapping[str, int] | int,
    *,
    namespace: str = "default",
    non_preemptible: bool = False,
) -> QuotaPod:
    number = next(_uids)
    return QuotaPod(f"u{number}", f"{namespace}/p{number}", label, namespace, _amounts(request), non_preemptible)


def submit(
    quotas: QuotaForest, label: str, request: Mapping[str, int] | int, *, assigned: bool = False, **more: object
) -> str:
    submitted = pod(label, request, **more)  # type: ignore[arg-type]
    quotas.set_pod(submitted)
    quotas.assign(submitted.uid, assigned)
    return submitted.uid


def runtime(quotas: QuotaForest, name: str, resource: str = "memory") -> int:
    figures = quotas.get(name)
    assert figures is not None
    return quotas.tree(figures).runtime(figures, resource)


def figure(forest: QuotaForest, name: str, field: str, resource: str = "memory") -> int:
    figures = forest.get(name)
    assert figures is not None
    amounts: Amounts = getattr(figures, field)
    return amounts.get(resource, 0)

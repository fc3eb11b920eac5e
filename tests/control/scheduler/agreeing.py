"""Runs the product's cycle and a plain one for a pod, and compares their results."""

from __future__ import annotations

import msgspec

from control.scheduler.cycle.cycle import Cycle
from control.scheduler.cycle.failures import FitError
from control.scheduler.cycle.placement import Placement
from control.scheduler.framework.plugin import CycleState
from koordlet.api.core import Pod
from tests.control.scheduler.build import Cluster
from tests.control.scheduler.plain.whole import PlainCycle
from tests.control.scheduler.plain.world import World
from tests.control.scheduler.toys import evaluated


def agree(cycle: Cycle, cluster: Cluster, pod: Pod, world: World, plain: PlainCycle) -> Placement | None:
    """Where the pod was placed; None: nowhere.

    Both must agree on every node: fits or not, who refuses it, with which words; on the total of every node that fits;
    and the product must choose one of the best."""
    names, expected = cluster.table.names, plain.feasible(pod, world)
    info = cluster.info(pod)
    if not any(refusal is None for refusal in expected.values()):
        try:
            cycle.place(info)
        except FitError as failure:
            statuses = {names[row]: status for row, status in failure.statuses()}
            assert {n: (s.plugin, s.code_name, s.reasons) for n, s in statuses.items()} == expected
            assert (failure.pre_filter is not None) == (plain.at_once(pod, world) is not None)
            return None
        raise AssertionError(f"placed on {names[info.row]} although {expected}")
    preferred = plain.preferred(pod, world)
    fits = sorted(n for n, refusal in expected.items() if refusal is None and preferred in (None, n))
    state = CycleState()
    rows, _ = cycle._pre_filter(state, info)
    feasible, totals_of = evaluated(cycle, state, info, rows)
    assert sorted(names[row] for row in feasible) == fits
    best = fits
    if len(fits) > 1:
        totals = plain.totals(pod, world)
        computed = totals_of()
        assert {names[row]: int(total) for row, total in zip(feasible, computed, strict=True)} == totals
        best = [name for name, total in totals.items() if total == max(totals.values())]
    placement = cycle.place(info)
    assert placement.node in best
    return placement


def on(pod: Pod, name: str) -> Pod:
    """The pod, bound to a node."""
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name=name))

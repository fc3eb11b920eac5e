"""Runs the filter and score of a plugin on every node of a cluster, for all rows at once and per row."""

from __future__ import annotations

import numpy as np

from control.scheduler.framework.plugin import CycleState, Plugin
from control.scheduler.framework.status import PluginStatus
from control.scheduler.plugins.results import MAX_SCALAR_ROWS
from control.scheduler.state.pods import PodInfo
from koordlet.api.core import Pod
from tests.control.scheduler.build import Cluster

Said = tuple[str, tuple[str, ...]] | None


def text_of(status: PluginStatus) -> Said:
    return None if status.ok or status.skipped else (status.code_name, status.reasons)


def filtered(plugin: Plugin, cluster: Cluster, pod: Pod | PodInfo) -> dict[str, Said]:
    """Node -> result, including PreFilter. The results for all rows, single rows and pairs of rows must be equal."""
    info = pod if isinstance(pod, PodInfo) else cluster.info(pod)
    state = CycleState()
    table = cluster.table
    before = plugin.pre_filter(state, info)
    rows = [row for row in range(table.size) if table.valid[row]]
    if before.status.skipped:
        return {table.names[row]: None for row in rows}
    if not before.status.ok:
        return {table.names[row]: text_of(before.status) for row in rows}
    whole = plugin.filter(state, info, table.all)
    assert whole.dtype == np.int16
    assert len(whole) == table.size
    for group in ([row] for row in rows):
        few = plugin.filter(state, info, np.array(group, np.intp))
        assert few.dtype == np.int16
        assert [plugin.reasons.status(n) for n in few] == [plugin.reasons.status(whole[row]) for row in group]
    every = plugin.filter(state, info, np.array(rows, np.intp))
    assert every.tolist() == whole[rows].tolist()
    many = rows * (MAX_SCALAR_ROWS // max(len(rows), 1) + 1)
    assert plugin.filter(state, info, np.array(many, np.intp)).tolist() == whole[many].tolist()
    return {table.names[row]: text_of(plugin.reasons.status(whole[row])) for row in rows}


def scored(plugin: Plugin, cluster: Cluster, pod: Pod | PodInfo, *names: str) -> dict[str, int] | None:
    """Node -> final score, for the named nodes as the feasible ones (none: all). None: skipped."""
    info = pod if isinstance(pod, PodInfo) else cluster.info(pod)
    state = CycleState()
    table = cluster.table
    plugin.pre_filter(state, info)
    rows = np.array(sorted(table.rows[n] for n in names) if names else np.flatnonzero(table.valid), np.intp)
    if plugin.pre_score(state, info, rows).skipped:
        return None
    raw = plugin.score(state, info, table.all)
    assert raw.dtype == np.int64
    assert len(raw) == table.size
    assert plugin.score(state, info, rows).tolist() == raw[rows].tolist()
    many = np.tile(rows, MAX_SCALAR_ROWS // max(len(rows), 1) + 1)
    assert plugin.score(state, info, many).tolist() == raw[many].tolist()
    for row in rows:
        assert plugin.score(state, info, np.array([row], np.intp)).tolist() == [raw[row]]
    final = raw[rows]
    if type(plugin).normalize is not Plugin.normalize:
        final = plugin.normalize(state, info, rows, final)
    assert all(0 <= score <= 100 for score in final)
    return dict(zip((table.names[row] for row in rows), final.tolist(), strict=True))

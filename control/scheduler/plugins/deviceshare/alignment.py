"""Devices, CPUs and memory from the same NUMA nodes: hints for NodeNUMAResource, and its choice for devices (spec 06
§3.7)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from control.devices.needs import DeviceNeed
from control.devices.search import DevicesLacking
from control.numa.hints import Hints, ZoneHint
from control.numa.masks import mask_of
from control.scheduler.framework.handle import Handle
from control.scheduler.plugins.deviceshare.book import DeviceBook, need_of_shape
from control.scheduler.plugins.deviceshare.decision import StateDecisions
from control.scheduler.plugins.nodenumaresource.book import NumaBook
from control.scheduler.plugins.nodenumaresource.equalrows import equal_rows
from control.scheduler.plugins.nodenumaresource.needs import ProvidedHints
from control.scheduler.state.columns import IntArray, RowArray
from control.scheduler.state.credit import Offer
from control.scheduler.state.pods import PodInfo, Shape
from koordlet.api.annotations.scheduling import NUMA_TOPOLOGY_SPEC
from koordlet.api.devicerequest import DeviceRequestError
from koordlet.api.encoding.wire import WireError


class NumaAlignment:
    """Of one profile. Does nothing if the profile lacks NodeNUMAResource, or with `disabled`."""

    def __init__(self, book: DeviceBook, decisions: StateDecisions, handle: Handle, *, disabled: bool) -> None:
        self._book = book
        self._decisions = decisions
        self._handle = handle
        self._disabled = disabled
        self._numa: NumaBook | None = None

    def connect(self) -> None:
        """All plugins exist."""
        numa = NumaBook.existing(self._handle)
        if self._disabled or numa is None or self._handle.profile not in numa.affinities:
            return
        self._numa = numa
        numa.providers[self._handle.profile] = self._provider
        if self._book.sync not in numa.before_sync:
            numa.before_sync.append(self._book.sync)
            self._book.changed_rows.append(numa.forget)

    def affinity(self, pod: PodInfo, row: int, offer: Offer | None) -> frozenset[int] | None:
        """The NUMA nodes that the pod's devices must be on; None: any."""
        return None if self._numa is None else self._numa.affinities[self._handle.profile](pod, row, offer)

    def policy_positions(self, pod: PodInfo, rows: RowArray) -> RowArray:
        """Positions of the rows with a NUMA topology policy, of the node or of the pod."""
        if self._numa is None:
            return np.zeros(0, np.intp)
        if NUMA_TOPOLOGY_SPEC.get(pod.shape.annotations).numa_topology_policy:
            return np.arange(len(rows))
        return np.flatnonzero(self._numa.columns.numa_policy.data[rows])

    def kinds(self, rows: RowArray) -> tuple[IntArray, IntArray]:
        """(position of one row of each kind, [row]: number of its kind): rows of a kind have the same NUMA nodes for a
        pod, and equal devices. Only for rows with a policy."""
        assert self._numa is not None
        return equal_rows(self._numa, rows, self._book.columns.state.data[rows])

    def _provider(self, shape: Shape) -> ProvidedHints | None:
        try:
            need = need_of_shape(shape)
        except (DeviceRequestError, WireError):  # rejected at PreFilter
            return None
        return DeviceNumaHints(self._book, self._decisions, need) if need.requests else None


class DeviceNumaHints:
    """`ProvidedHints` for one need. Those of the same need are equal."""

    def __init__(self, book: DeviceBook, decisions: StateDecisions, need: DeviceNeed) -> None:
        self._book = book
        self._decisions = decisions
        self._need = need

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeviceNumaHints) and (self._need, self._decisions) == (other._need, other._decisions)

    def __hash__(self) -> int:
        return hash(self._need)

    def keys(self, rows: RowArray) -> IntArray:
        states: IntArray = self._book.columns.state.data[rows]
        return states

    def key(self, row: int) -> Hashable:
        return self._book.generation, self._book.columns.state.data.item(row)

    def hints(self, row: int, ids: Sequence[int], offer: Offer | None) -> tuple[Hints, tuple[str, ...]]:
        try:
            sets = self._decisions.hints(self._need, row, offer)
        except DevicesLacking as lacking:
            return {}, (str(lacking),)
        positions = {numa: at for at, numa in enumerate(ids)}
        return {
            kind: [
                ZoneHint(mask_of(positions[numa] for numa in hint.nodes), hint.preferred, hint.score)
                for hint in listed
                if all(numa in positions for numa in hint.nodes)
            ]
            for kind, listed in sets.items()
        }, ()

"""Throttles a culprit's block I/O: by its weight first, and after two steps by a limit as well. Pure.

A weight only has an effect with an I/O scheduler that supports weights (io.cost, BFQ); without a file for weights, the
limit applies at once. The limit is in bytes per second, each way, on every disk of the node, because a culprit's I/O is
known for all disks together. Stock v1 kernels do not apply a parent's limits to its children: there, each container of
the pod gets the limit too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from koordlet.api.sloconfig.interferenceactions import InterferenceAction
from koordlet.audit import pod as about_pod
from koordlet.qosmanager.engine.strategy import Supports
from koordlet.qosmanager.engine.view import NodeView, PodView
from koordlet.qosmanager.throttling.levers import REASON
from koordlet.qosmanager.throttling.state import FULL, ThrottleState
from koordlet.resourceexecutor import DesiredSetting, Setting
from koordlet.resourceexecutor.blockio import BFQ_WEIGHT, WEIGHT

MIN_BASE_BYTES = 1 << 20
"""Per second; a culprit with less I/O counts as having this much."""
LIMITS = ("blkio.throttle.read_bps_device", "blkio.throttle.write_bps_device")
WEIGHTS = (WEIGHT, BFQ_WEIGHT)
IO_SETTINGS = (*WEIGHTS, *LIMITS)
LIMIT_FROM_LEVEL = 60
"""Level from which down the limit applies as well, on kernels with weights."""


class IoLever:
    """`disks` returns their numbers (MAJ:MIN); `flat`: the kernel does not apply a parent's limits to its children."""

    def __init__(self, disks: Callable[[], Collection[str]], supports: Supports, *, flat: bool) -> None:
        self._disks = disks
        self._supports = supports
        self._flat = flat

    def base(self, view: NodeView, pod: PodView) -> int | None:
        """Bytes per second of all its containers; None where they are not measured."""
        rates = [rate for meta in pod.meta.containers if (rate := view.io_now(meta.id)) is not None]
        return max(int(sum(rates)), MIN_BASE_BYTES) if rates else None

    def problem(self, view: NodeView, pod: PodView, action: InterferenceAction) -> str:
        """No disk of the node is known."""
        return "" if self._disks() else "no disk of this node is known"

    def updates(
        self, view: NodeView, pod: PodView, state: ThrottleState, action: InterferenceAction
    ) -> Iterator[DesiredSetting]:
        """For each disk."""
        directory, about = pod.meta.cgroup_dir, about_pod(pod.meta.namespace, pod.meta.name)
        weight = next((file for file in WEIGHTS if self._supports(file, directory)), None)
        below = [container.cgroup_dir for container in pod.meta.containers if container.running] if self._flat else []
        for disk in sorted(self._disks()):
            if weight is not None:
                yield DesiredSetting(Setting(weight, directory, disk), str(max(state.level, 1)), REASON, about=about)
            if weight is None or state.level <= LIMIT_FROM_LEVEL:
                for file in LIMITS:
                    for group in (directory, *below):
                        yield DesiredSetting(Setting(file, group, disk), str(state.value), REASON, about=about)

    def text(self, view: NodeView, state: ThrottleState) -> str:
        """`weight 80` or `4096 KiB per second each way on each disk`"""
        if state.level > LIMIT_FROM_LEVEL:
            return f"weight {state.level} of {FULL} where disks have weights, else {state.value >> 10} KiB per second"
        return f"{state.value >> 10} KiB per second each way on each disk"

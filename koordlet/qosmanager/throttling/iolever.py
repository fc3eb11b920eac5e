"""Holding back a culprit's block I/O: its weight first, and once that took two steps, a limit as well. Pure.

A weight only counts with a scheduler that knows weights (io.cost, BFQ); without a file for it the limit comes at once.
The limit is in bytes a second, each way, on every disk of the node, as what a culprit moves is known of all disks
together. Stock v1 kernels do not pass limits down: there each container of the pod gets it too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from koordlet.api.sloconfig.interferenceactions import InterferenceAction
from koordlet.audit import pod as about_pod
from koordlet.qosmanager.engine.strategy import Supports
from koordlet.qosmanager.engine.view import NodeView, PodView
from koordlet.qosmanager.throttling.level import FREE, Squeeze
from koordlet.qosmanager.throttling.levers import REASON
from koordlet.resourceexecutor import DesiredSetting, Setting
from koordlet.resourceexecutor.blockio import BFQ_WEIGHT, WEIGHT

LEAST_BYTES = 1 << 20
"""A second; one that moves less counts as moving this much."""
LIMITS = ("blkio.throttle.read_bps_device", "blkio.throttle.write_bps_device")
WEIGHTS = (WEIGHT, BFQ_WEIGHT)
IO_SETTINGS = (*WEIGHTS, *LIMITS)
LIMIT_FROM = 60
"""Percent left at which the limit comes in, where weights are there."""


class IoLever:
    """`disks` gives their numbers (MAJ:MIN), `supports` what the kernel has; `flat`: limits are not passed down."""

    def __init__(self, disks: Callable[[], Collection[str]], supports: Supports, *, flat: bool) -> None:
        self._disks, self._supports, self._flat = disks, supports, flat

    def base(self, view: NodeView, pod: PodView) -> int | None:
        """Bytes a second of all its containers; None where nothing counts them."""
        rates = [rate for one in pod.meta.containers if (rate := view.io_now(one.id)) is not None]
        return max(int(sum(rates)), LEAST_BYTES) if rates else None

    def problem(self, view: NodeView, pod: PodView, action: InterferenceAction) -> str:
        """No disk is known."""
        return "" if self._disks() else "no disk of this node is known"

    def updates(
        self, view: NodeView, pod: PodView, held: Squeeze, action: InterferenceAction
    ) -> Iterator[DesiredSetting]:
        """Of each disk."""
        directory, about = pod.meta.cgroup_dir, about_pod(pod.meta.namespace, pod.meta.name)
        weight = next((file for file in WEIGHTS if self._supports(file, directory)), None)
        below = [one.cgroup_dir for one in pod.meta.containers if one.running] if self._flat else []
        for disk in sorted(self._disks()):
            if weight is not None:
                yield DesiredSetting(Setting(weight, directory, disk), str(max(held.level, 1)), REASON, about=about)
            if weight is None or held.level <= LIMIT_FROM:
                for file in LIMITS:
                    for where in (directory, *below):
                        yield DesiredSetting(Setting(file, where, disk), str(held.value), REASON, about=about)

    def words(self, view: NodeView, held: Squeeze) -> str:
        """`weight 80` or `4 MiB a second`"""
        if held.level > LIMIT_FROM:
            return f"weight {held.level} of {FREE} where disks have weights, else {held.value >> 10} KiB a second"
        return f"{held.value >> 10} KiB a second each way on each disk"

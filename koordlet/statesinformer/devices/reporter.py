"""Keeps the Device of this node up to date: its GPUs, other accelerators and RDMA NICs (spec 02 §3.9, 08 §4).

Each round takes the collectors' recent facts and writes the difference to the stored object. If a kind of device has no
recent facts, its stored entries stay for `HOLD_ROUNDS` rounds: a restart of koordlet, or a machine that was suspended,
must not remove a node's GPUs. The limit is in rounds, not in seconds, because the clock also runs during suspension.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from koordlet.api.core import Node
from koordlet.api.crs.device import GPU, RDMA, Device
from koordlet.api.encoding.wire import Time
from koordlet.app.logging import get_logger
from koordlet.kube import Client
from koordlet.prometheus import Registries
from koordlet.statesinformer.devices.patch import new_object, patch_for
from koordlet.statesinformer.devices.status import Inventory, NodeDevices, describe
from koordlet.statesinformer.ownobject import OwnObject

log = get_logger(__name__)

REPORTS_METRIC = "device_reports_total"
HOLD_ROUNDS = 120
"""Consecutive rounds in which a kind may be unknown before it counts as absent: six minutes at the default period, so
that NVML, which is retried every five, has a second attempt."""
KINDS = ("xpus", "gpus", "rdma")
TYPES = frozenset({GPU, RDMA})


class DeviceReporter:
    """Call `report` periodically. Add the informer `stored` to the runner."""

    def __init__(
        self,
        client: Client,
        node_name: str,
        *,
        node: Callable[[], Node | None],
        inventory: Callable[[], Inventory],
        registries: Registries,
        wall: Callable[[], float],
    ) -> None:
        """`node` returns None while it is unknown; `wall` returns seconds since 1970."""
        self._own = OwnObject(client, Device, node_name, registries, reports=REPORTS_METRIC, title="Device")
        self.stored = self._own.stored
        self.problem: str | None = "not read yet"
        """What is unknown; fits `Health.check`."""
        self.status: NodeDevices | None = None
        """The result of the last round."""
        self._node_name = node_name
        self._node = node
        self._inventory = inventory
        self._wall = wall
        self._unknown_rounds = dict.fromkeys(KINDS, 0)
        """Consecutive rounds in which a kind was unknown."""

    async def report(self) -> None:
        """Compute and write; raises KubeError after counting it."""
        node = self._node()
        if node is None:
            self.problem = f"node {self._node_name} is not known yet"
            self._own.count_skipped()
            return
        status = self.status = describe(self._with_absent(self._inventory()), Time.from_unix(self._wall()))
        self.problem = self._held(status)
        for problem in status.problems:
            log.once(f"device:{problem}", "Left out of the node's devices", error=problem)
        await self._own.update(lambda: new_object(node, status), lambda stored: patch_for(stored, status))

    def _held(self, status: NodeDevices) -> str | None:
        """The problem text if the stored object has devices of a type without recent facts."""
        stored = self.stored.object
        stored_types = {device.type for device in stored.spec.devices} if stored else set()
        if not (stored_types & TYPES) - status.types:
            return None
        return f"no recent data of {', '.join(status.unknown)}; keeping the reported devices"

    def _with_absent(self, inventory: Inventory) -> Inventory:
        """Kinds that were unknown for more than `HOLD_ROUNDS` rounds count as absent."""
        absent: dict[str, Any] = {}
        for kind in KINDS:
            known = getattr(inventory, kind) is not None
            self._unknown_rounds[kind] = 0 if known else self._unknown_rounds[kind] + 1
            if self._unknown_rounds[kind] > HOLD_ROUNDS:
                absent[kind] = ()
                log.once(f"device:{kind}", "No recent data of a kind of device, it counts as absent", kind=kind)
        return replace(inventory, **absent)

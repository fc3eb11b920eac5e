"""Keeps the Device of this node up to date: its GPUs, other accelerators and RDMA NICs (spec 02 §3.9, 08 §4).

Every round looks at what the collectors found lately and writes what differs from the stored object. Of a kind that
nobody told of lately the stored entries stay, for `HOLD_ROUNDS` rounds: a restart of koordlet, or a machine that was
suspended, must not take a node's GPUs away. Rounds and not seconds, because the clock runs on while nobody looks.
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
from koordlet.statesinformer.devices.status import DeviceStatus, Inventory, describe
from koordlet.statesinformer.ownobject import OwnObject

log = get_logger(__name__)

REPORTS = "device_reports_total"
HOLD_ROUNDS = 120
"""Rounds in a row in which a kind may be unknown before it counts as not there: six minutes at the usual period, so
that NVML, which is tried every five, has a second try."""
KINDS = ("xpus", "gpus", "rdma")
TYPES = frozenset({GPU, RDMA})


class DeviceReporter:
    """`report` is one round; `stored` must run as a service of its own."""

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
        """`node` answers None while it does not know; `wall` gives seconds since 1970."""
        self._own = OwnObject(client, Device, node_name, registries, reports=REPORTS, title="devices")
        self.stored = self._own.stored
        self.problem: str | None = "not looked at yet"
        """What is not known; fits `Health.check`."""
        self.status: DeviceStatus | None = None
        """What the last round found."""
        self._node_name, self._node, self._inventory, self._wall = node_name, node, inventory, wall
        self._unknown = dict.fromkeys(KINDS, 0)
        """Rounds in a row that a kind was not known."""

    async def report(self) -> None:
        """Look, compute, write; raises what the API server said, after counting it."""
        node = self._node()
        if node is None:
            self.problem = f"node {self._node_name} is not known yet"
            self._own.skipped()
            return
        status = self.status = describe(self._settled(self._inventory()), Time.from_unix(self._wall()))
        self.problem = self._held(status)
        for problem in status.problems:
            log.once(f"device:{problem}", "passed over for the node's devices", error=problem)
        await self._own.bring_up_to_date(lambda: new_object(node, status), lambda found: patch_for(found, status))

    def _held(self, status: DeviceStatus) -> str | None:
        """Why the stored object tells of devices that nobody vouches for now."""
        stored = self.stored.object
        held = {one.type for one in stored.spec.devices if one.type in TYPES} - status.types if stored else None
        return f"nothing is heard of {', '.join(status.unknown)}: what was reported stays for now" if held else None

    def _settled(self, found: Inventory) -> Inventory:
        """Kinds that were unknown for long are not there."""
        gone: dict[str, Any] = {}
        for kind in KINDS:
            known = getattr(found, kind) is not None
            self._unknown[kind] = 0 if known else self._unknown[kind] + 1
            if self._unknown[kind] > HOLD_ROUNDS:
                gone[kind] = ()
                log.once(f"device:{kind}", "nothing is heard of a kind of devices: it counts as not there", kind=kind)
        return replace(found, **gone)

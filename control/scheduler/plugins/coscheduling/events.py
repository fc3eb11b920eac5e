"""Events of pods, Reservations and PodGroups: they update the gang cache, activate members, and inform the PodGroup
controller."""

from __future__ import annotations

from control.reservation.model import RESERVATION
from control.reservation.reservepod import reserve_pod
from control.scheduler.framework.handle import Handle
from control.scheduler.framework.runtime import PluginRuntime
from control.scheduler.plugins.coscheduling import params
from control.scheduler.plugins.coscheduling.cache import GangCache
from control.scheduler.plugins.coscheduling.podgroups import PodGroupController
from control.scheduler.plugins.coscheduling.rounds import GangRounds
from koordlet.api.core import Pod
from koordlet.api.crs.podgroup import PodGroup
from koordlet.api.crs.reservation import Reservation


class GangEvents:
    """The informer handlers of one profile. Without informers, call the methods directly."""

    def __init__(self, gangs: GangCache, rounds: GangRounds, handle: Handle, *, workers: int) -> None:
        """`workers`: number of tasks of the PodGroup controller."""
        self._gangs = gangs
        self._rounds = rounds
        self._runtime = PluginRuntime()
        self._controller: PodGroupController | None = None
        if handle.objects is not None:
            groups = handle.objects.informer(PodGroup)
            groups.add_handler(self.pod_group_set, lambda _, new: self.pod_group_set(new), self.pod_group_deleted)
            handle.objects.informer(Pod).add_handler(self.pod_added, self.pod_updated, self.pod_deleted)
            if handle.client is not None:
                self._controller = PodGroupController(handle.client, groups, workers=workers, clock=handle.clock)

        self._handle = handle

    def connect(self, runtime: PluginRuntime) -> None:
        """See `Plugin.connect`."""
        self._runtime = runtime
        objects = self._handle.objects
        if objects is not None and self._handle.subjects.get(RESERVATION) is not None:
            objects.informer(Reservation).add_handler(
                self.reservation_added, self.reservation_updated, self.reservation_deleted
            )

    async def start(self) -> None:
        if self._controller is not None:
            await self._controller.start()

    async def stop(self) -> None:
        if self._controller is not None:
            await self._controller.stop()

    def pod_added(self, pod: Pod) -> None:
        self.activate(self._gangs.pod_added(pod))
        self._queue_pod_group(pod)

    def pod_updated(self, old: Pod, new: Pod) -> None:
        self.activate(self._gangs.pod_updated(old, new))
        self._queue_pod_group(new)

    def pod_deleted(self, pod: Pod) -> None:
        self._rounds.binding_ended(pod.metadata.uid)
        self.activate(self._gangs.pod_deleted(pod))
        self._queue_pod_group(pod)

    def reservation_added(self, new: Reservation) -> None:
        """A Reservation is a member like a pod, by the labels and annotations of its reserve pod."""
        self.activate(self._gangs.pod_added(reserve_pod(new), RESERVATION))

    def reservation_updated(self, old: Reservation, new: Reservation) -> None:
        self.activate(self._gangs.pod_updated(reserve_pod(old), reserve_pod(new), RESERVATION))

    def reservation_deleted(self, old: Reservation) -> None:
        self._rounds.binding_ended(old.metadata.uid)
        self.activate(self._gangs.pod_deleted(reserve_pod(old), RESERVATION))

    def pod_group_set(self, pod_group: PodGroup) -> None:
        self.activate(self._gangs.pod_group_set(pod_group))
        if self._controller is not None:
            self._controller.add(f"{pod_group.metadata.namespace}/{pod_group.metadata.name}")

    def pod_group_deleted(self, pod_group: PodGroup) -> None:
        gang = self._gangs.pod_group_deleted(pod_group)
        if gang is not None:
            self._rounds.gang_lost(gang)

    def activate(self, keys: list[str]) -> None:
        """Move members to the active queue."""
        if keys:
            self._runtime.queue.activate(keys)

    def _queue_pod_group(self, pod: Pod) -> None:
        if self._controller is not None and params.needs_pod_group(pod):
            self._controller.add(params.gang_id(pod))

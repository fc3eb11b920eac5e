"""All gangs, updated by pod and PodGroup events (spec 05 §9.2). Independent of queue and cycle.

Methods for events return the keys (`namespace/name`) of pods that the queue should activate. Unlike Koordinator's, the
cache finds the members of a PodGroup that is created again, follows changes of a gang's group, and wakes a member when
another one is deleted (spec 05 §17, D14).
"""

from __future__ import annotations

from control.scheduler.config.args import CoschedulingArgs
from control.scheduler.plugins.coscheduling import params
from control.scheduler.plugins.coscheduling.gang import Gang, GangGroup
from control.scheduler.plugins.coscheduling.params import GangParameters
from control.scheduler.state.pods import POD, subject_key
from koordlet.api.core import Pod
from koordlet.api.core.podresources import is_terminated
from koordlet.api.crs.podgroup import PodGroup


class GangCache:
    """See the module text."""

    def __init__(self, args: CoschedulingArgs) -> None:
        self._args = args
        self.gangs: dict[str, Gang] = {}
        self.groups: dict[str, GangGroup] = {}
        self._members: dict[str, dict[str, Pod]] = {}
        """Gang id -> pods that name it, whether or not the gang exists."""
        self._freed: list[str] = []
        """Members that no longer wait for each other; returned by `_with_freed`."""

    # Reading

    def member(self, group: GangGroup, name: str) -> Gang | None:
        """A gang of the group; None if it does not exist.

        A gang of several namespaces' group must name the group too: a tenant cannot include gangs of other tenants.
        """
        gang = self.gangs.get(name)
        if gang is None or gang.group is group or group.one_namespace:
            return gang
        return None

    def gangs_of(self, group: GangGroup) -> list[Gang]:
        """The existing gangs of the group."""
        return [gang for name in group.gang_ids if (gang := self.member(group, name)) is not None]

    def waiting_in(self, group: GangGroup) -> dict[str, str]:
        """Key -> uid of every member that is held at Permit or being bound."""
        waiting: dict[str, str] = {}
        for gang in self.gangs_of(group):
            waiting.update(gang.waiting)
        return waiting

    # Pods

    def pod_added(self, pod: Pod, subject: str = POD) -> list[str]:
        """`subject`: the kind of object that the pod stands for; also in the next two methods."""
        name = params.gang_id(pod)
        if not name or (is_terminated(pod) and not pod.spec.node_name):
            return []
        key = subject_key(pod, subject)
        gang = self._seen(name, key, pod)
        if not gang.complete:
            return self._with_freed([])
        return self._with_freed(self._one_pending(gang) if pod.spec.node_name else [key])

    def pod_updated(self, old: Pod, new: Pod, subject: str = POD) -> list[str]:
        before, name = params.gang_id(old), params.gang_id(new)
        if before != name or old.metadata.uid != new.metadata.uid:
            return self.pod_deleted(old, subject) + self.pod_added(new, subject)
        if not name:
            return []
        members, key = self._members.get(name, {}), subject_key(new, subject)
        if key not in members:
            return [] if is_terminated(new) else self.pod_added(new, subject)
        if is_terminated(new):
            members[key] = new  # it keeps its state until it is deleted
        else:
            self._seen(name, key, new)
        return self._with_freed([])

    def pod_deleted(self, pod: Pod, subject: str = POD) -> list[str]:
        name, key = params.gang_id(pod), subject_key(pod, subject)
        if not name:
            return []
        members = self._members.get(name, {})
        known = members.get(key)
        if known is not None and known.metadata.uid != pod.metadata.uid:
            return []  # the deleted pod was replaced by a newer one of the same name
        members.pop(key, None)
        if not members:
            self._members.pop(name, None)
        gang = self.gangs.get(name)
        if gang is None:
            return []
        gang.pending.discard(key)
        gang.bound.discard(key)
        self._leave_waiting(gang, key)
        if gang.group.representative == key:
            gang.group.representative = ""
        if not gang.children and (not gang.crd or gang.parameters is None):  # no PodGroup was seen
            self._remove(gang)
            return []
        return self._one_pending(gang) if gang.complete else []

    def _seen(self, name: str, key: str, pod: Pod) -> Gang:
        self._members.setdefault(name, {})[key] = pod
        gang = self.gangs.get(name) or self._make(name, crd=params.needs_pod_group(pod))
        if gang.parameters is None and not gang.crd:
            self._initialize(gang, params.of_pod(pod, self._args))
        self._place(gang, key, pod)
        return gang

    def _place(self, gang: Gang, key: str, pod: Pod) -> None:
        if pod.spec.node_name:
            self._bind(gang, key)
        elif key not in gang.waiting:
            gang.pending.add(key)

    def _bind(self, gang: Gang, key: str) -> None:
        gang.pending.discard(key)
        gang.bound.add(key)
        self._leave_waiting(gang, key)
        if not gang.group.once_satisfied:
            gang.group.once_satisfied = True
            for member_gang in self.gangs_of(gang.group):
                self._freed.extend(member_gang.in_order() if member_gang.settled else ())
        if gang.group.representative == key:
            gang.group.representative = ""

    # Pod groups

    def pod_group_set(self, pod_group: PodGroup) -> list[str]:
        """Added or updated."""
        name = f"{pod_group.metadata.namespace}/{pod_group.metadata.name}"
        gang = self.gangs.get(name)
        before = gang is not None and gang.complete and gang.crd
        gang = gang or self._make(name, crd=True)
        gang.crd = True
        self._initialize(gang, params.of_pod_group(pod_group, self._args))
        return self._one_pending(gang) if gang.complete and not before else []

    def pod_group_deleted(self, pod_group: PodGroup) -> Gang | None:
        """The gang that does not exist any more; None if it was not known."""
        gang = self.gangs.get(f"{pod_group.metadata.namespace}/{pod_group.metadata.name}")
        if gang is not None:
            self._remove(gang)
        return gang

    # Events of the cycle

    def wait(self, gang: Gang, key: str, uid: str) -> None:
        """The pod has a node and is at Permit."""
        gang.pending.discard(key)
        gang.waiting[key] = uid

    def release(self, gang: Gang, key: str) -> None:
        """The pod lost its node."""
        if key in gang.waiting:
            self._leave_waiting(gang, key)
            if key in gang.children:
                gang.pending.add(key)

    def bound(self, gang: Gang, key: str) -> list[str]:
        """The pod is bound."""
        if key in gang.children:
            self._bind(gang, key)
        else:
            self._leave_waiting(gang, key)
        return self._with_freed([])

    # Internal

    def _make(self, name: str, *, crd: bool) -> Gang:
        members = self._members.setdefault(name, {})
        gang = self.gangs[name] = Gang(name, self._group((name,)), crd=crd, children=members)
        for key, pod in members.items():
            if pod.spec.node_name or not is_terminated(pod):
                self._place(gang, key, pod)
        return gang

    def _initialize(self, gang: Gang, parameters: GangParameters | None) -> None:
        if parameters is None:
            return
        gang.parameters = parameters
        if gang.group.gang_ids != parameters.group:
            old = gang.group
            gang.group = self._group(parameters.group)
            gang.group.once_satisfied |= bool(gang.bound)
            self._drop_if_unused(old)

    def _group(self, ids: tuple[str, ...]) -> GangGroup:
        name = ",".join(ids)
        group = self.groups.get(name)
        if group is None:
            group = self.groups[name] = GangGroup(name, ids)
        return group

    def _remove(self, gang: Gang) -> None:
        del self.gangs[gang.id]
        if not self._members.get(gang.id):
            self._members.pop(gang.id, None)
        gang.group.waiting_gang_ids.discard(gang.id)
        self._drop_if_unused(gang.group)

    def _drop_if_unused(self, group: GangGroup) -> None:
        if not any(gang.group is group for gang in self.gangs_of(group)):
            self.groups.pop(group.id, None)

    def _leave_waiting(self, gang: Gang, key: str) -> None:
        gang.waiting.pop(key, None)
        if not gang.waiting:
            group = gang.group
            group.waiting_gang_ids.discard(gang.id)
            if not group.waiting_gang_ids and not any(member_gang.waiting for member_gang in self.gangs_of(group)):
                group.binding_members = frozenset()

    def _with_freed(self, keys: list[str]) -> list[str]:
        freed, self._freed = self._freed, []
        return keys + [key for key in freed if key not in keys]

    @staticmethod
    def _one_pending(gang: Gang) -> list[str]:
        return [min(gang.pending)] if gang.pending else []

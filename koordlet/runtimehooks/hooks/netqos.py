"""Network bandwidth by class and pod: HTB on the interface of the default route (spec 03 §4.12). Pure.

Three classes below one with the node's bandwidth: system (who is in no other), LS and BE; each has what it requests and
may take what the others leave, up to its limit. Packets find their class by the source address of their pod, or by the
net_cls class of their task where the kernel has that. A pod with a limit of its own has a class of its own. Built only
when the node's bandwidth is said and some class or pod asks for something. Only what leaves the node is shaped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from zlib import crc32

from koordlet.api.sloconfig.resourceqos import NET_POLICY_TC
from koordlet.audit import About
from koordlet.audit import pod as about_pod
from koordlet.qosmanager.engine.strategy import QoSDecision, Strategy, Supports
from koordlet.qosmanager.engine.view import NodeView, PodView
from koordlet.qosmanager.rules.bandwidth import Bandwidth, of_class, of_pod, policy, total
from koordlet.resourceexecutor import DesiredSetting, Setting
from koordlet.resourceexecutor.addresssets import RULE, SET
from koordlet.resourceexecutor.stores import ABSENT
from koordlet.resourceexecutor.traffic import BY_CGROUP, CLASS, ON, QDISC, ROOT, SOURCES, TOTAL, class_text
from koordlet.runtimehooks.stages import followed
from koordlet.system.network.ipset import TYPE
from koordlet.system.network.tc import MAJOR, HtbClass

CLASSID = "net_cls.classid"
REASON = "netqos reconcile"
SYSTEM, LS, BE = 2, 3, 4
"""Minors of the classes."""
PRIO = {SYSTEM: 1, LS: 2, BE: 3}
SETS = {SYSTEM: "system_class", LS: "ls_class", BE: "be_class"}
MINOR_OF = {"SYSTEM": SYSTEM, "LSE": LS, "LSR": LS, "LS": LS, "BE": BE}
"""Class that the pod's label says -> minor; pods without one are left where they are."""
FIRST_OWN, LAST_OWN = 0x10, 0xFFFE
LEAST = 8_000
"""bit/s: HTB takes no class without a rate."""

Interface = Callable[[], str | None]


def classes(whole: int, ls: Bandwidth, be: Bandwidth) -> dict[int, HtbClass]:
    """Minor -> class. A limit of 0 is the request, and without one none at all."""
    system = HtbClass(_rate(whole - ls.egress_request - be.egress_request), _rate(whole), PRIO[SYSTEM])
    return {SYSTEM: system, LS: _class(whole, ls, LS), BE: _class(whole, be, BE)}


def _class(whole: int, given: Bandwidth, minor: int) -> HtbClass:
    ceil = given.egress_limit or given.egress_request or whole
    return HtbClass(_rate(given.egress_request), _rate(ceil), PRIO[minor])


def _less(given: HtbClass, percent: int) -> HtbClass:
    """That much of its limit, and no more guaranteed than that."""
    ceil = _rate(given.ceil * percent // 100)
    return replace(given, rate=min(given.rate, ceil), ceil=ceil)


def _rate(bits: int) -> int:
    return max(bits // 8 * 8, LEAST)


class NetQoS(Strategy):
    """The strategy. `interface` names that of the default route; `sets` says why addresses can't be matched by sets and
    packet rules, empty when they can: else each has a filter of its own. `held`: pod UID -> percent left to pods that
    hurt a service: of their own class, or of best effort's (the least of them)."""

    name = "netqos"
    gate = "TCNetworkQoS"
    follows_pods = True

    def __init__(
        self,
        interface: Interface,
        supports: Supports,
        sets: str = "",
        *,
        held: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        self._interface, self._supports, self._no_sets, self._held = interface, supports, sets, held
        self._minors: dict[str, int] = {}
        """Pod UID -> minor of its own class."""
        self._last: tuple[DesiredSetting, ...] = ()
        self._kept: dict[str, int] = {}
        """`held` as of the last decision."""

    def outdated(self) -> bool:
        """A pod is held back further, or less."""
        return dict(self._held()) != self._kept

    def decide(self, view: NodeView) -> QoSDecision | None:
        """None while there is no default route: what was built stands."""
        strategy, whole = view.slo.resource_qos_strategy, total(view)
        held = self._kept = dict(self._held())
        if policy(strategy) != NET_POLICY_TC:
            return QoSDecision(note=f"left to {policy(strategy)}")
        if whole <= 0:
            return QoSDecision(note="totalNetworkBandwidth is not said")
        pods = list(followed(view))
        own = {pod.meta.uid: limits.egress * 8 for pod in pods if (limits := of_pod(pod)) and limits.egress > 0}
        self._number(own)
        try:
            ls, be = of_class(strategy, "ls_class", whole), of_class(strategy, "be_class", whole)
        except ValueError as error:
            return QoSDecision(self._last, note=f"as before: {error}")
        if not (own or ls.enabled or be.enabled):
            return QoSDecision(note="nobody asks for bandwidth")
        interface = self._interface()
        if interface is None:
            return None
        made = classes(whole, ls, be)
        made[BE] = _less(made[BE], min((left for uid, left in held.items() if uid not in own), default=100))
        own = {uid: bits * held.get(uid, 100) // 100 for uid, bits in own.items()}
        updates = [*_tree(interface, whole, made), *self._own(interface, pods, own)]
        updates += self._addresses(interface, pods, own)
        by_task = self._supports(CLASSID, "")
        if by_task:
            updates.append(_update(BY_CGROUP, interface, ON))
            updates += self._classids(pods, own)
        self._last = tuple(updates)
        return QoSDecision(self._last, note=self._say(interface, pods, by_task))

    def for_announced(self, view: NodeView) -> tuple[DesiredSetting, ...] | None:
        """See `Strategy`: pods share classes, sets of addresses and the numbers of their own classes."""
        wanted = policy(view.slo.resource_qos_strategy) == NET_POLICY_TC and total(view) > 0
        return None if wanted else ()

    def _say(self, interface: str, pods: Iterable[PodView], by_task: bool) -> str:
        words = [f"on {interface}, addresses by {'filters: ' + self._no_sets if self._no_sets else 'sets'}"]
        if not by_task and any(_host_network(pod) for pod in pods):
            words.append("pods in the host's network can't be told apart: this kernel shows no net_cls")
        return "; ".join(words)

    def _number(self, own: Iterable[str]) -> None:
        """A class of its own for each; the same after a restart unless two fell on one number."""
        wanted = set(own)
        self._minors = {uid: minor for uid, minor in self._minors.items() if uid in wanted}
        taken = set(self._minors.values())
        for uid in sorted(wanted - self._minors.keys()):
            span = LAST_OWN - FIRST_OWN + 1
            minor = FIRST_OWN + crc32(uid.encode()) % span
            while minor in taken:
                minor = FIRST_OWN + (minor - FIRST_OWN + 1) % span
            self._minors[uid] = minor
            taken.add(minor)

    def _own(self, interface: str, pods: Iterable[PodView], own: dict[str, int]) -> Iterator[DesiredSetting]:
        for pod in pods:
            if pod.meta.uid in own:
                rate = _rate(own[pod.meta.uid])
                wanted = HtbClass(rate, rate, PRIO[MINOR_OF.get(pod.raw_qos, SYSTEM)])
                place = f"{interface} 1:{self._minors[pod.meta.uid]:x}"
                yield _update(CLASS, place, class_text(wanted), about_pod(pod.meta.namespace, pod.meta.name))

    def _addresses(self, interface: str, pods: Iterable[PodView], own: dict[str, int]) -> Iterator[DesiredSetting]:
        """Pods with a class of their own are in no set: a packet rule would win over their filter."""
        sources: dict[str, int] = {}
        members: dict[int, list[str]] = {minor: [] for minor in SETS}
        for pod in pods:
            minor = MINOR_OF.get(pod.raw_qos)
            for address in _addresses_of(pod):
                if pod.meta.uid in own:
                    sources[address] = self._minors[pod.meta.uid]
                elif minor is not None and self._no_sets:
                    sources[address] = minor
                elif minor is not None:
                    members[minor].append(address)
        if sources:
            text = " ".join(f"{address}=1:{minor:x}" for address, minor in sorted(sources.items()))
            yield _update(SOURCES, interface, text)
        for minor, name in SETS.items() if not self._no_sets else ():
            yield _update(SET, name, " ".join((TYPE, *sorted(members[minor]))))
            yield _update(RULE, name, f"1:{minor:x}")

    def _classids(self, pods: Iterable[PodView], own: dict[str, int]) -> Iterator[DesiredSetting]:
        """Of the pod, and of containers that were there before: a new one has its pod's."""
        for pod in pods:
            minor = self._minors[pod.meta.uid] if pod.meta.uid in own else MINOR_OF.get(pod.raw_qos)
            if minor is None:
                continue
            about = about_pod(pod.meta.namespace, pod.meta.name)
            directories = [pod.meta.cgroup_dir, *(one.cgroup_dir for one in pod.meta.containers if one.running)]
            for directory in directories:
                if self._supports(CLASSID, directory):
                    yield DesiredSetting(Setting(CLASSID, directory), MAJOR + minor, REASON, 0, about)


def _tree(interface: str, whole: int, found: dict[int, HtbClass]) -> Iterator[DesiredSetting]:
    yield DesiredSetting(Setting(QDISC, device=interface), ROOT, REASON)
    yield _update(TOTAL, interface, class_text(HtbClass(_rate(whole), _rate(whole), 0)))
    for minor, wanted in found.items():
        yield _update(CLASS, f"{interface} 1:{minor:x}", class_text(wanted))


def _update(resource: str, device: str, value: str, about: About | None = None) -> DesiredSetting:
    return DesiredSetting(Setting(resource, device=device), value, REASON, ABSENT, about)


def _host_network(pod: PodView) -> bool:
    return pod.meta.pod is not None and pod.meta.pod.spec.host_network


def _addresses_of(pod: PodView) -> list[str]:
    """IPv4 addresses that are the pod's alone."""
    if pod.meta.pod is None or _host_network(pod):
        return []
    status = pod.meta.pod.status
    given = [one.ip for one in status.pod_ips] or [status.pod_ip]
    return sorted({address for address in given if address and ":" not in address})

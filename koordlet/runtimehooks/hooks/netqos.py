"""Network bandwidth by class and pod: HTB on the interface of the default route (spec 03 §4.12). Pure.

Three classes below one with the node's bandwidth: system (all traffic that is in no other class), LS and BE. Each is
guaranteed its request and may use what the others leave, up to its limit. Packets are assigned to a class by the source
address of their pod, or by the net_cls class of their task where the kernel supports it. A pod with a limit of its own
has a class of its own. The classes exist only when the node's bandwidth is known and a class or pod requests bandwidth.
Only outgoing traffic is shaped.
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
from koordlet.runtimehooks.stages import followed_pods
from koordlet.system.network.ipset import TYPE
from koordlet.system.network.tc import MAJOR, HtbClass

CLASSID = "net_cls.classid"
REASON = "netqos reconcile"
SYSTEM = 2
LS = 3
BE = 4
"""Minors of the classes."""
PRIO = {SYSTEM: 1, LS: 2, BE: 3}
SETS = {SYSTEM: "system_class", LS: "ls_class", BE: "be_class"}
MINOR_OF = {"SYSTEM": SYSTEM, "LSE": LS, "LSR": LS, "LS": LS, "BE": BE}
"""QoS label of the pod -> minor; pods without a label are assigned to no class."""
FIRST_POD_MINOR = 0x10
LAST_POD_MINOR = 0xFFFE
MIN_RATE_BPS = 8_000
"""HTB accepts no class without a rate."""

Interface = Callable[[], str | None]


def classes(node_bps: int, ls: Bandwidth, be: Bandwidth) -> dict[int, HtbClass]:
    """Minor -> class. A limit of 0 means the request; without a request it means no limit."""
    system = HtbClass(_rate(node_bps - ls.egress_request - be.egress_request), _rate(node_bps), PRIO[SYSTEM])
    return {SYSTEM: system, LS: _class(node_bps, ls, LS), BE: _class(node_bps, be, BE)}


def _class(node_bps: int, bandwidth: Bandwidth, minor: int) -> HtbClass:
    ceil = bandwidth.egress_limit or bandwidth.egress_request or node_bps
    return HtbClass(_rate(bandwidth.egress_request), _rate(ceil), PRIO[minor])


def _reduced(parameters: HtbClass, percent: int) -> HtbClass:
    """The limit reduced to `percent`, and the guaranteed rate to at most that."""
    ceil = _rate(parameters.ceil * percent // 100)
    return replace(parameters, rate=min(parameters.rate, ceil), ceil=ceil)


def _rate(bits: int) -> int:
    return max(bits // 8 * 8, MIN_RATE_BPS)


class NetQoS(Strategy):
    """The strategy. `interface` returns the interface of the default route. `sets`: why addresses cannot be matched by
    sets and packet rules, so that each has a filter of its own; empty when they can. `held`: pod UID -> percent of its
    bandwidth that a throttled pod keeps: of its own class, or of the BE class (the lowest of them)."""

    name = "netqos"
    follows_pods = True

    def __init__(
        self,
        interface: Interface,
        supports: Supports,
        sets: str = "",
        *,
        held: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        self._interface = interface
        self._supports = supports
        self._no_sets = sets
        self._held = held
        self._minors: dict[str, int] = {}
        """Pod UID -> minor of the pod's class."""
        self._last: tuple[DesiredSetting, ...] = ()
        self._kept: dict[str, int] = {}
        """`held` at the last decision."""

    def outdated(self) -> bool:
        """Whether the throttling of a pod has changed."""
        return dict(self._held()) != self._kept

    def decide(self, view: NodeView) -> QoSDecision | None:
        """None without a default route: the settings stay."""
        strategy = view.slo.resource_qos_strategy
        node_bps = total(view)
        held = self._kept = dict(self._held())
        if policy(strategy) != NET_POLICY_TC:
            return QoSDecision(note=f"left to {policy(strategy)}")
        if node_bps <= 0:
            return QoSDecision(note="totalNetworkBandwidth is not set")
        pods = list(followed_pods(view))
        own = {pod.meta.uid: limits.egress * 8 for pod in pods if (limits := of_pod(pod)) and limits.egress > 0}
        self._number(own)
        try:
            ls = of_class(strategy, "ls_class", node_bps)
            be = of_class(strategy, "be_class", node_bps)
        except ValueError as error:
            return QoSDecision(self._last, note=f"as before: {error}")
        if not (own or ls.enabled or be.enabled):
            return QoSDecision(note="no class or pod requests bandwidth")
        interface = self._interface()
        if interface is None:
            return None
        by_minor = classes(node_bps, ls, be)
        be_percent = min((percent for uid, percent in held.items() if uid not in own), default=100)
        by_minor[BE] = _reduced(by_minor[BE], be_percent)
        own = {uid: bits * held.get(uid, 100) // 100 for uid, bits in own.items()}
        settings = [*_tree(interface, node_bps, by_minor), *self._own_classes(interface, pods, own)]
        settings += self._addresses(interface, pods, own)
        by_task = self._supports(CLASSID, "")
        if by_task:
            settings.append(_desired(BY_CGROUP, interface, ON))
            settings += self._classids(pods, own)
        self._last = tuple(settings)
        return QoSDecision(self._last, note=self._note(interface, pods, by_task))

    def for_announced(self, view: NodeView) -> tuple[DesiredSetting, ...] | None:
        """See `Strategy`: pods share classes, sets of addresses and the numbers of pods' classes."""
        active = policy(view.slo.resource_qos_strategy) == NET_POLICY_TC and total(view) > 0
        return None if active else ()

    def _note(self, interface: str, pods: Iterable[PodView], by_task: bool) -> str:
        words = [f"on {interface}, addresses by {'filters: ' + self._no_sets if self._no_sets else 'sets'}"]
        if not by_task and any(_host_network(pod) for pod in pods):
            words.append("pods in the host network cannot be classified: this kernel has no net_cls")
        return "; ".join(words)

    def _number(self, own: Iterable[str]) -> None:
        """Assign a class to each of these pods: the same after a restart, unless two pods hash to the same number."""
        uids = set(own)
        self._minors = {uid: minor for uid, minor in self._minors.items() if uid in uids}
        taken = set(self._minors.values())
        span = LAST_POD_MINOR - FIRST_POD_MINOR + 1
        for uid in sorted(uids - self._minors.keys()):
            minor = FIRST_POD_MINOR + crc32(uid.encode()) % span
            while minor in taken:
                minor = FIRST_POD_MINOR + (minor - FIRST_POD_MINOR + 1) % span
            self._minors[uid] = minor
            taken.add(minor)

    def _own_classes(self, interface: str, pods: Iterable[PodView], own: dict[str, int]) -> Iterator[DesiredSetting]:
        for pod in pods:
            if pod.meta.uid in own:
                rate = _rate(own[pod.meta.uid])
                parameters = HtbClass(rate, rate, PRIO[MINOR_OF.get(pod.raw_qos, SYSTEM)])
                device = f"{interface} 1:{self._minors[pod.meta.uid]:x}"
                yield _desired(CLASS, device, class_text(parameters), about_pod(pod.meta.namespace, pod.meta.name))

    def _addresses(self, interface: str, pods: Iterable[PodView], own: dict[str, int]) -> Iterator[DesiredSetting]:
        """Pods with a class of their own are in no set: a packet rule would take precedence over their filter."""
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
            yield _desired(SOURCES, interface, text)
        for minor, name in SETS.items() if not self._no_sets else ():
            yield _desired(SET, name, " ".join((TYPE, *sorted(members[minor]))))
            yield _desired(RULE, name, f"1:{minor:x}")

    def _classids(self, pods: Iterable[PodView], own: dict[str, int]) -> Iterator[DesiredSetting]:
        """Of the pod and of its running containers; new containers inherit it from the pod."""
        for pod in pods:
            minor = self._minors[pod.meta.uid] if pod.meta.uid in own else MINOR_OF.get(pod.raw_qos)
            if minor is None:
                continue
            about = about_pod(pod.meta.namespace, pod.meta.name)
            directories = [pod.meta.cgroup_dir, *(each.cgroup_dir for each in pod.meta.containers if each.running)]
            for directory in directories:
                if self._supports(CLASSID, directory):
                    yield DesiredSetting(Setting(CLASSID, directory), MAJOR + minor, REASON, 0, about)


def _tree(interface: str, node_bps: int, by_minor: dict[int, HtbClass]) -> Iterator[DesiredSetting]:
    yield DesiredSetting(Setting(QDISC, device=interface), ROOT, REASON)
    yield _desired(TOTAL, interface, class_text(HtbClass(_rate(node_bps), _rate(node_bps), 0)))
    for minor, parameters in by_minor.items():
        yield _desired(CLASS, f"{interface} 1:{minor:x}", class_text(parameters))


def _desired(resource: str, device: str, value: str, about: About | None = None) -> DesiredSetting:
    return DesiredSetting(Setting(resource, device=device), value, REASON, ABSENT, about)


def _host_network(pod: PodView) -> bool:
    return pod.meta.pod is not None and pod.meta.pod.spec.host_network


def _addresses_of(pod: PodView) -> list[str]:
    """IPv4 addresses of the pod; none in the host network, where it shares them."""
    if pod.meta.pod is None or _host_network(pod):
        return []
    status = pod.meta.pod.status
    addresses = [entry.ip for entry in status.pod_ips] or [status.pod_ip]
    return sorted({address for address in addresses if address and ":" not in address})

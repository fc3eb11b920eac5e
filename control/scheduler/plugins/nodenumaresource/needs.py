"""What a pod needs of CPUs and NUMA zones, parsed once per shape (spec 06 §2.2, §2.4)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from control.numa.accumulator import CPUSearchRules
from control.numa.affinity import NumaRequest
from control.numa.hints import REQUIRED, Hints
from control.numa.holdings import Holding
from control.numa.report import POLICIES
from control.scheduler.state.columns import IntArray, RowArray
from control.scheduler.state.credit import Offer
from control.scheduler.state.pods import Shape
from koordlet.api import names
from koordlet.api.annotations.node import BIND_FULL_PCPUS_ONLY, BIND_SPREAD_BY_PCPUS
from koordlet.api.annotations.scheduling import (
    BIND_CONSTRAINED_BURST,
    BIND_DEFAULT,
    BIND_FULL_PCPUS,
    EXCLUSIVE_NONE,
    EXCLUSIVE_NUMA_NODE_LEVEL,
    EXCLUSIVE_PCPU_LEVEL,
    NUMA_TOPOLOGY_SPEC,
    RESOURCE_SPEC,
)
from koordlet.api.encoding.quoting import quoted
from koordlet.api.encoding.wire import WireError
from koordlet.api.priority import PROD, priority_class
from koordlet.api.qos import LSE, LSR, raw_qos_class

BINDING: Final = (BIND_FULL_PCPUS, BIND_SPREAD_BY_PCPUS)
"""Policies with which a pod gets CPUs of its own."""
_POLICIES: Final = ("", BIND_DEFAULT, *BINDING, BIND_CONSTRAINED_BURST)
_EXCLUSIVE: Final = ("", EXCLUSIVE_NONE, EXCLUSIVE_PCPU_LEVEL, EXCLUSIVE_NUMA_NODE_LEVEL)
_SINGLE_EXCLUSIVE: Final = ("", "Preferred", REQUIRED)
_BY_NODE: Final = {BIND_FULL_PCPUS_ONLY: BIND_FULL_PCPUS, BIND_SPREAD_BY_PCPUS: BIND_SPREAD_BY_PCPUS}


class ProvidedHints(Protocol):
    """The hints of another plugin for pods of one shape."""

    def hints(self, row: int, ids: Sequence[int], offer: Offer | None) -> tuple[Hints, tuple[str, ...]]:
        """The hints, or why the node is refused under every policy. `ids`: of the row's zones; `offer`: what the pod
        may use of reservations."""

    def keys(self, rows: RowArray) -> IntArray:
        """[row]: rows with equal keys have equal hints."""

    def key(self, row: int) -> Hashable:
        """`keys` for one row, without an offer. Keys of different times are equal only if the hints are."""


@dataclass(frozen=True, eq=False)
class NumaNeed:
    """See the module text. One per shape and profile; compared by identity."""

    amounts: Mapping[str, int]
    """Requests that are not zero, cpu in milli-cores."""
    bind: bool = False
    """The pod itself requests CPUs of its own."""
    policy: str = ""
    required: bool = False
    """`policy` is a must."""
    exclusive: str = ""
    numa_policy: str = ""
    single_exclusive: str = ""
    designated: Holding | None = None
    """Exactly what the pod is to get."""
    provider: ProvidedHints | None = None
    """The hints of another plugin, which are merged with those of CPUs and zones."""

    @property
    def key(self) -> Hashable:
        """Equal for needs that are decided alike."""
        amounts = tuple(self.amounts.items())
        binding = (self.bind, self.policy, self.required, self.exclusive)
        designated: Hashable = None
        if self.designated is not None:
            zones = tuple((zone, tuple(held.items())) for zone, held in self.designated.zones.items())
            designated = self.designated.cpus, zones
        return amounts, binding, self.numa_policy, self.single_exclusive, self.provider, designated

    @property
    def cpu(self) -> int:
        return self.amounts.get("cpu", 0)

    @property
    def whole(self) -> bool:
        return self.cpu % 1000 == 0

    @property
    def cpus(self) -> int:
        return self.cpu // 1000

    def on_node(self, node_policy: str, strategy: str) -> NumaRequest:
        """The request on a node with this CPU bind policy."""
        if not self.bind and (not self.cpu or node_policy not in _BY_NODE):
            return NumaRequest(self.amounts)
        policy, required = self.policy, self.required
        if not required and node_policy in _BY_NODE:
            policy, required = _BY_NODE[node_policy], True
        return NumaRequest(self.amounts, self.cpus, CPUSearchRules(policy, self.exclusive, strategy), required)


def need_of(shape: Shape, default_policy: str) -> NumaNeed:
    """Raises WireError for a malformed annotation."""
    pod, annotations = shape.pod, shape.annotations
    spec, numa = RESOURCE_SPEC.get(annotations), NUMA_TOPOLOGY_SPEC.get(annotations)
    for key, name, value, allowed in (
        (names.ANNOTATION_RESOURCE_SPEC, "requiredCPUBindPolicy", spec.required_cpu_bind_policy, _POLICIES),
        (names.ANNOTATION_RESOURCE_SPEC, "preferredCPUBindPolicy", spec.preferred_cpu_bind_policy, _POLICIES),
        (
            names.ANNOTATION_RESOURCE_SPEC,
            "preferredCPUExclusivePolicy",
            spec.preferred_cpu_exclusive_policy,
            _EXCLUSIVE,
        ),
        (names.ANNOTATION_NUMA_TOPOLOGY_SPEC, "numaTopologyPolicy", numa.numa_topology_policy, ("", *POLICIES)),
        (
            names.ANNOTATION_NUMA_TOPOLOGY_SPEC,
            "singleNUMANodeExclusive",
            numa.single_numa_node_exclusive,
            _SINGLE_EXCLUSIVE,
        ),
    ):
        if value not in allowed:
            raise WireError(f"{name}: {quoted(value)} is not one of {', '.join(filter(None, allowed))}", where=key)
    amounts = {name: amount for name, amount in shape.requests.items() if amount > 0}
    exclusive = numa.single_numa_node_exclusive or (REQUIRED if numa.numa_topology_policy else "")
    need = NumaNeed(
        amounts,
        exclusive=spec.preferred_cpu_exclusive_policy,
        numa_policy=numa.numa_topology_policy,
        single_exclusive=exclusive,
    )
    if raw_qos_class(pod) not in (LSE, LSR) or priority_class(pod) != PROD or not need.cpu:
        return need

    def chosen(policy: str) -> str:
        return default_policy if policy == BIND_DEFAULT else policy

    required = chosen(spec.required_cpu_bind_policy)
    policy = required or chosen(spec.preferred_cpu_bind_policy or BIND_DEFAULT)
    if policy not in BINDING:
        return need
    return NumaNeed(
        amounts,
        True,
        policy,
        bool(required),
        need.exclusive,
        need.numa_policy,
        need.single_exclusive,
    )

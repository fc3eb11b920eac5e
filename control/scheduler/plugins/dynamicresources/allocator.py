"""Which devices of a node the claims of a pod get: a bounded depth-first search (structured parameters). Pure.

Requests are served in order, each with the first devices that match; a constraint or a later request that cannot be met
makes the search try the next devices or the next alternative of a request. The search gives up after MAX_STEPS: a claim
could otherwise keep the scheduler busy for hours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from control.scheduler.plugins.dynamicresources.pools import NAME_FIELD, REPELLING, ClaimableDevice, DeviceId
from control.scheduler.plugins.dynamicresources.selectors import (
    MAX_CLAIM_CHARS,
    MAX_CLASS_CHARS,
    ExpressionError,
    expression,
)
from koordlet.api.core.claims import (
    ALL,
    EXACT_COUNT,
    AllocationResult,
    DeviceAllocationResult,
    DeviceClass,
    DeviceConstraint,
    DeviceRequest,
    DeviceRequestAllocationResult,
    DeviceSelector,
    ExactDeviceRequest,
    ResourceClaim,
)
from koordlet.api.core.selectors import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm

MAX_STEPS: Final = 10_000
"""On one node. A step tries a device, and another one compares it by a constraint; each takes a few microseconds."""
MAX_CYCLE_STEPS: Final = 20 * MAX_STEPS
MAX_DEVICES: Final = 32
"""Of one claim: Kubernetes' limit for allocation results."""
TOO_COMPLEX: Final = "the search for devices was given up: too many combinations"

Classes = Mapping[str, DeviceClass]
Matches = Callable[[ClaimableDevice, Callable[[int], None]], bool]
"""See `Expression.matches`."""


class NotAllocatable(Exception):
    """The claims cannot be allocated on the node; the text is the reason."""


@dataclass(frozen=True)
class RequestChoice:
    """One way to serve a request: the request itself or an alternative of it. `name` is that of the result."""

    name: str
    request: ExactDeviceRequest
    device_class: DeviceClass


@dataclass
class SearchBudget:
    """The steps that are left for the searches of one cycle."""

    steps: int = MAX_CYCLE_STEPS

    def spend(self, steps: int) -> None:
        """For the evaluation of a selector, whose result is remembered. Raises NotAllocatable."""
        self.steps -= steps
        if self.steps <= 0:
            raise NotAllocatable(TOO_COMPLEX)


@dataclass
class ClaimRequests:
    """A claim with, per request, its name and its choices in order of preference."""

    claim: ResourceClaim
    requests: list[tuple[str, list[RequestChoice]]]


def selector_texts(claim: ResourceClaim) -> set[str]:
    """The different CEL expressions of a claim, without those of device classes."""
    requests = [each for request in claim.spec.devices.requests for each in (request.exactly, *request.first_available)]
    selectors = [selector for each in requests if each is not None for selector in each.selectors]
    return {selector.cel.expression for selector in selectors if selector.cel is not None}


def prepared(claim: ResourceClaim, classes: Classes) -> ClaimRequests:
    """Raises NotAllocatable if no node can serve the claim."""
    return ClaimRequests(claim, [(each.name, list(_choices(each, classes))) for each in claim.spec.devices.requests])


def _choices(request: DeviceRequest, classes: Classes) -> Iterator[RequestChoice]:
    named: list[tuple[str, ExactDeviceRequest]] = [
        (f"{request.name}/{each.name}", each) for each in request.first_available
    ]
    if request.exactly is not None:
        named = [(request.name, request.exactly)]
    if not named:
        raise NotAllocatable(f"request {request.name}: its form is not supported")
    for name, exact in named:
        device_class = classes.get(exact.device_class_name)
        if device_class is None:
            raise NotAllocatable(f"request {name}: device class {exact.device_class_name} does not exist")
        if exact.admin_access:
            raise NotAllocatable(f"request {name}: adminAccess is not supported")
        if exact.capacity is not None:
            raise NotAllocatable(f"request {name}: consumable capacity is not supported")
        if exact.allocation_mode not in ("", EXACT_COUNT, ALL):
            raise NotAllocatable(f"request {name}: unknown allocation mode {exact.allocation_mode}")
        for selectors, limit in ((device_class.spec.selectors, MAX_CLASS_CHARS), (exact.selectors, MAX_CLAIM_CHARS)):
            for selector in selectors:
                _compiled(name, selector, limit)
        yield RequestChoice(name, exact, device_class)


def _compiled(request: str, selector: DeviceSelector, max_chars: int) -> Matches:
    if selector.cel is None:
        raise NotAllocatable(f"request {request}: a selector without a CEL expression is not supported")
    compiled = expression(selector.cel.expression, max_chars)
    if isinstance(compiled, ExpressionError):
        raise NotAllocatable(f"request {request}: CEL selector: {compiled}")
    return compiled.matches


def allocate(
    claims: Sequence[ClaimRequests],
    devices: Sequence[ClaimableDevice],
    taken: Callable[[DeviceId], bool],
    budget: SearchBudget | None = None,
) -> list[list[tuple[RequestChoice, ClaimableDevice]]]:
    """Per claim the chosen devices. `devices`: those of one node, in order of preference; `taken(id)`: the device is
    allocated already; `budget`: of several nodes. Raises NotAllocatable."""
    budget = budget or SearchBudget()
    search = _Search(claims, devices, taken, budget, min(MAX_STEPS, budget.steps))
    try:
        return search.run()
    finally:
        budget.steps -= search.steps


@dataclass
class _Search:
    claims: Sequence[ClaimRequests]
    devices: Sequence[ClaimableDevice]
    taken: Callable[[DeviceId], bool]
    budget: SearchBudget
    max_steps: int
    steps: int = 0
    used: set[DeviceId] = field(default_factory=set)
    picked: list[list[tuple[RequestChoice, ClaimableDevice]]] = field(default_factory=list)
    matching: dict[int, list[ClaimableDevice]] = field(default_factory=dict)
    """By id of a choice, which `claims` keep: the devices that match, free or not."""
    problem: str = ""
    """The first reason that is more than a lack of free devices."""

    def run(self) -> list[list[tuple[RequestChoice, ClaimableDevice]]]:
        self.picked = [[] for _ in self.claims]
        try:
            complete = self._claim(0)
        except RecursionError as error:  # a pod with hundreds of devices
            raise NotAllocatable(TOO_COMPLEX) from error
        if not complete:
            raise NotAllocatable(self.problem)
        return self.picked

    def _claim(self, number: int) -> bool:
        return number == len(self.claims) or self._request(number, 0)

    def _request(self, number: int, at: int) -> bool:
        requests = self.claims[number].requests
        if at == len(requests):
            return self._claim(number + 1)
        for choice in requests[at][1]:
            matching = self._matching(choice)
            everything = choice.request.allocation_mode == ALL
            count = len(matching) if everything else choice.request.count or 1
            if everything and not self._all_available(choice, matching):
                continue
            if count > MAX_DEVICES - len(self.picked[number]):
                self.problem = self.problem or f"a claim gets at most {MAX_DEVICES} devices"
            elif self._devices(number, at, choice, matching, 0, count):
                return True
        return False

    def _devices(
        self, number: int, at: int, choice: RequestChoice, matching: Sequence[ClaimableDevice], start: int, missing: int
    ) -> bool:
        """Pick `missing` more of the devices from `start` on."""
        if missing == 0:
            return self._request(number, at + 1)
        for index in range(start, len(matching) - missing + 1):
            device = matching[index]
            if device.id in self.used or self.taken(device.id):
                continue
            self.steps += 1 + len(self.claims[number].claim.spec.devices.constraints)
            if self.steps > self.max_steps:
                self.problem = TOO_COMPLEX
                return False
            if not self._allowed(number, choice, device):
                continue
            self.used.add(device.id)
            self.picked[number].append((choice, device))
            if self._devices(number, at, choice, matching, index + 1, missing - 1):
                return True
            self.picked[number].pop()
            self.used.discard(device.id)
            if self.steps > self.max_steps:
                return False
        return False

    def _all_available(self, choice: RequestChoice, matching: Sequence[ClaimableDevice]) -> bool:
        incomplete = next((device.id for device in matching if not device.complete), None)
        if incomplete is not None:
            self.problem = self.problem or (
                f"request {choice.name} requests all devices, and pool {incomplete.pool} of driver {incomplete.driver} "
                "is being updated"
            )
        return bool(matching) and incomplete is None

    def _matching(self, choice: RequestChoice) -> list[ClaimableDevice]:
        """Computed once per choice: a search reads it at every step."""
        known = self.matching.get(id(choice))
        if known is None:
            known = self.matching[id(choice)] = self._find_matching(choice)
        return known

    def _find_matching(self, choice: RequestChoice) -> list[ClaimableDevice]:
        tests = [
            _compiled(choice.name, selector, limit)
            for selectors, limit in (
                (choice.device_class.spec.selectors, MAX_CLASS_CHARS),
                (choice.request.selectors, MAX_CLAIM_CHARS),
            )
            for selector in selectors
        ]
        matching = []
        for device in self.devices:
            try:
                if all(test(device, self.budget.spend) for test in tests) and _tolerated(choice.request, device):
                    matching.append(device)
            except ExpressionError as error:
                self.problem = self.problem or f"request {choice.name}: CEL selector: {error}"
        return matching

    def _allowed(self, number: int, choice: RequestChoice, device: ClaimableDevice) -> bool:
        """Whether the claim's constraints hold with this device added."""
        constraints = self.claims[number].claim.spec.devices.constraints
        for constraint in constraints:
            if _concerns(constraint, choice):
                others = [other for picked, other in self.picked[number] if _concerns(constraint, picked)]
                if not _holds(constraint, device, others):
                    return False
        return True


def _concerns(constraint: DeviceConstraint, choice: RequestChoice) -> bool:
    names = constraint.requests
    return not names or choice.name in names or choice.name.partition("/")[0] in names


def _holds(constraint: DeviceConstraint, device: ClaimableDevice, others: Sequence[ClaimableDevice]) -> bool:
    name = constraint.match_attribute or constraint.distinct_attribute
    value = device.attribute(name)
    if value is None:
        return False
    values = [other.attribute(name) for other in others]
    if constraint.match_attribute:
        return all(type(other) is type(value) and other == value for other in values)
    return all(type(other) is not type(value) or other != value for other in values)


def _tolerated(request: ExactDeviceRequest, device: ClaimableDevice) -> bool:
    return all(
        taint.effect not in REPELLING or any(toleration.tolerates(taint) for toleration in request.tolerations)
        for taint in device.taints
    )


def result(requests: ClaimRequests, picked: Sequence[tuple[RequestChoice, ClaimableDevice]]) -> AllocationResult:
    """The allocation as it is written into the claim's status."""
    devices = [
        DeviceRequestAllocationResult(
            request=choice.name,
            driver=device.id.driver,
            pool=device.id.pool,
            device=device.id.device,
            tolerations=choice.request.tolerations,
        )
        for choice, device in picked
    ]
    chosen = {choice.name: choice for choice, _ in picked}
    config: list[dict[str, Any]] = [
        {"source": "FromClass", "requests": [name], **entry}
        for name, choice in chosen.items()
        for entry in choice.device_class.spec.config
    ]
    names = {*chosen, *(name.partition("/")[0] for name in chosen)}
    config += [
        {"source": "FromClaim", **entry}
        for entry in requests.claim.spec.devices.config
        if not entry.get("requests") or names.intersection(entry["requests"])
    ]
    return AllocationResult(
        devices=DeviceAllocationResult(results=devices, config=config),
        node_selector=_where([device for _, device in picked]),
    )


def _where(devices: Sequence[ClaimableDevice]) -> NodeSelector | None:
    """The nodes on which all devices can be used; None: all."""
    node = next((device.node_name for device in devices if device.node_name), "")
    if node:
        requirement = NodeSelectorRequirement(key=NAME_FIELD, operator="In", values=[node])
        return NodeSelector(node_selector_terms=[NodeSelectorTerm(match_fields=[requirement])])
    selectors = [device.node_selector for device in devices if device.node_selector is not None]
    if not selectors:
        return None
    if all(selector == selectors[0] for selector in selectors):
        return selectors[0]
    terms = [term for selector in selectors for term in selector.node_selector_terms]
    return NodeSelector(
        node_selector_terms=[
            NodeSelectorTerm(
                match_expressions=[each for term in terms for each in term.match_expressions],
                match_fields=[each for term in terms for each in term.match_fields],
            )
        ]
    )

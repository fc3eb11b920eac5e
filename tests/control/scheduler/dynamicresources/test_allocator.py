"""Devices for claims, compared with a search over all combinations."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control.scheduler.plugins.dynamicresources.allocator import (
    MAX_STEPS,
    TOO_COMPLEX,
    NotAllocatable,
    SearchBudget,
    allocate,
    prepared,
    result,
)
from control.scheduler.plugins.dynamicresources.pools import MAX_READS, ClaimableDevice, Pools
from control.scheduler.plugins.dynamicresources.selectors import MAX_CLASS_CHARS
from koordlet.api.core.claims import AllocationResult, DeviceClass, ResourceClaim
from koordlet.api.encoding import wire
from tests.control.scheduler.build import node
from tests.control.scheduler.dynamicresources.objects import (
    DRIVER,
    MODEL,
    claim,
    device,
    device_class,
    request,
    slice_of,
)

CLASSES = {"gpu": device_class()}
NUMA, UUID = f"{DRIVER}/numa", f"{DRIVER}/uuid"


def devices(*bodies: dict[str, Any], **how: Any) -> list[ClaimableDevice]:
    return Pools.of([slice_of("n1", *bodies, **how)]).on(node("n1"))


def names(
    claims: Sequence[ResourceClaim], known: Sequence[ClaimableDevice], *taken: str
) -> list[list[tuple[str, str]]]:
    """Per claim (name of the request, device)."""
    requests = [prepared(each, CLASSES) for each in claims]
    chosen = allocate(requests, known, lambda device_id: device_id.device in taken)
    return [[(choice.name, each.id.device) for choice, each in picked] for picked in chosen]


GPUS = (device("g-0"), device("g-1"), device("g-2", model="H100"), device("g-3", model="H100", memory="80Gi"))


@pytest.mark.parametrize(
    ("claims", "taken", "expected"),
    [
        ([claim()], (), [[("r", "g-0")]]),
        ([claim()], ("g-0", "g-1"), [[("r", "g-2")]]),
        ([claim("c", request(count=3))], ("g-1",), [[("r", "g-0"), ("r", "g-2"), ("r", "g-3")]]),
        ([claim("c", request("r", f'{MODEL} == "H100"'))], (), [[("r", "g-2")]]),
        ([claim("c", request("a", count=2), request("b"))], (), [[("a", "g-0"), ("a", "g-1"), ("b", "g-2")]]),
        ([claim("c"), claim("d")], (), [[("r", "g-0")], [("r", "g-1")]]),
        ([claim("c", request("r", f'{MODEL} == "A100"', allocationMode="All"))], (), [[("r", "g-0"), ("r", "g-1")]]),
        # the first request leaves room for the second
        (
            [claim("c", request("a"), request("b", f'{MODEL} == "A100"', count=2))], (),
            [[("a", "g-2"), ("b", "g-0"), ("b", "g-1")]],
        ),
    ],
)  # fmt: skip
def test_choices(claims: list[ResourceClaim], taken: tuple[str, ...], expected: list[Any]) -> None:
    assert names(claims, devices(*GPUS), *taken) == expected


@pytest.mark.parametrize(
    ("claims", "taken", "reason"),
    [
        ([claim("c", request(count=5))], (), ""),
        ([claim("c", request("r", f'{MODEL} == "A100"', allocationMode="All"))], ("g-1",), ""),
        ([claim("c", request("r", f'{MODEL} == "T4"', allocationMode="All"))], (), ""),
        ([claim("c", request("r", "device.nothing == 1"))], (), "request r: CEL selector: cannot be evaluated"),
    ],
)
def test_no_choice(claims: list[ResourceClaim], taken: tuple[str, ...], reason: str) -> None:
    with pytest.raises(NotAllocatable) as failure:
        names(claims, devices(*GPUS), *taken)
    assert str(failure.value).startswith(reason) and bool(str(failure.value)) == bool(reason)


def test_alternatives_are_tried_in_order() -> None:
    large = {"name": "large", **request("r", f'{MODEL} == "H100"', count=2)["exactly"]}
    wish = {"name": "r", "firstAvailable": [large, {"name": "any", "deviceClassName": "gpu"}]}
    assert names([claim("c", wish)], devices(*GPUS)) == [[("r/large", "g-2"), ("r/large", "g-3")]]
    assert names([claim("c", wish)], devices(*GPUS), "g-3") == [[("r/any", "g-0")]]


def test_constraints() -> None:
    bodies = [device(f"g-{number}") for number in range(6)]
    for body, numa in zip(bodies, (0, 1, 1, 2, 2, 2), strict=True):
        body["attributes"]["numa"] = {"int": numa}
    known = devices(*bodies)
    near = [{"requests": ["r"], "matchAttribute": NUMA}]
    assert names([claim("c", request(count=2), constraints=near)], known) == [[("r", "g-1"), ("r", "g-2")]]
    assert names([claim("c", request(count=3), constraints=near)], known)[0][0] == ("r", "g-3")
    far = [{"distinctAttribute": NUMA}]
    assert names([claim("c", request(count=3), constraints=far)], known) == [[("r", "g-0"), ("r", "g-1"), ("r", "g-3")]]
    missing = [{"matchAttribute": "other.com/numa"}]
    with pytest.raises(NotAllocatable):
        names([claim("c", constraints=missing)], known)


def test_taints_are_tolerated_by_the_request() -> None:
    known = devices(device("g-0", taints=[{"key": "broken", "effect": "NoSchedule"}]), device("g-1"))
    assert names([claim()], known) == [[("r", "g-1")]]
    tolerant = request(tolerations=[{"key": "broken", "operator": "Exists"}])
    assert names([claim("c", tolerant)], known) == [[("r", "g-0")]]


@pytest.mark.parametrize(
    ("wish", "reason"),
    [
        (request(cls="none"), "request r: device class none does not exist"),
        (request(adminAccess=True), "request r: adminAccess is not supported"),
        (request(capacity={"requests": {"memory": "1Gi"}}), "request r: consumable capacity is not supported"),
        (request(allocationMode="Some"), "request r: unknown allocation mode Some"),
        (request("r", "device."), "request r: CEL selector: cannot be parsed"),
        ({"name": "r"}, "request r: its form is not supported"),
    ],
)
def test_forms_that_are_not_supported(wish: dict[str, Any], reason: str) -> None:
    with pytest.raises(NotAllocatable) as failure:
        prepared(claim("c", wish), CLASSES)
    assert str(failure.value).startswith(reason)


def test_all_devices_of_an_incomplete_pool_have_to_wait() -> None:
    known = devices(*GPUS, version=(1, 2))
    assert names([claim()], known) == [[("r", "g-0")]]
    with pytest.raises(NotAllocatable, match=r"pool n1 of driver gpu\.example\.com is being updated"):
        names([claim("c", request(allocationMode="All"))], known)


def test_a_search_without_end_is_given_up() -> None:
    known = devices(*(device(f"g{number}-{number % 10}") for number in range(40)))
    never = {"matchAttribute": UUID, "requests": ["b"]}  # so every combination of the first request is tried
    hopeless = claim("c", request("a", count=8), request("b", count=2), constraints=[never])
    with pytest.raises(NotAllocatable, match=TOO_COMPLEX):
        names([hopeless], known)
    assert MAX_STEPS <= 10_000


def test_a_claim_gets_at_most_32_devices() -> None:
    known = devices(*(device(f"g{number}-{number % 10}") for number in range(40)))
    assert len(names([claim("c", request(count=32))], known)[0]) == 32
    with pytest.raises(NotAllocatable, match="at most 32 devices"):
        names([claim("c", request(count=33))], known)


def allocation_of(
    claim: ResourceClaim, known: Sequence[ClaimableDevice], classes: dict[str, DeviceClass]
) -> AllocationResult:
    requests = prepared(claim, classes)
    return result(requests, allocate([requests], known, lambda _: False)[0])


def test_the_result_names_node_and_configuration() -> None:
    opaque = {"opaque": {"driver": DRIVER, "parameters": {"share": "none"}}}
    classes = {"gpu": device_class("gpu", config=[opaque])}
    own = [{"requests": ["r"], **opaque}, {"requests": ["other"], **opaque}, dict(opaque)]
    written = wire.to_builtins(allocation_of(claim("c", config=own), devices(*GPUS), classes))
    assert written["devices"]["results"] == [{"request": "r", "driver": DRIVER, "pool": "n1", "device": "g-0"}]
    assert written["devices"]["config"] == [
        {"source": "FromClass", "requests": ["r"], **opaque},
        {"source": "FromClaim", "requests": ["r"], **opaque},
        {"source": "FromClaim", **opaque},
    ]
    (term,) = written["nodeSelector"]["nodeSelectorTerms"]
    assert term["matchFields"] == [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]


def test_devices_of_several_nodes() -> None:
    zone = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]}
    in_zone = slice_of("", device("g-0"), pool="a", nodeSelector=zone)
    pools = Pools.of([in_zone, slice_of("", device("g-1"), pool="b", allNodes=True)])
    inside, outside = node("n1", labels={"zone": "a"}), node("n2")
    assert [each.id.device for each in pools.on(inside)] == ["g-0", "g-1"]
    assert [each.id.device for each in pools.on(outside)] == ["g-1"]
    assert wire.to_builtins(allocation_of(claim(), pools.on(inside), CLASSES))["nodeSelector"] == zone
    assert allocation_of(claim(), pools.on(outside), CLASSES).node_selector is None


def test_only_the_newest_generation_of_a_pool_counts_and_partial_devices_are_left_out() -> None:
    pools = Pools.of(
        [
            slice_of("n1", device("old-0"), version=(1, 1)),
            slice_of("n1", device("new-0"), device("part-1", consumesCounters=[{"counterSet": "c"}]), version=(2, 1)),
        ]
    )
    assert [each.id.device for each in pools.on(node("n1"))] == ["new-0"]
    assert pools.unsupported == 1


WISHES = st.lists(st.tuples(st.sampled_from(("", "A100", "H100")), st.integers(1, 3)), min_size=1, max_size=3)


@settings(max_examples=150)
@given(
    st.lists(st.tuples(st.sampled_from(("A100", "H100")), st.integers(0, 1)), max_size=5),
    st.sets(st.integers(0, 4)),
    WISHES,
    st.sampled_from(("", "matchAttribute", "distinctAttribute")),
)
def test_an_allocation_exists_exactly_if_some_combination_works(
    models: list[tuple[str, int]], taken: set[int], wishes: list[tuple[str, int]], rule: str
) -> None:
    bodies = [device(f"g-{number}", model) for number, (model, _) in enumerate(models)]
    for body, (_, numa) in zip(bodies, models, strict=True):
        body["attributes"]["numa"] = {"int": numa}
    requests = [
        request(f"r{at}", *([f'{MODEL} == "{model}"'] if model else []), count=count)
        for at, (model, count) in enumerate(wishes)
    ]
    constraints = [{rule: NUMA}] if rule else []
    free = [number for number in range(len(models)) if number not in taken]
    counts = [count for _, count in wishes]
    possible = any(
        suits(parts, wishes, models) and spread([models[number][1] for part in parts for number in part], rule)
        for parts in partitions(free, counts)
    )
    wish = claim("c", *requests, constraints=constraints)
    try:
        (picked,) = names([wish], devices(*bodies), *(f"g-{number}" for number in taken))
    except NotAllocatable:
        assert not possible
        return
    assert possible
    numbers = [int(name[-1]) for _, name in picked]
    assert len(set(numbers)) == len(numbers) and not taken & set(numbers)
    assert [name for name, _ in picked] == [f"r{at}" for at, (_, count) in enumerate(wishes) for _ in range(count)]
    assert spread([models[number][1] for number in numbers], rule)


def partitions(free: list[int], counts: list[int]) -> list[list[tuple[int, ...]]]:
    if not counts:
        return [[]]
    return [
        [chosen, *rest]
        for chosen in itertools.combinations(free, counts[0])
        for rest in partitions([number for number in free if number not in chosen], counts[1:])
    ]


def suits(parts: list[tuple[int, ...]], wishes: list[tuple[str, int]], models: list[tuple[str, int]]) -> bool:
    return all(
        not model or models[number][0] == model
        for (model, _), part in zip(wishes, parts, strict=True)
        for number in part
    )


def spread(values: list[int], rule: str) -> bool:
    if rule == "matchAttribute":
        return len(set(values)) <= 1
    return rule != "distinctAttribute" or len(set(values)) == len(values)


def test_the_devices_that_match_a_request_are_found_once_per_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last request is reached for each of the combinations of the first one."""
    reads: list[tuple[str, ...]] = []
    read = ClaimableDevice.read

    def count(each: ClaimableDevice, path: tuple[str, ...]) -> Hashable:
        reads.append(path)
        return read(each, path)

    monkeypatch.setattr(ClaimableDevice, "read", count)
    hard = prepared(claim("c", request("r", count=4), request("s", f'{MODEL} == "none"')), CLASSES)
    known = devices(*(device(f"g-{number}") for number in range(9)))
    with pytest.raises(NotAllocatable):
        allocate([hard], known, lambda _: False)
    assert len(reads) < 100


def test_constraints_and_nodes_use_up_a_common_budget() -> None:
    constraints = [{"matchAttribute": NUMA}, {"matchAttribute": UUID}]
    wish = prepared(claim("c", request(count=2), constraints=constraints), CLASSES)
    known, budget = devices(*GPUS), SearchBudget(20)
    for _ in range(3):
        with pytest.raises(NotAllocatable):
            allocate([wish], known, lambda _: False, budget)
    assert budget.steps <= 0
    with pytest.raises(NotAllocatable, match=TOO_COMPLEX):
        allocate([prepared(claim(), CLASSES)], known, lambda _: False, budget)


def test_evaluations_use_up_the_budget_and_are_remembered() -> None:
    """Each device has another uuid, so the long expression is evaluated for each."""
    text = " || ".join(f'device.attributes["{DRIVER}"].uuid == "budget-{number}"' for number in range(5))
    known = devices(*(device(f"g-{number}") for number in range(8)))
    wish = prepared(claim("c", request("r", text)), CLASSES)
    attempts = []
    for _ in range(6):
        budget = SearchBudget(1000)
        with pytest.raises(NotAllocatable) as refused:
            allocate([wish], known, lambda _: False, budget)
        attempts.append(str(refused.value))
    assert attempts[0] == TOO_COMPLEX
    assert attempts[-1] == "", "everything is evaluated, and nothing matches"


def test_a_device_keeps_a_bounded_number_of_what_was_read() -> None:
    (gpu,) = devices(device("g-0"))
    for number in range(10 * MAX_READS):
        assert gpu.read(("attributes", "tenant", f"name{number}")) == (type(None), "None")
    assert len(gpu._read) <= MAX_READS


def test_the_longest_expression_of_a_class_fits_into_the_budget() -> None:
    text = f'device.driver == "{DRIVER}" ' + " " * (MAX_CLASS_CHARS - 40)
    allocate([prepared(claim(), {"gpu": device_class("gpu", text)})], devices(*GPUS), lambda _: False, SearchBudget())

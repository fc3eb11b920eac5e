"""Annotations of pods are bounded in length and items, and decoded once per text, whatever a tenant writes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.api import names
from koordlet.api.annotations import device, gang, pod, reservation, scheduling
from koordlet.api.annotations._base import PER_CONTAINER, SETTING, Annotation, DefaultAnnotation, TextLimits
from koordlet.api.cpus import MAX_CPU, MAX_RANGES, CPUListError, parse_cpus
from koordlet.api.encoding.remembered import RememberedTexts
from koordlet.api.encoding.wire import WireError
from koordlet.system.cpu.cpuset import CPUSet, CPUSetError

READERS: dict[str, tuple[Callable[[Mapping[str, str]], object], TextLimits]] = {
    names.ANNOTATION_CPU_BURST: (pod.CPU_BURST.get, SETTING),
    names.ANNOTATION_MEMORY_QOS: (pod.MEMORY_QOS.get, SETTING),
    names.ANNOTATION_BLKIO_QOS: (pod.BLKIO_QOS.get, SETTING),
    names.ANNOTATION_CPU_QOS: (pod.cpu_qos, SETTING),
    names.ANNOTATION_NETWORK_QOS: (pod.network_limits, SETTING),
    names.ANNOTATION_RESCTRL: (pod.RESCTRL.get, SETTING),
    names.ANNOTATION_OOM_SCORE_ADJ_SPEC: (pod.oom_scores, PER_CONTAINER),
    names.ANNOTATION_EXTENDED_RESOURCE_SPEC: (pod.EXTENDED_RESOURCE_SPEC.get, PER_CONTAINER),
    names.ANNOTATION_RESOURCE_STATUS: (scheduling.RESOURCE_STATUS.get, PER_CONTAINER),
    names.ANNOTATION_DEVICE_ALLOCATED: (device.ALLOCATED.get, PER_CONTAINER),
    names.ANNOTATION_DEVICE_ALLOCATE_HINT: (device.ALLOCATE_HINT.get, SETTING),
    names.ANNOTATION_DEVICE_JOINT_ALLOCATE: (device.JOINT_ALLOCATE.get, SETTING),
    names.ANNOTATION_GPU_PARTITION_SPEC: (device.gpu_partition_spec, SETTING),
    names.ANNOTATION_GANG_NETWORK_TOPOLOGY_SPEC: (gang.NETWORK_TOPOLOGY_SPEC.get, SETTING),
    names.ANNOTATION_RESOURCE_SPEC: (scheduling.RESOURCE_SPEC.get, SETTING),
    names.ANNOTATION_NUMA_TOPOLOGY_SPEC: (scheduling.NUMA_TOPOLOGY_SPEC.get, SETTING),
    names.ANNOTATION_SCHEDULING_HINT: (scheduling.scheduling_hint, scheduling.HINT_LIMITS),
    names.ANNOTATION_RESERVATION_AFFINITY: (reservation.AFFINITY.get, PER_CONTAINER),
}
"""What koordlet and koord-scheduler read from pods as JSON."""
OF_OTHER_OBJECTS = {names.ANNOTATION_GPU_PARTITIONS}
"""Read from Device objects only."""
MAX_MESSAGE_CHARS = 600


@pytest.mark.parametrize("key", READERS)
def test_a_long_text_is_refused_by_its_length(key: str) -> None:
    read, limits = READERS[key]
    for text in ("0" * limits.chars + "0", '{"cpuset":"' + "0-65535," * 30_000 + '"}'):
        with pytest.raises(WireError, match=f"{key}.*characters, at most {limits.chars}") as refused:
            read({key: text})
        assert len(str(refused.value)) < MAX_MESSAGE_CHARS


@pytest.mark.parametrize("key", READERS)
def test_many_items_are_refused(key: str) -> None:
    read, limits = READERS[key]
    texts = (
        json.dumps([0] * (limits.items + 1)),
        json.dumps({str(number): 0 for number in range(limits.items + 1)}),
        json.dumps({"a": [[]] * (limits.items // 2), "b": [{}] * (limits.items // 2)}),
    )
    for text in texts:
        with pytest.raises(WireError, match=f"{key}.*more than {limits.items} items"):
            read({key: text})


def annotations_of(module: ModuleType) -> list[Annotation[Any]]:
    values = [part for value in vars(module).values() for part in (value if isinstance(value, tuple) else (value,))]
    inner = [value._inner for value in values if isinstance(value, DefaultAnnotation)]
    return [value for value in (*values, *inner) if isinstance(value, Annotation)]


@pytest.mark.parametrize("module", [device, gang, pod, reservation, scheduling])
def test_every_annotation_that_a_tenant_can_write_has_limits(module: ModuleType) -> None:
    """A selector of 6,000 expressions in a device hint cost the scheduler 5 ms per node."""
    declared = annotations_of(module)
    assert declared
    assert {each.key for each in declared if each.limits is None} <= OF_OTHER_OBJECTS


def test_the_policy_of_evictions_is_bounded_too() -> None:
    text = json.dumps(["BEMemoryEvict"] * (SETTING.items + 1))
    assert not pod.eviction_allowed({names.ANNOTATION_EVICTION_POLICY: text}, "BEMemoryEvict")


@pytest.mark.parametrize("text", ['{"cpuset":"0-1"}', "{"], ids=["valid", "malformed"])
def test_an_unchanged_text_is_decoded_once(text: str) -> None:
    annotation: Annotation[scheduling.ResourceStatus] = Annotation("key", scheduling.ResourceStatus, limits=SETTING)
    results = set()
    for _ in range(100):
        copy = (text + " ")[:-1]  # every answer of the kubelet has new strings
        try:
            results.add(id(annotation.get({"key": copy})))
        except WireError as error:
            assert "key" in str(error)
            results.add(id(error))
    assert len(results) == 1


def test_texts_without_limits_are_not_remembered() -> None:
    annotation: Annotation[dict[str, Any]] = Annotation("key", dict[str, Any])
    annotation.get({"key": "{}"})
    assert len(annotation.remembered) == 0


@given(st.lists(st.text(max_size=8)), st.integers(1, 5), st.integers(1, 20))
def test_remembered_texts_stay_within_their_bounds(texts: list[str], entries: int, chars: int) -> None:
    remembered = RememberedTexts(len, ValueError, max_entries=entries, max_chars=chars)
    for text in texts:
        assert remembered(text) == len(text)
        assert len(remembered) <= entries and remembered.kept_chars <= chars


def test_the_least_recently_used_text_is_dropped() -> None:
    parsed: list[str] = []
    remembered = RememberedTexts(parsed.append, ValueError, max_entries=2)
    for text in ("a", "bb", "a", "ccc", "a"):
        remembered(text)
    assert parsed == ["a", "bb", "ccc"]


LONG_LISTS = {
    "repeated ranges": "0-4095," * 20 + "0",
    "many items": "0," * MAX_RANGES + "0",
    "a long item": "0" * 50_000,
    "a long line of repeats": "0-65535," * 30_000 + "0",
}


@pytest.mark.parametrize("text", LONG_LISTS.values(), ids=LONG_LISTS)
def test_long_cpu_lists_are_refused_with_a_short_message(text: str) -> None:
    for parse, error in ((parse_cpus, CPUListError), (CPUSet.parse, CPUSetError)):
        with pytest.raises(error) as refused:
            parse(text)
        assert len(str(refused.value)) < MAX_MESSAGE_CHARS


def test_the_cpus_of_the_largest_machines_are_read() -> None:
    everything = f"0-{MAX_CPU - 1}"
    assert len(parse_cpus(everything)) == MAX_CPU
    alternate = ",".join(str(cpu) for cpu in range(0, 2 * MAX_RANGES, 2))
    assert len(parse_cpus(alternate)) == len(CPUSet.parse(alternate)) == MAX_RANGES


@given(st.integers(0, 40), st.recursive(st.none(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_items_are_counted_at_every_depth(limit: int, document: object) -> None:
    annotation: Annotation[Any] = Annotation("key", Any, limits=TextLimits(chars=10_000, items=limit))
    text = json.dumps(document)
    if _items(document) > limit:
        with pytest.raises(WireError, match="items"):
            annotation.get({"key": text})
    else:
        assert annotation.get({"key": text}) == document


def _items(document: object) -> int:
    members = list(document.values()) if isinstance(document, dict) else document
    return len(members) + sum(map(_items, members)) if isinstance(members, list) else 0

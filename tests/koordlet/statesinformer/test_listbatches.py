"""A long list of pods, cut between pods while it arrives."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.kube.decode import RawList
from koordlet.statesinformer.pods import listbatches
from koordlet.statesinformer.pods.listbatches import Batch, BatchTooLongError, ListBatches


@pytest.fixture(autouse=True, scope="module")
def small_batches() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listbatches, "BATCH_BYTES", 100)
        patch.setattr(listbatches, "MAX_BATCH_BYTES", 1000)
        yield


def compact(value: object) -> bytes:
    """As a kubelet writes it."""
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def batches(text: bytes, part: int, *left_out: Callable[[memoryview], bool]) -> list[Batch]:
    collector, split = ListBatches(*left_out), []
    for start in range(0, len(text), part):
        batch = collector.add(text[start : start + part])
        if batch is not None:
            split.append(batch)
    return [*split, collector.rest()]


def items(split: list[Batch]) -> list[Any]:
    decoder = msgspec.json.Decoder(RawList)
    return [json.loads(bytes(raw)) for batch in split for raw in decoder.decode(batch).items or []]


texts = st.text(max_size=30) | st.just('},{"metadata":') | st.just('\\"},{"metadata":')
pods = st.builds(
    lambda name, env, number: {"metadata": {"name": name}, "spec": {"env": env, "n": number}},
    texts, st.lists(texts, max_size=4), st.integers(),
)  # fmt: skip


@given(st.lists(pods, max_size=30), st.integers(1, 300))
def test_the_pods_are_those_of_the_whole_list(listed: list[Any], part: int) -> None:
    text = compact({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": listed})
    split = batches(text, part)
    assert items(split) == listed
    assert max(map(len, split)) <= 100 + part + max((len(compact(pod)) for pod in listed), default=0) + 100


@given(st.lists(pods, max_size=30), st.sets(st.integers(0, 29)), st.integers(1, 300), st.sampled_from(["", "\n"]))
def test_long_pods_can_be_left_out(listed: list[Any], unwanted: set[int], part: int, end: str) -> None:
    for number, pod in enumerate(listed):
        pod["metadata"] = {"uid": f"{number:02}", **pod["metadata"]}
    text = compact({"kind": "PodList", "metadata": {}, "items": listed}).rstrip() + end.encode()
    asked: list[int] = []

    def left_out(pod: memoryview) -> bool:
        asked.append(int(bytes(pod[len('{"metadata":{"uid":"') :][:2])))
        return asked[-1] in unwanted

    kept = items(batches(text, part, left_out))
    assert len(asked) == len(set(asked))
    assert kept == [pod for number, pod in enumerate(listed) if number not in unwanted.intersection(asked)]
    assert all(number in asked for number, pod in enumerate(listed) if len(compact(pod)) > 100 + 2 * part)


def test_a_pod_that_is_left_out_is_not_held() -> None:
    collector = ListBatches(lambda pod: True)
    parts = [b'{"items":[{"metadata":{"uid":"a"', *[b"x" * 50] * 100, b'"}', b',{"metadata":{"uid":"b"}}]}']
    held, lists = [], []
    for part in parts:
        lists.append(collector.add(part))
        held.append(len(collector._held))
    assert max(held) < 200
    assert lists == [None] * 102 + [b'{"items":[]}'], "the end of a pod that is left out is progress"
    assert (collector.rest(), collector.bytes) == (b'{"items":[{"metadata":{"uid":"b"}}]}', len(b"".join(parts)))


def test_an_answer_that_ends_within_a_pod_that_is_left_out_is_an_error() -> None:
    with pytest.raises(msgspec.DecodeError):
        items(batches(b'{"items":[{"metadata":{"uid":"' + b"x" * 500, 50, lambda pod: True))


def test_a_short_answer_is_not_changed() -> None:
    text = compact({"items": [{"metadata": {}}]})
    assert batches(text, 7) == [text]


def test_a_cut_within_an_object_is_an_error_and_not_another_list() -> None:
    odd = {"spec": {"inner": [{"x": 1}, {"metadata": "x" * 100}]}}
    with pytest.raises(msgspec.DecodeError):
        items(batches(compact({"items": [odd] * 5}), 50))


def test_a_list_that_cannot_be_cut_is_refused() -> None:
    with pytest.raises(BatchTooLongError, match="within 1000 bytes"):
        batches(compact({"items": [{"spec": {}, "metadata": {"name": "x"}}] * 50}), 100)

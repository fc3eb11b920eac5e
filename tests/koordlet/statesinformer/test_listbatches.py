"""A long list of pods, cut between pods while it arrives."""

import json
from collections.abc import Iterator
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


def batches(text: bytes, part: int) -> list[Batch]:
    collector, split = ListBatches(), []
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

"""How often a pod that changes all the time is decoded."""

from hypothesis import given
from hypothesis import strategies as st

from koordlet.statesinformer.pods.decodeallowance import BYTES_PER_ANSWER, MAX_BYTES, DecodeAllowance


@given(st.lists(st.integers(1, 4 * MAX_BYTES), min_size=1, max_size=60))
def test_the_decoded_bytes_are_bounded_however_a_pod_changes(sizes: list[int]) -> None:
    allowance, decoded = DecodeAllowance(), 0
    for size in sizes:
        allowance.start(["pod"])
        decoded += min(size, MAX_BYTES) if allowance.take("pod", size) else 0
    assert decoded <= 2 * MAX_BYTES + len(sizes) * BYTES_PER_ANSWER


@given(st.lists(st.integers(1, BYTES_PER_ANSWER), min_size=1, max_size=60))
def test_changes_within_the_allowance_are_decoded_at_once(sizes: list[int]) -> None:
    allowance = DecodeAllowance()
    for size in sizes:
        allowance.start(["pod"])
        assert allowance.take("pod", size)


@given(st.integers(1, 8 * MAX_BYTES))
def test_every_change_is_decoded_in_the_end(size: int) -> None:
    allowance = DecodeAllowance()
    answers = 0
    while allowance.take("pod", size):
        pass
    while not allowance.take("pod", size):
        allowance.start(["pod"])
        answers += 1
    assert answers <= MAX_BYTES // BYTES_PER_ANSWER + 1


def test_a_pod_that_vanished_is_forgotten() -> None:
    allowance = DecodeAllowance()
    allowance.take("pod", 2 * MAX_BYTES)
    assert not allowance.take("pod", 1)
    allowance.start([])
    assert allowance.take("pod", 1)

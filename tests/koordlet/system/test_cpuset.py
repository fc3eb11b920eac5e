import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.system.cpu.cpuset import CPUSet, CPUSetError


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("", set()),
        ("0", {0}),
        ("0,2-5", {0, 2, 3, 4, 5}),
        ("5-2", set()),
        ("3,1,1-2", {1, 2, 3}),
        ("4096", {4096}),
        ("5000", {5000}),
        ("4095-4096", {4095, 4096}),
    ],
)
def test_a_cpu_list_is_parsed(text: str, cpus: set[int]) -> None:
    assert CPUSet.parse(text) == CPUSet(cpus)


@pytest.mark.parametrize(
    "text", ["0-4097", "1-2-3", " 1", "1 ", "1, 2", "a", "-1", "1-", ",", "1,", "2147483648", "\n", "+1", "1_0", "٣"]
)
def test_malformed_lists_are_errors(text: str) -> None:
    with pytest.raises(CPUSetError):
        CPUSet.parse(text)


@pytest.mark.parametrize(
    ("cpus", "text"), [(set(), ""), ({3}, "3"), ({0, 2, 3, 4, 5}, "0,2-5"), ({0, 1, 7, 8}, "0-1,7-8")]
)
def test_a_set_is_formatted_as_a_list(cpus: set[int], text: str) -> None:
    assert str(CPUSet(cpus)) == text


CPUS = st.frozensets(st.integers(0, 4096))


@given(CPUS)
def test_a_formatted_set_is_parsed_back(cpus: frozenset[int]) -> None:
    assert CPUSet.parse(str(CPUSet(cpus))) == cpus
    assert list(CPUSet(cpus)) == sorted(cpus)


@given(CPUS, CPUS)
def test_set_operators_return_cpu_sets(left: frozenset[int], right: frozenset[int]) -> None:
    a, b = CPUSet(left), CPUSet(right)
    for result, expected in (
        (a | b, left | right),
        (a & b, left & right),
        (a - b, left - right),
        (a ^ b, left ^ right),
    ):
        assert isinstance(result, CPUSet)
        assert result == expected

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.system.cpu.cpuset import CPUListError, CPUSet, same_cpus


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
def test_parse(text, cpus):
    assert CPUSet.parse(text) == cpus


@pytest.mark.parametrize(
    "text", ["0-4097", "1-2-3", " 1", "1 ", "1, 2", "a", "-1", "1-", ",", "1,", "2147483648", "\n", "+1", "1_0", "٣"]
)
def test_malformed(text):
    with pytest.raises(CPUListError):
        CPUSet.parse(text)


@pytest.mark.parametrize(
    ("cpus", "text"), [(set(), ""), ({3}, "3"), ({0, 2, 3, 4, 5}, "0,2-5"), ({0, 1, 7, 8}, "0-1,7-8")]
)
def test_format(cpus, text):
    assert str(CPUSet(cpus)) == text


@pytest.mark.parametrize(
    ("left", "right", "same"), [("0-2", "2,1,0", True), ("0", "1", False), ("x", "x", False), ("", "", True)]
)
def test_same(left, right, same):
    assert same_cpus(left, right) is same


CPUS = st.frozensets(st.integers(0, 4096))


@given(CPUS)
def test_parse_after_format(cpus):
    assert CPUSet.parse(str(CPUSet(cpus))) == cpus
    assert list(CPUSet(cpus)) == sorted(cpus)


@given(CPUS, CPUS)
def test_operators_stay_cpu_sets(left, right):
    a, b = CPUSet(left), CPUSet(right)
    for result, expected in (
        (a | b, left | right),
        (a & b, left & right),
        (a - b, left - right),
        (a ^ b, left ^ right),
    ):
        assert isinstance(result, CPUSet)
        assert result == expected

"""CPU lists."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.api.cpus import CPUListError, format_cpus, parse_cpus


@pytest.mark.parametrize(
    ("text", "cpus", "canonical"),
    [
        ("", set(), ""),
        ("0-3,8,10-11", {0, 1, 2, 3, 8, 10, 11}, "0-3,8,10-11"),
        ("3,2,1,1", {1, 2, 3}, "1-3"),
        ("0, 5-6\n", {0, 5, 6}, "0,5-6"),
    ],
)
def test_lists(text: str, cpus: set[int], canonical: str) -> None:
    assert parse_cpus(text) == cpus and format_cpus(cpus) == canonical


@pytest.mark.parametrize("text", ["a", "3-1", "1-", "-1", "1,,2", "0-999999", "1:2", "٣"])
def test_refuses(text: str) -> None:
    with pytest.raises(CPUListError, match="is not a CPU list"):
        parse_cpus(text)


@given(st.frozensets(st.integers(0, 300)))
def test_every_set_reads_back(cpus: frozenset[int]) -> None:
    assert parse_cpus(format_cpus(cpus)) == cpus

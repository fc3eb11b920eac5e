"""Distinct numbers without importing numpy's masked arrays."""

import subprocess
import sys

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from koordlet.probes.columns import distinct

PROGRAM = """
import sys
import numpy as np
from koordlet.probes.columns import align_pairs
first, second = np.array([1, 1, 2]), np.array([5, 7, 5])
assert align_pairs((first, second), (first[1:], second[1:])).tolist() == [1, 2]
assert "numpy.ma" not in sys.modules
"""


@given(st.lists(st.integers(-3, 1 << 62)))
def test_distinct_is_a_sorted_set(values: list[int]) -> None:
    assert distinct(np.array(values, dtype=np.int64)).tolist() == sorted(set(values))


def test_windows_of_pairs_load_no_masked_arrays() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=60)

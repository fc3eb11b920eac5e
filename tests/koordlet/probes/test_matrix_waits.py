"""The matrix a piece at a time says what it says as a whole."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from koordlet.probes.schedlatency import layout
from koordlet.probes.schedlatency.layout import Sizes
from koordlet.probes.schedlatency.tables import Tables


@pytest.mark.parametrize("used", [0, 3, 10_000, 20_000])
def test_waits_are_the_charges(used: int) -> None:
    tables: Any = Tables.__new__(Tables)
    tables.source, tables.sizes = "bpf", Sizes(cpus=2)
    tables._matrix = np.zeros((2, 10_000), dtype=layout.MATRIX_ENTRY)
    tables._slots = SimpleNamespace(keys=lambda: np.arange(5))
    flat = tables._matrix.reshape(-1)
    places = np.random.default_rng(1).permutation(len(flat))[:used]
    flat["key"][places] = 1 << 16 | 2
    flat["wait_ns"][places] = np.arange(used) + 1
    waits, charges = tables.waits(), tables.charges()
    pieces = list(waits.pieces)
    key, ns = (np.concatenate([piece[side] for piece in pieces]) for side in (0, 1))
    assert max(len(piece[0]) for piece in pieces) < len(flat)
    assert np.array_equal(key[charges.at], charges.key) and np.array_equal(ns[charges.at], charges.wait_ns)
    assert key.astype(bool).sum() == used == charges.key.astype(bool).sum()
    assert waits.slot_keys.tolist() == [0, 1, 2, 3, 4]

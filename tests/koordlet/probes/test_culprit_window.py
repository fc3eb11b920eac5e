"""The window of culprits: as long as it should be, and equal to the difference of its ends."""

import numpy as np

from koordlet.probes.culprits.reader import MatrixReading
from koordlet.probes.culprits.window import CulpritWindow

KEYS = np.array([700, 500, -1])
"""Slot -> cgroup; the last is special."""
PAIRS = ((0, 1), (1, 0), (0, 2))


def reading(second: float, *ns: int, source: str = "bpf") -> MatrixReading:
    """What each of `PAIRS` waited so far."""
    used = [place for place, waited in enumerate(ns) if waited]
    key = np.array([PAIRS[place][0] + 1 << 16 | PAIRS[place][1] + 1 for place in used], dtype=np.uint32)
    waits = np.array([ns[place] for place in used], dtype=np.int64)
    position = np.array(used, dtype=np.int32)
    return MatrixReading(source, int(second * 1e9), position, key, waits, waits // 10, KEYS)


def total(window: CulpritWindow, now: MatrixReading) -> tuple[dict[tuple[int, int], int], float]:
    until = window.until(now)
    assert until is not None
    sums: dict[tuple[int, int], int] = {}
    columns = (until[0].victim.tolist(), until[0].culprit.tolist(), until[0].ns.tolist())
    for victim, culprit, ns in zip(*columns, strict=True):
        sums[victim, culprit] = sums.get((victim, culprit), 0) + ns
    return sums, until[1]


def test_a_window_is_up_to_a_quarter_longer_than_requested() -> None:
    window = CulpritWindow(10)
    assert window.until(reading(0, 10)) is None
    for second in range(31):
        assert window.due(second * 10**9, 2.5) == (second % 3 == 0)
        if second % 3 == 0:
            window.push(reading(second, 10 * second, 5, 100 if second >= 27 else 0))
    total_ns, seconds = total(window, reading(30.5, 400, 5, 130))
    assert (total_ns, seconds) == ({(700, 500): 400 - 180, (700, -1): 130}, 12.5)
    total_ns, seconds = total(window, reading(30, 300, 5, 100))
    assert (total_ns, seconds) == ({(700, 500): 300 - 180, (700, -1): 100}, 12)


def test_after_a_pause_a_window_has_no_older_parts() -> None:
    window = CulpritWindow(10)
    window.push(reading(0, 10))
    window.push(reading(100, 50))
    window.push(reading(111, 56))
    assert total(window, reading(112, 57)) == ({(700, 500): 7}, 12)


def test_a_part_longer_than_the_window_is_left_out_once_there_is_a_newer_one() -> None:
    window = CulpritWindow(3)
    window.push(reading(0, 10))
    window.push(reading(15, 50))
    assert window.pushed() is not None
    assert total(window, reading(15.5, 51)) == ({(700, 500): 41}, 15.5)
    window.push(reading(16, 54))
    assert total(window, reading(16.5, 56)) == ({(700, 500): 6}, 1.5)


def test_another_source_starts_a_new_window() -> None:
    window = CulpritWindow(10)
    window.push(reading(0, 10))
    assert window.until(reading(1, 20, source="bcc")) is None
    window.push(reading(3, 20, source="bcc"))
    assert total(window, reading(4, 25, source="bcc")) == ({(700, 500): 5}, 1)
    assert window.until(reading(3, 20, source="bcc")) is None

"""The window of culprits: as long as it should be, and equal to the difference of its ends."""

import numpy as np

from koordlet.metricsadvisor.stalls.culprits import CulpritWindow
from koordlet.probes.culprits.charges import Charges

KEYS = np.array([700, 500, -1])
"""Slot -> cgroup; the last is special."""
PAIRS = ((0, 1), (1, 0), (0, 2))


def charges(second: float, *ns: int, source: str = "bpf") -> Charges:
    """What each of `PAIRS` waited so far."""
    used = [place for place, waited in enumerate(ns) if waited]
    key = np.array([PAIRS[place][0] + 1 << 16 | PAIRS[place][1] + 1 for place in used], dtype=np.uint32)
    waits = np.array([ns[place] for place in used], dtype=np.int64)
    at = np.array(used, dtype=np.int32)
    return Charges(source, int(second * 1e9), len(PAIRS), at, key, waits, waits // 10, KEYS)


def total(window: CulpritWindow, now: Charges) -> tuple[dict[tuple[int, int], int], float]:
    found = window.until(now)
    assert found is not None
    sums: dict[tuple[int, int], int] = {}
    columns = (found[0].victim.tolist(), found[0].culprit.tolist(), found[0].wait_ns.tolist())
    for victim, culprit, ns in zip(*columns, strict=True):
        sums[victim, culprit] = sums.get((victim, culprit), 0) + ns
    return sums, found[1]


def test_it_is_up_to_a_quarter_longer_than_asked_for() -> None:
    window = CulpritWindow(10)
    assert window.until(charges(0, 10)) is None
    for second in range(31):
        assert window.due(second * 10**9, 2.5) == (second % 3 == 0)
        if second % 3 == 0:
            window.push(charges(second, 10 * second, 5, 100 if second >= 27 else 0))
    found, seconds = total(window, charges(30.5, 400, 5, 130))
    assert (found, seconds) == ({(700, 500): 400 - 180, (700, -1): 130}, 12.5)
    found, seconds = total(window, charges(30, 300, 5, 100))
    assert (found, seconds) == ({(700, 500): 300 - 180, (700, -1): 100}, 12)


def test_after_a_pause_it_holds_nothing_of_before() -> None:
    window = CulpritWindow(10)
    window.push(charges(0, 10))
    window.push(charges(100, 50))
    window.push(charges(111, 56))
    assert total(window, charges(112, 57)) == ({(700, 500): 7}, 12)


def test_another_source_starts_it_anew() -> None:
    window = CulpritWindow(10)
    window.push(charges(0, 10))
    assert window.until(charges(1, 20, source="bcc")) is None
    window.push(charges(3, 20, source="bcc"))
    assert total(window, charges(4, 25, source="bcc")) == ({(700, 500): 5}, 1)
    assert window.until(charges(3, 20, source="bcc")) is None

"""sched_latency while a BPF program schedules all tasks (sched_ext) from one queue of the machine. Only in the guest of
`make test-sched`; test_sched_latency_kernel.py runs there as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from koordlet.probes.culprits.slots import SPECIAL_KEYS
from tests.koordlet.probes.test_sched_latency_kernel import (
    MS,
    SLEEPER,
    Measure,
    charged,
    charged_in_all,
    counted,
    throttled,
    waited,
)
from tests.koordlet.probes.test_sched_latency_kernel import measure as measure
from tests.koordlet.probes.test_sched_latency_kernel import until_ran as until_ran

pytestmark = [pytest.mark.kernel, pytest.mark.timing]

FREE = "os.sched_setaffinity(0, range(os.cpu_count()))\n"
BURN = "while True: pass"


def test_tasks_that_any_cpu_may_take_lose_no_wait(
    measure: Measure, group: Callable[[str], Any], until_ran: Any
) -> None:
    groups = [group(name) for name in ("one", "two", "three")]
    pids = [entry.run(FREE + code) for entry in groups for code in (BURN, BURN, SLEEPER)]
    measured = measure(until_ran(*pids[::3]), *groups)
    for entry in groups:
        kernel = [measured.kernel[process.pid] for process in entry.processes]
        delay = sum(figures.delay_ns for figures in kernel)
        assert delay > 200 * MS
        assert waited(measured.result, entry.id) == pytest.approx(delay, rel=0.02, abs=3 * MS)
        assert charged_in_all(measured.culprits, entry.id) == pytest.approx(delay, rel=0.02, abs=4 * MS)
        assert counted(measured.result, entry.id) <= sum(figures.arrivals for figures in kernel) + 12
        # The task may have waited for any CPU. It is charged where it was preempted or woken.
        runners = sum(charged(measured.culprits, entry.id, other.id) for other in groups)
        older, moved = (charged(measured.culprits, entry.id, SPECIAL_KEYS[name]) for name in ("older", "moved"))
        assert runners + older > 0.8 * delay
        assert moved < 0.05 * delay


def test_a_limit_has_no_effect_and_no_time_is_taken_for_it(measure: Measure, group: Callable[[str], Any]) -> None:
    """This scheduler knows no quotas, and the kernel enforces none for it."""
    victim = group("quota")
    pid = victim.run()
    victim.quota(10_000, 100_000)
    measured = measure(1.0, victim)
    assert throttled(measured.result, victim.id) == measured.throttled_ns[0] == 0
    assert measured.kernel[pid].run_ns > 300 * MS
    assert waited(measured.result, victim.id) == pytest.approx(measured.kernel[pid].delay_ns, rel=0.02, abs=2 * MS)

"""sched_latency with core scheduling: who is charged while a CPU is kept idle because its sibling runs another group.
Only in the guest of `make test-sched`: it needs CONFIG_SCHED_CORE and CPUs that are siblings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from koordlet.probes.culprits.slots import SPECIAL_KEYS
from koordlet.system.cpu import coresched
from koordlet.system.cpu.coresched import CookieScope
from tests.koordlet.probes.test_sched_latency_kernel import MS, SLEEPER, Measure, charged, charged_in_all, waited
from tests.koordlet.probes.test_sched_latency_kernel import measure as measure
from tests.koordlet.probes.test_sched_latency_kernel import until_ran as until_ran
from tests.koordlet.resourceexecutor.guest_cookies import siblings

pytestmark = [pytest.mark.kernel, pytest.mark.timing]

OLDER = SPECIAL_KEYS["older"]


@pytest.fixture
def core() -> tuple[int, int]:
    return siblings()


def separate(*pids: int) -> None:
    for pid in pids:
        coresched.create(pid, CookieScope.THREAD_GROUP)


@pytest.mark.parametrize("cookies", ["both", "the victim's", "the neighbour's"])
def test_a_forced_idle_cpu_is_the_siblings_doing(
    measure: Measure, group: Callable[[str], Any], until_ran: Any, core: tuple[int, int], cookies: str
) -> None:
    victim, noisy = group("victim"), group("noisy")
    pid, culprit = victim.run(cpu=core[0]), noisy.run(cpu=core[1])
    separate(*{"both": (pid, culprit), "the victim's": (pid,), "the neighbour's": (culprit,)}[cookies])
    measured = measure(until_ran(pid, culprit), victim, noisy)
    kernel, neighbour = measured.kernel[pid], measured.kernel[culprit]
    assert kernel.delay_ns > 200 * MS, "the kernel did not keep the two apart"
    assert waited(measured.result, victim.id) == pytest.approx(kernel.delay_ns, rel=0.02, abs=2 * MS)
    assert charged_in_all(measured.culprits, victim.id) == pytest.approx(kernel.delay_ns, rel=0.02, abs=2 * MS)
    # Both always want to run: whenever the neighbour ran, the victim waited for it. The rest of its waiting is the
    # emulated CPU's way out of idling.
    named = charged(measured.culprits, victim.id, noisy.id) + charged(measured.culprits, victim.id, OLDER)
    assert named == pytest.approx(neighbour.run_ns, rel=0.05, abs=10 * MS)


def test_two_tasks_of_a_cpu_wait_for_each_other_and_for_the_sibling(
    measure: Measure, group: Callable[[str], Any], until_ran: Any, core: tuple[int, int]
) -> None:
    """The victim has two tasks on its CPU."""
    victim, noisy = group("victim"), group("noisy")
    pids, culprit = [victim.run(cpu=core[0]) for _ in range(2)], noisy.run(cpu=core[1])
    separate(pids[0], culprit)
    assert coresched.assign(pids[0], CookieScope.THREAD_GROUP, pids[1:]) == []
    measured = measure(until_ran(*pids, culprit), victim, noisy)
    delays = sum(measured.kernel[pid].delay_ns for pid in pids)
    assert waited(measured.result, victim.id) == pytest.approx(delays, rel=0.02, abs=4 * MS)
    older = charged(measured.culprits, victim.id, OLDER)
    # While the neighbour ran both waited for it, and while one ran the other waited for that.
    neighbour = measured.kernel[culprit].run_ns
    named = charged(measured.culprits, victim.id, noisy.id)
    assert named + older >= 2 * (0.95 * neighbour - 10 * MS)
    assert named <= 2 * (1.05 * neighbour + 10 * MS)
    ran = sum(measured.kernel[pid].run_ns for pid in pids)
    assert charged(measured.culprits, victim.id, victim.id) + older >= 0.95 * ran - 10 * MS


def test_who_shares_the_cookie_is_no_culprit(
    measure: Measure, group: Callable[[str], Any], until_ran: Any, core: tuple[int, int]
) -> None:
    friend, sleeper = group("friend"), group("sleeper")
    pids = [friend.run(cpu=core[1]), sleeper.run(SLEEPER, cpu=core[0])]
    separate(pids[0])
    assert coresched.assign(pids[0], CookieScope.THREAD_GROUP, pids[1:]) == []
    measured = measure(until_ran(pids[0]), friend, sleeper)
    assert waited(measured.result, sleeper.id) > 0
    assert charged(measured.culprits, sleeper.id, friend.id) == 0


def test_groups_without_cookies_are_charged_as_ever_while_others_have_some(
    measure: Measure, group: Callable[[str], Any], until_ran: Any, core: tuple[int, int]
) -> None:
    other, burner, sleeper = group("other"), group("burner"), group("sleeper")
    separate(other.run("time.sleep(600)"))
    pids = burner.run(cpu=core[1]), sleeper.run(SLEEPER, cpu=core[0])
    measured = measure(until_ran(pids[0]), burner, sleeper)
    assert waited(measured.result, sleeper.id) == pytest.approx(measured.kernel[pids[1]].delay_ns, rel=0.02, abs=2 * MS)
    assert charged(measured.culprits, sleeper.id, burner.id) == 0

"""Leader election on virtual time against the fake server."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

from koordlet.app.tasks import end_tasks
from koordlet.kube import Client, ClientConfig, LeaderElector, LeadershipLost
from tests.fakeclock import FakeClock
from tests.koordlet.kube.conftest import FakeApi, Fault

LEASES = "apis/coordination.k8s.io/v1/leases"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def pass_time(
    client: Client, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Awaitable[None]]:
    """Let virtual time pass, but never while a request is on its way: those take real time."""
    busy, ask = 0, client.transport._ask

    async def counted(*args: Any) -> bytes:
        nonlocal busy
        busy += 1
        try:
            return await ask(*args)
        finally:
            busy -= 1

    monkeypatch.setattr(client.transport, "_ask", counted)

    async def quiet() -> None:
        await clock.settle()
        while busy:
            await asyncio.sleep(0.001)
            await clock.settle()

    async def go(seconds: float, step: float = 0.5) -> None:
        while seconds > 1e-9:
            await quiet()
            await clock.advance(min(step, seconds))
            seconds -= step
        await quiet()

    return go


class Candidate:
    def __init__(self, client: Client, name: str, **options: Any) -> None:
        self.lost = self.led = 0
        self.elector = LeaderElector(
            client, "kube-system", "koord", name, on_lost=self._lost, registry=CollectorRegistry(), **options
        )
        self.task = asyncio.create_task(self.elector.run(self.lead))

    def _lost(self) -> None:
        self.lost += 1

    async def lead(self) -> None:
        self.led += 1
        await asyncio.Event().wait()

    async def stop(self) -> None:
        await end_tasks(self.task)


@pytest.fixture
async def candidate(client: Client) -> AsyncIterator[Callable[..., Candidate]]:
    candidates = []

    def begin(name: str, **options: Any) -> Candidate:
        candidate = Candidate(options.pop("client", client), name, **options)
        candidates.append(candidate)
        return candidate

    yield begin
    await end_tasks(*(candidate.task for candidate in candidates))


def spec(fake: FakeApi) -> dict[str, Any]:
    result: dict[str, Any] = fake.objects[LEASES]["kube-system/koord"]["spec"]
    return result


async def test_the_first_leads_and_renews(
    fake: FakeApi, candidate: Callable[..., Candidate], pass_time: Callable[..., Awaitable[None]], clock: FakeClock
) -> None:
    a = candidate("a")
    await pass_time(1)
    b = candidate("b")
    await pass_time(30)
    assert (a.elector.is_leader, b.elector.is_leader) == (True, False)
    assert spec(fake)["holderIdentity"] == b.elector.leader == "a"
    assert spec(fake)["renewTime"] > spec(fake)["acquireTime"] and spec(fake)["renewTime"].endswith("Z")
    assert spec(fake)["leaseDurationSeconds"] == 15 and spec(fake).get("leaseTransitions", 0) == 0
    assert (a.led, a.lost) == (1, 0)


async def test_release_lets_the_next_in_at_once(
    fake: FakeApi, candidate: Callable[..., Candidate], pass_time: Callable[..., Awaitable[None]]
) -> None:
    a = candidate("a")
    await pass_time(1)
    b = candidate("b")
    await pass_time(3)
    await a.stop()
    assert spec(fake)["holderIdentity"] == "" and not a.elector.is_leader
    await pass_time(3)
    assert b.elector.is_leader and spec(fake)["leaseTransitions"] == 1
    assert a.lost == 0


async def test_a_dead_leader_is_replaced_after_the_lease_ran_out(
    fake: FakeApi, candidate: Callable[..., Candidate], pass_time: Callable[..., Awaitable[None]], clock: FakeClock
) -> None:
    fake.put(
        LEASES, "koord", "kube-system",
        spec={"holderIdentity": "dead", "leaseDurationSeconds": 15, "renewTime": "2001-01-01T00:00:00.000000Z"},
    )  # fmt: skip
    b = candidate("b")
    await pass_time(14)
    assert not b.elector.is_leader  # its clock says 2023, but it has watched the lease for 14 s only
    await pass_time(4)
    assert b.elector.is_leader and spec(fake)["leaseTransitions"] == 1


async def test_skewed_and_jumping_clocks_have_no_effect(
    fake: FakeApi,
    client: Client,
    candidate: Callable[..., Candidate],
    pass_time: Callable[..., Awaitable[None]],
    clock: FakeClock,
) -> None:
    clock.jump(-86400)
    a = candidate("a")
    await pass_time(2)
    clock.jump(10 * 86400)
    b = candidate("b")
    await pass_time(20)
    assert a.elector.is_leader and not b.elector.is_leader and a.lost == 0


async def test_a_leader_cut_off_stops_before_another_may_begin(
    fake: FakeApi,
    client: Client,
    candidate: Callable[..., Candidate],
    pass_time: Callable[..., Awaitable[None]],
    clock: FakeClock,
) -> None:
    a = candidate("a")
    await pass_time(3)
    led_until = None
    fake._patch = lambda *args: web.Response(status=500)  # type: ignore[method-assign]
    for _ in range(60):
        await pass_time(0.5)
        if not a.elector.is_leader:
            led_until = clock.monotonic()
            break
    assert led_until is not None and led_until <= 3 + 10 + 0.5  # the deadline and one step of this loop
    with pytest.raises(LeadershipLost):
        await a.task
    assert a.lost == 1


async def test_the_deadline_counts_from_when_the_last_renewal_was_sent(
    fake: FakeApi, candidate: Callable[..., Candidate], pass_time: Callable[..., Awaitable[None]], clock: FakeClock
) -> None:
    # With these times the deadline of a leader that counts from its next attempt ends after the lease has.
    a = candidate("a", lease_duration=15, renew_deadline=14, retry_period=8)
    await pass_time(0)
    assert a.elector.is_leader, "before another asks, or who of them is first would be chance"
    b = candidate("b", lease_duration=15, renew_deadline=14, retry_period=8)
    await pass_time(1)
    fake._patch = lambda *args: web.Response(status=500)  # type: ignore[method-assign]
    for _ in range(40):
        await pass_time(0.5)
        assert a.elector.is_leader == (clock.monotonic() < 14)
    assert a.lost == 1 and not b.elector.is_leader


async def test_a_lease_that_was_acquired_slowly_is_renewed_before_leading(
    fake: FakeApi, candidate: Callable[..., Candidate], pass_time: Callable[..., Awaitable[None]], clock: FakeClock
) -> None:
    create = fake._post

    def slow(*args: Any) -> web.Response:
        clock._mono += 12  # longer than the renew deadline of 10 s
        return create(*args)

    fake._post = slow  # type: ignore[assignment, method-assign]
    a = candidate("a")
    await pass_time(5)
    assert a.elector.is_leader and (a.led, a.lost) == (1, 0)


async def test_a_malformed_lease_is_read_again(
    fake: FakeApi,
    candidate: Callable[..., Candidate],
    pass_time: Callable[..., Awaitable[None]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    fake.put(LEASES, "koord", "kube-system", spec={"holderIdentity": "x", "renewTime": "yesterday"})
    a = candidate("a")
    await pass_time(1)
    assert "renewTime" in caplog.text and not a.task.done()
    fake.put(LEASES, "koord", "kube-system", spec={"holderIdentity": ""})
    await pass_time(4)
    assert a.elector.is_leader


async def test_a_stolen_lease_is_noticed_at_the_next_renewal(
    fake: FakeApi, candidate: Callable[..., Candidate], pass_time: Callable[..., Awaitable[None]]
) -> None:
    a = candidate("a")
    await pass_time(2)
    fake.put(LEASES, "koord", "kube-system", spec={"holderIdentity": "thief", "leaseDurationSeconds": 15})
    await pass_time(3)
    assert not a.elector.is_leader and a.lost == 1
    with pytest.raises(LeadershipLost):
        await a.task
    assert spec(fake)["holderIdentity"] == "thief"


async def test_two_at_once_and_only_one_wins(
    fake: FakeApi, candidate: Callable[..., Candidate], pass_time: Callable[..., Awaitable[None]]
) -> None:
    candidates = [candidate(name) for name in "abcde"]
    await pass_time(6)
    assert sum(participant.elector.is_leader for participant in candidates) == 1


async def test_never_two_leaders_while_servers_and_leaders_fail(
    fake: FakeApi, candidate: Callable[..., Candidate], pass_time: Callable[..., Awaitable[None]]
) -> None:
    candidates = [candidate(name) for name in "abc"]
    for round_ in range(12):
        fake.faults["other"].extend(Fault(status=500) for _ in range(round_ % 4 * 3))
        await pass_time(3)
        assert sum(participant.elector.is_leader for participant in candidates) <= 1
    assert sum(participant.led for participant in candidates) >= 1


async def test_the_result_of_the_work_and_a_release(
    fake: FakeApi, client: Client, pass_time: Callable[..., Awaitable[None]]
) -> None:
    elector = LeaderElector(client, "kube-system", "koord", "a", registry=CollectorRegistry())

    async def lead() -> int:
        return 42

    assert await elector.run(lead) == 42
    assert spec(fake)["holderIdentity"] == ""


async def test_work_that_raises_releases_too(fake: FakeApi, client: Client) -> None:
    elector = LeaderElector(client, "kube-system", "koord", "a", registry=CollectorRegistry())

    async def lead() -> None:
        raise ValueError("bug")

    with pytest.raises(ValueError, match="bug"):
        await elector.run(lead)
    assert spec(fake)["holderIdentity"] == ""


@pytest.mark.parametrize(
    "options", [{"lease_duration": 10, "renew_deadline": 10}, {"renew_deadline": 2, "retry_period": 2}]
)
async def test_bad_times(client: Client, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="lease_duration > renew_deadline"):
        LeaderElector(client, "ns", "n", "a", **options)


async def test_no_identity() -> None:
    async with Client(ClientConfig(server="http://x"), registry=CollectorRegistry()) as client:
        with pytest.raises(ValueError, match="identity"):
            LeaderElector(client, "ns", "n", "")

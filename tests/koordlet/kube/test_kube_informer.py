"""Informers against a server that fails in every way it can."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from koordlet.api.core import ConfigMap, Node, Pod
from koordlet.api.encoding import wire
from koordlet.api.encoding.base import Struct
from koordlet.api.meta import ObjectMeta
from koordlet.app import loopslice
from koordlet.kube import Client, ClientConfig, Informer, InformerSettings, ObjectInformer
from koordlet.kube.watch import OVERDUE_S
from tests.fakeclock import FakeClock
from tests.koordlet.kube.conftest import FakeApi, Fault
from tests.present import present
from tests.waiting import until

MAPS, NODES, PODS = "api/v1/configmaps", "api/v1/nodes", "api/v1/pods"


class PodLite(Struct):
    """A trimmed pod: metadata and node name."""

    class Spec(Struct):
        node_name: str = ""

    metadata: ObjectMeta
    spec: Spec


class Mirror:
    """A copy made from handler calls alone; insists that they make sense."""

    def __init__(self) -> None:
        self.objects: dict[str, Any] = {}
        self.calls: list[Any] = []

    def add(self, new: Any) -> None:
        assert new.metadata.key not in self.objects
        self.objects[new.metadata.key] = new
        self.calls.append(("add", new.metadata.key))

    def update(self, old: Any, new: Any) -> None:
        assert self.objects[new.metadata.key] is old and old.metadata.uid == new.metadata.uid
        self.objects[new.metadata.key] = new
        self.calls.append(("update", new.metadata.key))

    def delete(self, gone: Any) -> None:
        self.objects.pop(gone.metadata.key)
        self.calls.append(("delete", gone.metadata.key))


StartInformer = Callable[..., Awaitable[tuple[Informer[Any], Mirror]]]


@pytest.fixture
async def start(client: Client) -> AsyncIterator[StartInformer]:
    informers = []

    async def begin(type: type[Struct], *args: object, **options: Any) -> tuple[Informer[Any], Mirror]:
        informer = Informer(client, type, *args, **options)  # type: ignore[arg-type, type-var]
        mirror = Mirror()
        informer.add_handler(mirror.add, mirror.update, mirror.delete)
        informers.append(informer)
        await informer.start()
        return informer, mirror

    yield begin
    for informer in informers:
        await informer.stop()


def versions(informer: Informer[Any]) -> dict[str, tuple[str, str]]:
    return {o.metadata.key: (o.metadata.uid, o.metadata.resource_version) for o in informer.list()}


def truth(fake: FakeApi, collection: str) -> dict[str, tuple[str, str]]:
    return {
        key: (o["metadata"]["uid"], o["metadata"]["resourceVersion"])
        for key, o in fake.objects.get(collection, {}).items()
    }


def sample(client: Client, name: str, **labels: Any) -> float | None:
    assert client.registry is not None
    return client.registry.get_sample_value(f"koord_informer_{name}", labels)


async def test_lists_in_pages_then_follows(fake: FakeApi, client: Client, start: StartInformer) -> None:
    for i in range(7):
        fake.put(MAPS, f"m{i}", "ns", data={"i": str(i)})
    informer, mirror = await start(ConfigMap, settings=InformerSettings(page_size=3))
    await informer.synced.wait()
    assert len(informer.list()) == 7 and present(informer.get("ns/m3")).data == {"i": "3"}
    assert [q.get("limit") for m, p, q in fake.requests if "watch" not in q] == ["3", "3", "3"]
    await until(lambda: fake.watching)
    fake.put(MAPS, "m3", "ns", data={"i": "x"})
    fake.remove(MAPS, "m4", "ns")
    fake.put(MAPS, "new", "ns")
    await until(lambda: "ns/new" in informer.store)
    assert mirror.calls[-3:] == [("update", "ns/m3"), ("delete", "ns/m4"), ("add", "ns/new")]
    assert versions(informer) == truth(fake, MAPS)
    assert sample(client, "objects", informer="configmaps") == 7
    assert sample(client, "events_total", informer="configmaps", type="MODIFIED") == 1
    assert sample(client, "relists_total", informer="configmaps") == 1


async def test_an_empty_list_syncs(start: StartInformer) -> None:
    informer, mirror = await start(Node)
    await informer.synced.wait()
    assert informer.list() == [] and mirror.calls == []


async def test_an_expired_page_token_restarts_the_list(fake: FakeApi, start: StartInformer) -> None:
    for i in range(5):
        fake.put(MAPS, f"m{i}", "ns")
    fake.expire_tokens = True
    informer, mirror = await start(ConfigMap, settings=InformerSettings(page_size=2))
    await informer.synced.wait()
    assert versions(informer) == truth(fake, MAPS)
    assert len(mirror.calls) == 5


@pytest.mark.parametrize("how", ["end", "drop", "mid-line"])
async def test_resumes_where_it_was(fake: FakeApi, client: Client, start: StartInformer, how: str) -> None:
    fake.put(NODES, "a")
    informer, mirror = await start(Node)
    await until(lambda: fake.watching)
    fake.end_watches(how)
    await until(lambda: fake.watches == 2)
    fake.put(NODES, "b")
    await until(lambda: "b" in informer.store)
    assert mirror.calls == [("add", "a"), ("add", "b")]
    assert sample(client, "relists_total", informer="nodes") == 1


async def test_bookmarks_move_the_version(fake: FakeApi, start: StartInformer) -> None:
    fake.put(NODES, "a")
    informer, _ = await start(Node)
    await until(lambda: fake.watching)
    fake.put(MAPS, "elsewhere", "ns")
    fake.bookmark()
    await until(lambda: informer._version == str(fake.version))
    fake.compact()
    fake.end_watches("drop")
    await until(lambda: fake.watches == 2)
    assert fake.lists == 1


@pytest.mark.parametrize("how", ["in the stream", "as an answer"])
async def test_410_lists_again_and_delivers_the_difference(
    fake: FakeApi, client: Client, start: StartInformer, how: str
) -> None:
    for name in ("stays", "changes", "goes", "reborn"):
        fake.put(NODES, name)
    informer, mirror = await start(Node)
    await until(lambda: fake.watching)
    fake.deafen()
    fake.put(NODES, "changes", spec={"unschedulable": True})
    fake.remove(NODES, "goes")
    fake.remove(NODES, "reborn")
    fake.put(NODES, "reborn")
    fake.put(NODES, "comes")
    fake.compact()
    fake.end_watches("gone" if how == "in the stream" else "drop")
    await until(lambda: versions(informer) == truth(fake, NODES))
    assert mirror.calls[4:] == [
        ("delete", "goes"), ("update", "changes"), ("add", "comes"), ("delete", "reborn"), ("add", "reborn"),
    ]  # fmt: skip
    assert sample(client, "watch_errors_total", informer="nodes", reason="gone") == 1


async def test_error_event_410_in_the_stream(fake: FakeApi, client: Client, start: StartInformer) -> None:
    fake.put(NODES, "a")
    informer, _ = await start(Node)
    await until(lambda: fake.watching)
    fake.end_watches("gone")
    await until(lambda: sample(client, "relists_total", informer="nodes") == 2)
    fake.put(NODES, "b")
    await until(lambda: "b" in informer.store)


async def test_endless_410_backs_off(fake: FakeApi, clock: FakeClock, client: Client, start: StartInformer) -> None:
    for _ in range(6):
        fake.faults["watch"].append(Fault(in_stream=410))
    await start(Node)
    await until(lambda: sample(client, "relists_total", informer="nodes") == 7)
    assert sum(1 for slept in clock.slept if slept > 0.5) >= 5


@pytest.mark.parametrize("status", [401, 403, 404, 429, 500, 503])
async def test_rejected_requests_are_counted_and_retried(
    fake: FakeApi, client: Client, start: StartInformer, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(5):
        fake.faults["list"].append(Fault(status=status))
    informer, _ = await start(Node)
    await informer.synced.wait()
    await until(lambda: informer.problem is None)
    fake.faults["watch"].append(Fault(status=status))
    fake.end_watches("end")
    fake.put(NODES, "a")
    await until(lambda: "a" in informer.store)
    assert sample(client, "watch_errors_total", informer="nodes", reason=str(status)) >= 1  # type: ignore[operator]
    assert "Informer lost the server" in caplog.text


async def test_a_new_reason_is_logged_at_once_with_its_advice(
    fake: FakeApi, client: Client, start: StartInformer, caplog: pytest.LogCaptureFixture
) -> None:
    for status in (401, 401, 401, 401, 401, 403, 403):  # 1, 2 and 4 are logged of a series; the first 403 is number 6
        fake.faults["list"].append(Fault(status=status))
    informer, _ = await start(Node)
    await informer.synced.wait()
    lines = [line for line in caplog.messages if "Informer lost the server" in line]
    assert len(lines) == 4
    assert "renew the token" in lines[0] and "failures=6" in lines[3] and "apply rbac.yaml" in lines[3]


async def test_server_away_keeps_the_last_state(fake: FakeApi, client: Client, start: StartInformer) -> None:
    fake.put(NODES, "a")
    informer, mirror = await start(Node)
    await informer.synced.wait()
    await fake.stop()
    await until(lambda: "ClientConnectorError" in (informer.problem or ""))
    assert informer.get("a") is not None and mirror.calls == [("add", "a")]


@pytest.fixture
def pass_time_until(clock: FakeClock) -> Callable[[Callable[..., Any]], Awaitable[None]]:
    """Let virtual time pass, a second for every five milliseconds, until a condition holds."""
    clock._auto = False

    async def go(condition: Callable[..., Any]) -> None:
        for _ in range(1000):
            if condition():
                return
            await asyncio.sleep(0.005)
            await clock.advance(1)
        raise AssertionError("never happened")

    return go


async def test_a_server_without_an_answer_is_considered_dead(
    fake: FakeApi,
    start: StartInformer,
    clock: FakeClock,
    pass_time_until: Callable[[Callable[..., Any]], Awaitable[None]],
) -> None:
    fake.faults["watch"].append(Fault(delay=60))
    informer, _ = await start(Node)
    await pass_time_until(lambda: "timed out" in (informer.problem or ""))
    assert 29 <= clock.monotonic() < 60
    await pass_time_until(lambda: fake.watches == 2 and informer.problem is None)


async def test_a_lost_server_stays_a_problem_until_a_watch_runs(
    fake: FakeApi, start: StartInformer, client: Client
) -> None:
    informer, _ = await start(Node)
    assert informer.problem == "not synced yet"
    await until(lambda: informer.problem is None)
    fake.faults["watch"] += [Fault(status=503), Fault(delay=0.2, status=503), Fault(delay=0.2)]
    problems = []
    fake.end_watches("drop")
    await until(lambda: "503" in (informer.problem or ""))

    def fourth_watch() -> bool:
        problems.append(informer.problem)
        return fake.watches == 4

    await until(fourth_watch)
    assert all("503" in (problem or "healthy") for problem in problems)
    await until(lambda: informer.problem is None)


async def test_a_server_that_lost_its_history_is_listed_again(
    fake: FakeApi, client: Client, start: StartInformer
) -> None:
    fake.put(NODES, "old")
    fake.put(NODES, "reborn")
    informer, mirror = await start(Node)
    await until(lambda: fake.watching)
    # What an API server with a younger database answers: the same version may name another object.
    version = fake.objects[NODES]["reborn"]["metadata"]["resourceVersion"]
    fake.deafen()
    fake.remove(NODES, "old")
    fake.objects[NODES]["reborn"]["metadata"]["uid"] = "another"
    causes = [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]
    body = json.dumps({"kind": "Status", "code": 504, "reason": "Timeout", "details": {"causes": causes}}).encode()
    fake.faults["watch"].append(Fault(status=504, body=body))
    fake.end_watches("drop")
    await until(lambda: versions(informer) == {"reborn": ("another", version)})
    assert mirror.calls[2:] == [("delete", "old"), ("delete", "reborn"), ("add", "reborn")]


async def test_invalid_utf8_affects_only_one_object(fake: FakeApi, start: StartInformer) -> None:
    good = b'{"metadata":{"name":"good","uid":"1","resourceVersion":"7"}}'
    bad = b'{"metadata":{"name":"bad\xff","uid":"2","resourceVersion":"8"}}'
    body = b'{"metadata":{"resourceVersion":"%d"},"items":[%s,%s]}' % (fake.version, bad, good)
    fake.faults["list"].append(Fault(status=200, body=body))
    informer, _ = await start(Node)
    await until(lambda: fake.watching)
    assert fake.lists == 1 and [node.metadata.name for node in informer.list()] == ["good"]


async def test_a_deep_object_affects_no_other_object(fake: FakeApi, start: StartInformer) -> None:
    deep = b'{"metadata":{"name":"%s","managedFields":[' + b'{"f:a":' * 5000 + b"{}" + b"}" * 5000 + b"]}}"
    listed = deep % b"listed"
    body = b'{"metadata":{"resourceVersion":"%d"},"items":[%s,{"metadata":{"name":"good"}}]}' % (fake.version, listed)
    fake.faults["list"].append(Fault(status=200, body=body))
    fake.faults["watch"].append(Fault(status=200, body=b'{"type":"ADDED","object":%s}\n' % (deep % b"seen")))
    informer, _ = await start(Node)
    await until(lambda: {node.metadata.name for node in informer.list()} == {"listed", "good", "seen"})
    assert fake.lists == 1


async def test_a_silent_watch_is_restarted_only_when_the_server_should_have_ended_it(
    fake: FakeApi, client: Client, clock: FakeClock, pass_time_until: Callable[[Callable[..., Any]], Awaitable[None]]
) -> None:
    """A kube-apiserver sends nothing at all for a resource without events."""
    informer = Informer(client, Node)
    await informer.start()
    await pass_time_until(lambda: fake.watching)
    opened_at = clock.monotonic()
    await pass_time_until(lambda: informer.problem is not None)
    assert "the server should have ended the watch" in informer.problem  # type: ignore[operator]
    assert clock.monotonic() - opened_at >= 240 + OVERDUE_S - 1
    await pass_time_until(lambda: fake.watches == 2)
    await informer.stop()


async def test_wall_clock_jumps_do_nothing(fake: FakeApi, clock: FakeClock, start: StartInformer) -> None:
    informer, _ = await start(Node)
    await until(lambda: fake.watching)
    clock.jump(-1e6)
    fake.put(NODES, "a")
    await until(lambda: "a" in informer.store)
    clock.jump(2e6)
    fake.put(NODES, "b")
    await until(lambda: "b" in informer.store)
    assert fake.watches == 1


async def test_objects_larger_than_any_buffer(fake: FakeApi, start: StartInformer) -> None:
    informer, _ = await start(ConfigMap)
    await until(lambda: fake.watching)
    fake.put(MAPS, "big", "ns", data={"blob": "x" * 5_000_000})
    await until(lambda: "ns/big" in informer.store)
    assert len(present(informer.get("ns/big")).data["blob"]) == 5_000_000


async def test_indexes_follow(fake: FakeApi, start: StartInformer) -> None:
    fake.put(PODS, "a", "ns", spec={"nodeName": "n1"})
    fake.put(PODS, "b", "ns", spec={"nodeName": "n2"})
    informer, _ = await start(Pod, indexes={"node": lambda pod: [pod.spec.node_name]})
    await until(lambda: fake.watching)
    assert [pod.metadata.name for pod in informer.by_index("node", "n1")] == ["a"]
    fake.put(PODS, "a", "ns", spec={"nodeName": "n2"})
    await until(lambda: len(informer.by_index("node", "n2")) == 2)
    assert informer.by_index("node", "n1") == []
    fake.remove(PODS, "b", "ns")
    await until(lambda: len(informer.by_index("node", "n2")) == 1)
    with pytest.raises(KeyError):
        informer.by_index("zone", "z")


async def test_trimmed_types_and_selectors(fake: FakeApi, start: StartInformer) -> None:
    fake.put(PODS, "a", "ns", spec={"nodeName": "n1", "containers": [{"name": "c"}]})
    fake.put(PODS, "b", "ns", spec={"nodeName": "n2"})
    informer, _ = await start(PodLite, resource=Pod, field_selector={"spec.nodeName": "n1"})
    await informer.synced.wait()
    assert [type(pod) for pod in informer.list()] == [PodLite]


async def test_trim_function(fake: FakeApi, start: StartInformer) -> None:
    fake.put(MAPS, "a", "ns", data={"keep": "1", "drop": "2"})

    def trim(obj: ConfigMap) -> ConfigMap:
        obj.data = {"keep": obj.data.get("keep", "")}
        return obj

    informer, _ = await start(ConfigMap, trim=trim)
    await informer.synced.wait()
    assert present(informer.get("ns/a")).data == {"keep": "1"}


async def test_a_list_is_trimmed_while_it_is_read(fake: FakeApi, start: StartInformer) -> None:
    """The objects of a list as they are decoded may need a hundred times the memory of what is kept of them."""
    for number in range(6):
        fake.put(MAPS, f"m{number}", "ns", data={"drop": "1"})
    steps: list[str] = []

    class Decoded(Struct):
        """A ConfigMap that reports when it is decoded."""

        metadata: ObjectMeta

        def __post_init__(self) -> None:
            steps.append("decoded")

    def trim(obj: Decoded) -> Decoded:
        steps.append("trimmed")
        return obj

    informer, mirror = await start(Decoded, resource=ConfigMap, trim=trim)
    await informer.synced.wait()
    assert len(mirror.objects) == 6 and steps == ["decoded", "trimmed"] * 6


async def test_what_trimming_refuses_is_as_malformed(fake: FakeApi, start: StartInformer) -> None:
    def trim(obj: ConfigMap) -> ConfigMap:
        if len(obj.data) > 1:
            raise wire.WireError("it is too long")
        return obj

    fake.put(MAPS, "a", "ns", data={"a": "1", "b": "2"})
    fake.put(MAPS, "b", "ns", data={"a": "1"})
    informer, mirror = await start(ConfigMap, trim=trim)
    await until(lambda: fake.watching)
    assert (set(informer.store.keys()), informer.undecoded) == ({"ns/b"}, {"ns/a": "it is too long"})
    fake.put(MAPS, "b", "ns", data={"a": "1", "b": "2"})
    await until(lambda: "ns/b" in informer.undecoded)
    assert present(informer.get("ns/b")).data == {"a": "1"}
    fake.remove(MAPS, "b", "ns")
    fake.put(MAPS, "a", "ns", data={})
    await until(lambda: set(mirror.objects) == {"ns/a"} and informer.undecoded == {})


async def test_malformed_objects_leave_the_last_good_one(
    fake: FakeApi, client: Client, start: StartInformer, caplog: pytest.LogCaptureFixture
) -> None:
    fake.put(MAPS, "good", "ns", data={"a": "1"})
    fake.put(MAPS, "bad", "ns", data="not a map")
    informer, _ = await start(ConfigMap)
    await until(lambda: fake.watching)
    assert set(informer.store.keys()) == {"ns/good"}
    fake.put(MAPS, "good", "ns", data=[1])
    fake.put(MAPS, "other", "ns")
    await until(lambda: "ns/other" in informer.store)
    assert present(informer.get("ns/good")).data == {"a": "1"}
    fake.compact()
    fake.end_watches("drop")
    fake.put(MAPS, "late", "ns")
    fake.compact()
    await until(lambda: "ns/late" in informer.store)
    assert present(informer.get("ns/good")).data == {"a": "1"}
    assert sample(client, "decode_errors_total", informer="configmaps") >= 2  # type: ignore[operator]
    assert "ns/good" in caplog.text and "data" in caplog.text
    assert set(informer.undecoded) == {"ns/good", "ns/bad"} and "data" in informer.undecoded["ns/good"]
    fake.put(MAPS, "good", "ns", data={"a": "2"})
    await until(lambda: present(informer.get("ns/good")).data == {"a": "2"})
    fake.remove(MAPS, "bad", "ns")
    await until(lambda: informer.undecoded == {})


async def test_a_stream_of_nonsense_lists_again(fake: FakeApi, client: Client, start: StartInformer) -> None:
    fake.faults["watch"].append(Fault(status=200, body=b"<html>proxy</html>\n"))
    fake.faults["watch"].append(Fault(status=200, body=b'{"type":"ODD","object":{"metadata":{}}}\n'))
    informer, _ = await start(Node)
    await until(lambda: fake.watching and informer.problem is None)
    assert sample(client, "watch_errors_total", informer="nodes", reason="malformed") == 2


async def test_handlers_that_raise_are_counted_and_the_others_run(
    fake: FakeApi, client: Client, start: StartInformer, caplog: pytest.LogCaptureFixture
) -> None:
    informer, mirror = await start(Node)

    def broken(obj: Node) -> None:
        raise ValueError("handler bug")

    informer._handlers.clear()
    informer.add_handler(on_add=broken)
    informer.add_handler(mirror.add, mirror.update, mirror.delete)
    await until(lambda: fake.watching)
    fake.put(NODES, "a")
    await until(lambda: mirror.calls == [("add", "a")])
    assert sample(client, "handler_errors_total", informer="nodes") == 1
    assert "handler bug" in caplog.text


async def test_a_late_handler_is_called_for_existing_objects(fake: FakeApi, start: StartInformer) -> None:
    fake.put(NODES, "a")
    informer, _ = await start(Node)
    await informer.synced.wait()
    late = Mirror()
    informer.add_handler(late.add)
    assert late.calls == [("add", "a")]


async def test_resync_calls_handlers_for_all_objects(fake: FakeApi, client: Client) -> None:
    client.clock._auto = False  # type: ignore[attr-defined]
    fake.put(NODES, "a")
    unchanged = []
    informer = Informer(client, Node, settings=InformerSettings(resync_period_s=60))
    informer.add_handler(on_update=lambda old, new: unchanged.append(old is new))
    await informer.start()
    await informer.synced.wait()
    await client.clock.advance(121)  # type: ignore[attr-defined]
    await informer.stop()
    assert unchanged == [True, True]


async def test_resync_skips_objects_deleted_meanwhile(
    fake: FakeApi, client: Client, start: StartInformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loopslice, "SLICE_S", 0.0)
    for number in range(250):
        fake.put(NODES, f"n{number:03}")
    informer, _ = await start(Node)
    await until(lambda: fake.watching)
    names = []
    informer.add_handler(on_update=lambda old, new: names.append(new.metadata.name))
    resync = asyncio.create_task(informer._resync_all())
    await asyncio.sleep(0)
    informer._delete("n249")  # while the resync gives others a turn
    await resync
    assert len(names) == 249 and "n249" not in names


async def test_one_object(fake: FakeApi, client: Client) -> None:
    fake.put(NODES, "mine")
    fake.put(NODES, "other")
    informer = ObjectInformer(client, Node, "mine")
    await informer.start()
    await until(lambda: fake.watching)
    assert informer.object is not None
    assert informer.object.metadata.name == "mine" and len(informer.list()) == 1
    fake.remove(NODES, "mine")
    await until(lambda: informer.object is None)
    await informer.stop()


CHANGES = st.tuples(st.sampled_from(["put", "remove", "rebirth"]), st.integers(0, 3), st.booleans())
FAULTS = st.tuples(
    st.sampled_from(
        ["compact", "bookmark", "end", "drop", "mid-line", "gone", "deaf", "watch-410", "watch-500", "watch-429",
         "watch-hang", "list-500", "list-410", "list-hang", "stream-410", "tokens", "restart"]
    ),
    st.just(0),
    st.booleans(),
)  # fmt: skip
OUTAGES = st.tuples(st.just("outage"), st.lists(CHANGES, max_size=4), st.booleans())
STEPS = st.lists(st.one_of(CHANGES, CHANGES, OUTAGES, FAULTS), min_size=5, max_size=40)
"""(what, which object, whether the informer gets time to notice before the next step)"""


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(steps=STEPS, page=st.integers(0, 4))
def test_the_store_equals_the_server_after_any_history(steps: list[tuple[str, Any, bool]], page: int) -> None:

    async def scenario() -> None:
        fake = FakeApi()
        await fake.start()
        clock = FakeClock(auto=True)
        client = Client(ClientConfig(server=fake.url, qps=0), clock=clock, registry=CollectorRegistry())
        informer, mirror = Informer(client, Node, settings=InformerSettings(page_size=page)), Mirror()
        informer.add_handler(mirror.add, mirror.update, mirror.delete)
        await informer.start()
        try:
            for step, number, pause in steps:
                await _apply(fake, informer, step, number)
                await asyncio.sleep(0.004 if pause else 0)
            fake.expire_tokens = False
            for queue in fake.faults.values():
                queue.clear()
            fake.end_watches("drop")  # a deaf stream would never catch up; everything else has to by itself
            for _ in range(12_000):
                if versions(informer) == truth(fake, NODES) and informer.synced.is_set():
                    break
                await asyncio.sleep(0.005)
            assert versions(informer) == truth(fake, NODES)
            assert mirror.objects == {o.metadata.key: o for o in informer.list()}
        finally:
            await informer.stop()
            await client.close()
            await fake.stop()

    asyncio.run(scenario())


async def _apply(fake: FakeApi, informer: Informer[Any], step: str, number: int | list[tuple[str, int, bool]]) -> None:
    name = f"n{number}" if isinstance(number, int) else ""
    known = name in fake.objects.get(NODES, {})
    kind, _, what = step.partition("-")
    if step == "put":
        fake.put(NODES, name, spec={"podCIDR": str(fake.version)})
    elif step in ("remove", "rebirth") and known:
        fake.remove(NODES, name)
        if step == "rebirth":
            fake.put(NODES, name)
    elif step == "compact":
        fake.compact()
    elif step == "bookmark":
        fake.bookmark()
    elif step in ("end", "drop", "mid-line", "gone"):
        fake.end_watches(step)
    elif step == "deaf":
        fake.deafen()
    elif step == "outage":  # changes that no watch tells of any more: only a new list can
        fake.deafen()
        for change, which, _ in number:  # type: ignore[union-attr]
            await _apply(fake, informer, change, which)
        fake.compact()
        fake.end_watches("drop")
    elif step == "tokens":
        fake.expire_tokens = not fake.expire_tokens
    elif step == "restart":
        await informer.stop()
        await informer.start()
    elif step == "stream-410":
        fake.faults["watch"].append(Fault(in_stream=410))
    elif what == "hang":
        fake.faults[kind].append(Fault(hang_up=True))
    elif what.isdigit():
        fake.faults[kind].append(Fault(status=int(what)))

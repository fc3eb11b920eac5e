"""The typed client: verbs, paging, retries, errors, limits."""

import asyncio
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from koordlet.api.core import ConfigMap, Node, Pod
from koordlet.api.encoding import wire
from koordlet.api.meta import LabelSelector, LabelSelectorRequirement, ObjectMeta
from koordlet.kube import (
    ApiError,
    Client,
    ClientConfig,
    Conflict,
    ConnectionFailed,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    PatchKind,
    ServerError,
    TooManyRequests,
    Unauthorized,
    pointer,
)
from koordlet.kube.credentials import Anonymous, TokenFile
from koordlet.kube.errors import AnswerTooLong, from_response, parse_retry_after
from koordlet.kube.ratelimit import ExponentialBackoff, TokenBucket
from koordlet.kube.selectors import field_query, label_query
from koordlet.kube.transport import Transport, api_group
from tests.fakeclock import FakeClock
from tests.koordlet.kube.conftest import FakeApi, Fault

MAPS, NODES, PODS = "api/v1/configmaps", "api/v1/nodes", "api/v1/pods"


async def test_get_and_list(fake: FakeApi, client: Client) -> None:
    fake.put(MAPS, "a", "ns", data={"k": "v"}, metadata={"labels": {"x": "1"}})
    fake.put(MAPS, "b", "other")
    config_map = await client.get(ConfigMap, "a", "ns")
    assert config_map.data == {"k": "v"} and config_map.metadata.labels == {"x": "1"}
    everywhere = await client.list(ConfigMap, limit=1)
    assert [m.metadata.key for m in everywhere] == ["ns/a", "other/b"]
    assert everywhere.resource_version == str(fake.version)
    assert [m.metadata.name for m in await client.list(ConfigMap, "other")] == ["b"]
    assert [m.metadata.name for m in await client.list(ConfigMap, label_selector={"x": "1"})] == ["a"]
    assert await client.list(Node) == []


@pytest.mark.parametrize("name", ["a?x=1", "a/status", "a%2fstatus", "..", "../other/configmaps/b", "b#c"])
async def test_what_is_no_name_reaches_no_other_object(fake: FakeApi, client: Client, name: str) -> None:
    """References in objects, such as those to owners, are free text of tenants."""
    fake.put(MAPS, "a", "ns", data={"k": "v"})
    for request in (
        client.get(ConfigMap, name, "ns"),
        client.get(ConfigMap, "a", f"other/../{name}"),
        client.patch(ConfigMap, name, "ns", body={}),
        client.delete(ConfigMap, name, "ns"),
        client.evict(name, "ns"),
    ):
        with pytest.raises(NotFound, match="is not the name of an object"):
            await request
    assert not fake.requests


async def test_expired_continue_token_starts_over_without_paging(fake: FakeApi, client: Client) -> None:
    for i in range(4):
        fake.put(NODES, f"n{i}")
    fake.expire_tokens = True
    assert len(await client.list(Node, limit=3)) == 4
    assert [q.get("limit") for _, _, q in fake.requests] == ["3", "3", None]


async def test_a_page_that_is_too_long_is_read_in_smaller_ones(
    fake: FakeApi, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tenants choose the size of objects: 500 of the largest would take more than a process has."""
    monkeypatch.setattr("koordlet.kube.client.MAX_BODY_BYTES", 4000)
    for i in range(6):
        fake.put(MAPS, f"m{i}", "ns", data={"k": "x" * (10 if i < 3 else 1500)})
    assert len(await client.list(ConfigMap, limit=9)) == 6
    assert [q.get("limit") for _, _, q in fake.requests] == ["9", "2", "2", "2"]
    fake.put(MAPS, "m7", "ns", data={"k": "x" * 4000})
    with pytest.raises(AnswerTooLong):
        await client.list(ConfigMap)


async def test_a_proxys_answer_is_not_read_past_its_limit(fake: FakeApi) -> None:
    fake.put(MAPS, "a", "ns", data={"k": "x" * 4000})
    config = ClientConfig(server="http://api.invalid", proxy=fake.url, credentials=Anonymous())
    async with Client(config, registry=CollectorRegistry()) as client:
        assert await client.get(ConfigMap, "a", "ns")
        with pytest.raises(AnswerTooLong):
            await client.transport.request("GET", "/api/v1/namespaces/ns/configmaps/a", max_bytes=4000)


async def test_a_malformed_item_is_named(fake: FakeApi, client: Client) -> None:
    fake.put(MAPS, "a", "ns", data="text")
    with pytest.raises(wire.WireError, match=r"ConfigMap ns/a: .*data"):
        await client.list(ConfigMap)


async def test_create_and_conflicts(fake: FakeApi, client: Client) -> None:
    created = await client.create(ConfigMap(metadata=ObjectMeta(name="a", namespace="ns"), data={"k": "v"}))
    assert created.metadata.uid and fake.objects[MAPS]["ns/a"]["kind"] == "ConfigMap"
    with pytest.raises(Conflict) as caught:
        await client.create(created, namespace="ns")
    assert caught.value.already_exists
    with pytest.raises(Invalid):
        await client.create(ConfigMap(metadata=ObjectMeta(name="Bad_Name")))


async def test_patches(fake: FakeApi, client: Client) -> None:
    fake.put(NODES, "n", spec={"podCIDR": "x"}, status={"phase": "a"})
    node = await client.patch(Node, "n", body={"metadata": {"labels": {"a/b": "1"}}})
    assert node.metadata.labels == {"a/b": "1"}
    ops = [{"op": "replace", "path": pointer("metadata", "labels", "a/b"), "value": "2"}]
    node = await client.patch(Node, "n", body=ops, kind=PatchKind.JSON)
    assert node.metadata.labels == {"a/b": "2"} and fake.objects[NODES]["n"]["spec"] == {"podCIDR": "x"}
    await client.update_status(Node, "n", status={"phase": "b"})
    assert fake.objects[NODES]["n"]["status"] == {"phase": "b"}
    assert fake.requests[-1][1] == "/api/v1/nodes/n/status"
    with pytest.raises(Conflict):
        await client.update_status(Node, "n", status={"phase": "c"}, resource_version="1")
    await client.patch(Node, "n", body={"spec": {}}, kind=PatchKind.STRATEGIC)


async def test_apply(fake: FakeApi, client: Client) -> None:
    body = {"data": {"k": "v"}}
    patched = await client.patch(ConfigMap, "a", "ns", body=body, kind=PatchKind.APPLY, field_manager="koordlet")
    assert patched.data == {"k": "v"} and fake.objects[MAPS]["ns/a"]["metadata"]["namespace"] == "ns"
    fake.objects[MAPS]["ns/a"]["owner"] = "else"
    with pytest.raises(Conflict):
        await client.patch(ConfigMap, "a", "ns", body=body, kind=PatchKind.APPLY, field_manager="koordlet")
    await client.patch(ConfigMap, "a", "ns", body=body, kind=PatchKind.APPLY, field_manager="koordlet", force=True)
    with pytest.raises(ValueError, match="field manager"):
        await client.patch(ConfigMap, "a", "ns", body=body, kind=PatchKind.APPLY)


async def test_delete(fake: FakeApi, client: Client) -> None:
    fake.put(NODES, "n")
    with pytest.raises(Conflict):
        await client.delete(Node, "n", uid="another")
    assert await client.delete(Node, "n", grace_seconds=0, uid=fake.objects[NODES]["n"]["metadata"]["uid"])
    with pytest.raises(NotFound):
        await client.delete(Node, "n")
    assert not await client.delete(Node, "n", missing_ok=True)


async def test_eviction_hands_429_back(fake: FakeApi, client: Client) -> None:
    fake.put(PODS, "p", "ns")
    await client.evict("p", "ns", grace_seconds=30)
    assert fake.requests[-1][1] == "/api/v1/namespaces/ns/pods/p/eviction"
    fake.faults["other"].append(Fault(status=429, reason="TooManyRequests", headers={"Retry-After": "10"}))
    with pytest.raises(TooManyRequests) as caught:
        await client.evict("p", "ns")
    assert caught.value.retry_after == 10


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, ApiError), (401, Unauthorized), (403, Forbidden), (404, NotFound), (410, Gone), (418, ApiError)],
)
async def test_errors_have_types_and_are_not_retried(
    fake: FakeApi, client: Client, status: int, kind: type[ApiError]
) -> None:
    fake.faults["other"].append(Fault(status=status, reason="Why"))
    with pytest.raises(kind, match=rf"GET /api/v1/nodes/n: {status} as ordered") as caught:
        await client.get(Node, "n")
    assert (caught.value.status, caught.value.reason, len(fake.requests)) == (status, "Why", 1)


async def test_html_from_a_proxy_is_still_an_error(fake: FakeApi, client: Client) -> None:
    fake.faults["other"].extend(Fault(status=502, body=b"<html>bad</html>") for _ in range(5))
    with pytest.raises(ServerError, match="502 Bad Gateway"):
        await client.get(Node, "n")


async def test_idempotent_requests_are_retried(fake: FakeApi, clock: FakeClock, client: Client) -> None:
    fake.put(NODES, "n")
    fake.faults["other"] += [Fault(status=500), Fault(status=429, headers={"Retry-After": "7"})]
    await client.get(Node, "n")
    assert len(fake.requests) == 3
    assert 7 <= clock.slept[-1] < 8
    assert client.registry is not None
    assert client.registry.get_sample_value("koord_kube_retries_total", {"verb": "GET"}) == 2


@pytest.mark.parametrize(("headers", "sent"), [({}, 1), ({"Retry-After": "1"}, 2)])
async def test_a_write_is_retried_only_if_marked_repeatable(
    fake: FakeApi, client: Client, headers: dict[str, str], sent: int
) -> None:
    fake.put(NODES, "n")
    fake.faults["other"].append(Fault(status=503, headers=headers))
    try:
        await client.patch(Node, "n", body={"spec": {}})
    except ServerError:
        assert sent == 1
    assert len(fake.requests) == sent


async def test_a_read_cut_off_is_repeated(fake: FakeApi, client: Client) -> None:
    fake.put(NODES, "n")
    fake.faults["other"] += [Fault(hang_up=True), Fault(hang_up=True)]
    assert (await client.get(Node, "n")).metadata.name == "n"


async def test_a_write_cut_off_is_not_repeated(fake: FakeApi, client: Client) -> None:
    fake.faults["other"].append(Fault(hang_up=True))
    with pytest.raises(ConnectionFailed, match="PATCH"):
        await client.patch(Node, "n", body={})
    assert len(fake.requests) == 1


async def test_no_server(client: Client, fake: FakeApi, clock: FakeClock) -> None:
    await fake.stop()
    with pytest.raises(ConnectionFailed, match="GET http://127"):
        await client.get(Node, "n")
    assert len(clock.slept) == 4


async def test_retries_end(fake: FakeApi, client: Client) -> None:
    fake.faults["other"] += [Fault(status=503) for _ in range(9)]
    with pytest.raises(ServerError):
        await client.get(Node, "n")
    assert len(fake.requests) == 5


async def test_a_401_at_the_last_attempt_is_raised(fake: FakeApi, clock: FakeClock, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("t")
    fake.faults["other"] += [*(Fault(status=503) for _ in range(4)), Fault(status=401)]
    config = ClientConfig(server=fake.url, credentials=TokenFile(path, clock=clock))
    async with Client(config, clock=clock, registry=CollectorRegistry()) as client:
        with pytest.raises(Unauthorized):
            await client.get(Node, "n")


async def test_rotated_token_costs_one_request(fake: FakeApi, tmp_path: Path, clock: FakeClock) -> None:
    path = tmp_path / "token"
    path.write_text("old\n")
    fake.put(NODES, "n")
    fake.require_token = "old"
    config = ClientConfig(server=fake.url, credentials=TokenFile(path, clock=clock), user_agent="koordlet/test")
    async with Client(config, clock=clock, registry=CollectorRegistry()) as client:
        await client.get(Node, "n")
        path.write_text("new")
        fake.require_token = "new"
        await client.get(Node, "n")
        assert len(fake.requests) == 3
        assert fake.headers[-1]["User-Agent"] == "koordlet/test"
        fake.require_token = "never"
        with pytest.raises(Unauthorized):
            await client.get(Node, "n")


async def test_raw(fake: FakeApi, client: Client) -> None:
    fake.put(PODS, "p", "ns")
    assert b'"items"' in await client.raw("GET", "/api/v1/pods", params={"limit": "1"})
    with pytest.raises(ApiError):
        await client.raw("PUT", "/api/v1/namespaces/ns/pods/p", body={"a": 1})


async def test_one_slow_answer_times_out(fake: FakeApi, client: Client) -> None:
    fake.faults["other"].append(Fault(delay=1.0))
    with pytest.raises(ConnectionFailed, match="timed out"):
        await client.transport.request("PATCH", "/api/v1/nodes/n", body=b"{}", seconds=0.02)


@pytest.mark.parametrize(
    ("path", "group"),
    [
        ("/api/v1/pods", "/api/v1"),
        ("/apis/apps/v1/namespaces/a/deployments/b", "/apis/apps/v1"),
        ("/apis/apps/v1", "/apis/apps/v1"),
        ("/api", "/api"),
        ("/version", ""),
    ],
)
def test_api_group_of_a_path(path: str, group: str) -> None:
    assert api_group(path) == group


def test_each_api_group_has_its_own_rate_limit() -> None:
    transport = Transport(ClientConfig(server="http://127.0.0.1:1", qps=1, burst=1), clock=FakeClock())
    nodes, more_nodes = "/api/v1/nodes/a", "/api/v1/nodes/b"
    assert [transport._bucket(path).reserve() for path in (nodes, more_nodes)] == [0, 1]
    assert transport._bucket("/apis/slo.koordinator.sh/v1alpha1/nodeslos/a").reserve() == 0


async def test_token_bucket_is_fair_and_bounded() -> None:
    clock = FakeClock()
    bucket = TokenBucket(2, 3, clock=clock)
    assert [bucket.reserve() for _ in range(5)] == [0, 0, 0, 0.5, 1.0]
    await clock.advance(10)
    assert [bucket.try_take() for _ in range(4)] == [True, True, True, False]
    waits = [asyncio.create_task(bucket.acquire()) for _ in range(2)]
    await clock.settle()
    waits[0].cancel()
    await clock.advance(1)
    assert await waits[1] == 1.0
    assert TokenBucket(0, 1, clock=clock).reserve() == 0


def test_backoff_grows_to_its_bound() -> None:
    backoff = ExponentialBackoff(0.8, 30, jitter=0)
    assert [backoff.next() for _ in range(8)] == [0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30, 30]
    backoff.reset()
    assert backoff.next() == 0.8
    stretched = ExponentialBackoff(1, 1).next()
    assert 1 <= stretched <= 2
    backoff.failures = 10**6
    assert backoff.next() == 30


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        *((None, None), ("", None), ("7", 7.0), ("Thu, 01 Jan 1970 00:01:10 GMT", 10.0), ("soon", None), ("-1", None)),
        (f"Thu, 01 Jan {'9' * 20} 00:01:10 GMT", None),
    ],
)
def test_retry_after(value: str | None, seconds: float | None) -> None:
    assert parse_retry_after(value, 60.0) == seconds


def test_retry_after_in_the_status() -> None:
    body = b'{"kind":"Status","reason":"TooManyRequests","message":"m","details":{"retryAfterSeconds":3}}'
    assert from_response(429, {}, body, now=0).retry_after == 3


@pytest.mark.parametrize(
    ("selector", "query"),
    [
        (None, None),
        ({}, None),
        ("a=b", "a=b"),
        ({"b": "2", "a": "1"}, "a=1,b=2"),
        (LabelSelector(), None),
        (
            LabelSelector(
                match_labels={"a": "1"},
                match_expressions=[
                    LabelSelectorRequirement(key="k", operator="In", values=["x", "y"]),
                    LabelSelectorRequirement(key="e", operator="Exists"),
                    LabelSelectorRequirement(key="d", operator="DoesNotExist"),
                    LabelSelectorRequirement(key="n", operator="NotIn", values=["z"]),
                ],
            ),
            "a=1,k in (x,y),e,!d,n notin (z)",
        ),
    ],
)
def test_label_selectors(selector: dict[str, str] | str | LabelSelector | None, query: str | None) -> None:
    assert label_query(selector) == query


def test_field_selectors_escape() -> None:
    assert field_query({"status.phase!": "Failed", "metadata.name": "a,b=c"}) == (
        r"metadata.name=a\,b\=c,status.phase!=Failed"
    )


async def test_trimmed_type_needs_its_resource(client: Client, fake: FakeApi) -> None:
    class Lite(Pod):
        pass

    with pytest.raises(KeyError, match="Lite"):
        await client.list(Lite)
    fake.put(PODS, "p", "ns")
    assert type((await client.list(Lite, resource=Pod))[0]) is Lite

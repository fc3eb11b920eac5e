"""Events: sent in the background, merged, limited, never in the way."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from koordlet.api.core import Node, Pod
from koordlet.api.crs.slo import NodeMetric
from koordlet.api.meta import ObjectMeta, ObjectReference
from koordlet.kube import EventRecorder
from koordlet.kube.client import Client
from koordlet.kube.events import reference
from tests.fakeclock import FakeClock
from tests.koordlet.kube.conftest import FakeApi, Fault
from tests.waiting import until

EVENTS = "api/v1/events"


@pytest.fixture
async def recorder(client: Client) -> AsyncIterator[EventRecorder]:
    recorder = EventRecorder(client, "koordlet", "node-1")
    await recorder.start()
    yield recorder
    await recorder.stop()


def pod(name: str = "web", namespace: str = "ns") -> Pod:
    return Pod(metadata=ObjectMeta(name=name, namespace=namespace, uid="u1"))


def outcome(client: Client, name: str) -> float:
    assert client.registry is not None
    return client.registry.get_sample_value("koord_events_total", {"outcome": name}) or 0


async def test_an_event_looks_as_kubectl_describe_wants_it(
    fake: FakeApi, client: Client, recorder: EventRecorder
) -> None:
    recorder.warning(pod(), "EvictPodByKoordlet", "memory above threshold")
    await until(lambda: fake.objects.get(EVENTS))
    (event,) = fake.objects[EVENTS].values()
    assert event["metadata"]["namespace"] == "ns" and event["metadata"]["name"].startswith("web.")
    assert event["involvedObject"] == {
        "apiVersion": "v1", "kind": "Pod", "name": "web", "namespace": "ns", "uid": "u1",
    }  # fmt: skip
    assert (event["type"], event["reason"], event["count"]) == ("Warning", "EvictPodByKoordlet", 1)
    assert event["source"] == {"component": "koordlet", "host": "node-1"}
    assert event["firstTimestamp"] == event["lastTimestamp"]
    assert event["reportingComponent"] == "koordlet"


async def test_cluster_scoped_objects_report_in_default(fake: FakeApi, recorder: EventRecorder) -> None:
    recorder.normal(Node(metadata=ObjectMeta(name="n1", uid="n1")), "Ready", "up")
    await until(lambda: fake.objects.get(EVENTS))
    (event,) = fake.objects[EVENTS].values()
    assert event["metadata"]["namespace"] == "default" and "namespace" not in event["involvedObject"]


async def test_the_same_event_again_raises_the_count(
    fake: FakeApi, client: Client, recorder: EventRecorder, clock: FakeClock
) -> None:
    for _ in range(4):
        recorder.normal(pod(), "Suppressed", "be cpu")
        await clock.sleep(30)
    await until(lambda: outcome(client, "merged") == 3)
    (event,) = fake.objects[EVENTS].values()
    assert event["count"] == 4 and event["lastTimestamp"] > event["firstTimestamp"]


async def test_an_expired_event_is_created_again(
    fake: FakeApi, client: Client, recorder: EventRecorder, clock: FakeClock
) -> None:
    recorder.normal(pod(), "Suppressed", "be cpu")
    await until(lambda: fake.objects.get(EVENTS))
    fake.objects[EVENTS].clear()
    await clock.sleep(3600)
    recorder.normal(pod(), "Suppressed", "be cpu")
    await until(lambda: outcome(client, "sent") == 2)
    assert [event["count"] for event in fake.objects[EVENTS].values()] == [1]


async def test_many_messages_of_a_kind_become_one(
    fake: FakeApi, client: Client, recorder: EventRecorder, clock: FakeClock
) -> None:
    for number in range(15):
        recorder.normal(pod(), "Suppressed", f"be cpu {number}")
        await clock.sleep(1)
    await until(lambda: outcome(client, "sent") + outcome(client, "merged") == 15)
    messages = [event["message"] for event in fake.objects[EVENTS].values()]
    assert len(messages) == 11
    assert messages[-1] == "(combined from similar events): be cpu 14"


async def test_spam_about_one_object_is_filtered_and_others_are_not(
    fake: FakeApi, client: Client, recorder: EventRecorder, clock: FakeClock
) -> None:
    for number in range(40):
        recorder.normal(pod(), f"Reason{number}", "m")
    recorder.normal(pod("other"), "Reason", "m")
    await until(lambda: outcome(client, "sent") == 26)
    assert outcome(client, "filtered") == 15
    await clock.sleep(300)
    recorder.normal(pod(), "Later", "m")
    await until(lambda: outcome(client, "sent") == 27)


async def test_events_of_one_reason_are_limited_over_all_objects(
    fake: FakeApi, client: Client, clock: FakeClock
) -> None:
    recorder = EventRecorder(client, "koordlet", "node-1", limit_reasons=True)
    await recorder.start()
    accepted = [recorder.event(pod(f"victim-{number}"), "Warning", "Delayed", "m") for number in range(300)]
    assert accepted == [True] * 100 + [False] * 200
    assert recorder.event(pod("victim-250"), "Warning", "Evicted", "m")  # a flood of one reason hides no other
    await clock.sleep(10)
    accepted = [recorder.event(pod(f"new-{number}"), "Warning", "Delayed", "m") for number in range(10)]
    assert accepted == [True, True] + [False] * 8
    await until(lambda: outcome(client, "sent") == 103)
    assert outcome(client, "filtered") == 208
    await recorder.stop()


async def test_one_object_does_not_use_up_the_limit_of_a_reason(client: Client) -> None:
    recorder = EventRecorder(client, "koordlet", "node-1", limit_reasons=True)
    for number in range(200):
        recorder.warning(pod("noisy"), "Delayed", f"{number}")
    assert [recorder.event(pod(f"other-{number}"), "Warning", "Delayed", "m") for number in range(80)].count(True) == 75


async def test_reporting_never_blocks_while_the_server_is_away(
    fake: FakeApi, client: Client, recorder: EventRecorder
) -> None:
    fake.faults["other"] += [Fault(hang_up=True), Fault(hang_up=True)]
    recorder.normal(pod(), "A", "m")
    recorder.normal(pod(), "B", "m")
    await until(lambda: outcome(client, "sent") == 2)
    assert [event["reason"] for event in fake.objects[EVENTS].values()] == ["A", "B"]
    assert outcome(client, "failed") == 2


async def test_a_refused_event_makes_way_for_the_next(
    fake: FakeApi, client: Client, recorder: EventRecorder, caplog: pytest.LogCaptureFixture
) -> None:
    fake.faults["other"].append(Fault(status=403))
    recorder.normal(pod(), "A", "m")
    recorder.normal(pod(), "B", "m")
    await until(lambda: outcome(client, "sent") == 1)
    assert "Event rejected" in caplog.text


async def test_a_message_that_is_no_text_makes_way_for_the_next(
    client: Client, recorder: EventRecorder, caplog: pytest.LogCaptureFixture
) -> None:
    recorder.normal(pod(), "A", "process \udcff was killed")  # a name as the kernel gives it
    recorder.normal(pod(), "B", "m")
    await until(lambda: outcome(client, "sent") == 1)
    assert outcome(client, "failed") == 1 and "Event rejected" in caplog.text


async def test_a_full_queue_drops_and_counts(client: Client) -> None:
    recorder = EventRecorder(client, "koordlet")
    for number in range(1100):
        recorder.normal(pod(f"p{number}"), "A", "m")
    assert outcome(client, "dropped") == 100


async def test_stop_sends_waiting_events(fake: FakeApi, client: Client) -> None:
    recorder = EventRecorder(client, "koordlet")
    recorder.normal(pod(), "A", "m")
    await recorder.start()
    client.clock._auto = False  # type: ignore[attr-defined]
    stopping = asyncio.create_task(recorder.stop())
    for _ in range(200):
        await asyncio.sleep(0.005)
        await client.clock.advance(0.001)  # type: ignore[attr-defined]
        if fake.objects.get(EVENTS):
            break
    await client.clock.advance(2)  # type: ignore[attr-defined]
    await stopping
    assert len(fake.objects[EVENTS]) == 1


def test_references() -> None:
    metric = NodeMetric(metadata=ObjectMeta(name="r"))
    assert (reference(metric).kind, reference(metric).api_version) == (
        "NodeMetric", "slo.koordinator.sh/v1alpha1",
    )  # fmt: skip
    ready = ObjectReference(kind="Pod", name="p")
    assert reference(ready) is ready


async def test_events_that_do_not_fit_the_queue_are_counted_and_logged(
    fake: FakeApi, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = EventRecorder(client, "koord-scheduler", queue=20, senders=4)
    for number in range(50):
        recorder.normal(pod(f"p{number}"), "Scheduled", "assigned")
    assert outcome(client, "dropped") == 30
    await recorder.start()
    await until(lambda: outcome(client, "sent") == 20)
    assert not [record for record in caplog.records if "Events were dropped" in record.getMessage()]
    recorder.normal(pod("late"), "Scheduled", "assigned")
    (dropped,) = [record for record in caplog.records if "Events were dropped" in record.getMessage()]
    assert dropped.koord_fields == {"dropped": 30, "limit": 20}  # type: ignore[attr-defined]
    await until(lambda: outcome(client, "sent") == 21)
    await recorder.stop()


async def test_several_senders_keep_the_order_of_one_object(fake: FakeApi, client: Client, clock: FakeClock) -> None:
    recorder = EventRecorder(client, "koord-scheduler", senders=8)
    for number in range(5):
        for name in "abcdef":
            recorder.warning(pod(name), "FailedScheduling", "0/1 nodes are available")
            if number == 4:
                recorder.normal(pod(name), "Scheduled", "assigned")
    await recorder.start()
    await until(lambda: (outcome(client, "merged"), outcome(client, "sent")) == (24, 12))
    events = sorted(
        (event["involvedObject"]["name"], event["reason"], event["count"]) for event in fake.objects[EVENTS].values()
    )
    assert events == [(name, reason, count) for name in "abcdef"
                     for reason, count in (("FailedScheduling", 5), ("Scheduled", 1))]  # fmt: skip
    await recorder.stop()

"""Events in the form of events.k8s.io: series of repetitions instead of counts (docs/scheduler.md)."""

from __future__ import annotations

from typing import Any

import pytest

from koordlet.api.meta import ObjectReference
from koordlet.kube.client import Client
from koordlet.kube.eventseries import END_AFTER_S, MAX_SERIES, WRITE_EVERY_S, EventSeriesWriter

EVENTS = "api/v1/events"
START = 1_700_000_000.0


@pytest.fixture
def writer(client: Client) -> EventSeriesWriter:
    return EventSeriesWriter(client, "koord-scheduler", "koord-scheduler-a")


def pod(name: str = "web") -> ObjectReference:
    return ObjectReference(api_version="v1", kind="Pod", name=name, namespace="ns", uid="u1")


async def report(writer: EventSeriesWriter, after: float, message: str = "0/3 nodes are available") -> bool:
    return await writer.write(pod(), "Warning", "FailedScheduling", "Scheduling", message, START + after)


def counts(fake: Any) -> list[int]:
    """Of each event by age; 0: no series."""
    return [event.get("series", {}).get("count", 0) for event in fake.objects[EVENTS].values()]


async def test_an_event_looks_like_kube_schedulers(fake: Any, writer: EventSeriesWriter) -> None:
    assert await report(writer, 0)
    (event,) = fake.objects[EVENTS].values()
    assert (event["action"], event["reportingComponent"]) == ("Scheduling", "koord-scheduler")
    assert event["reportingInstance"] == "koord-scheduler-a"
    assert event["eventTime"] == "2023-11-14T22:13:20.000000Z"
    assert not event.keys() & {"count", "firstTimestamp", "lastTimestamp", "series"}
    assert not event["source"]


async def test_the_first_repetition_makes_a_series_and_its_end_writes_the_count(
    fake: Any, writer: EventSeriesWriter
) -> None:
    news = [await report(writer, 30 * number, f"message {number}") for number in range(4)]
    assert news == [True, False, False, False]
    assert counts(fake) == [2]
    await writer.sweep(START + 90 + END_AFTER_S)
    assert counts(fake) == [2]
    await writer.sweep(START + 91 + END_AFTER_S)
    assert counts(fake) == [4]
    (event,) = fake.objects[EVENTS].values()
    assert event["message"] == "message 0"
    assert event["series"]["lastObservedTime"] == "2023-11-14T22:14:50.000000Z"
    assert await report(writer, 92 + END_AFTER_S)
    assert counts(fake) == [4, 0]


async def test_a_late_repetition_is_a_new_event_without_a_sweep(fake: Any, writer: EventSeriesWriter) -> None:
    await report(writer, 0)
    assert await report(writer, END_AFTER_S + 1)
    assert counts(fake) == [0, 0]


async def test_a_long_series_is_written_every_half_hour(fake: Any, writer: EventSeriesWriter) -> None:
    last = int(WRITE_EVERY_S) + 300
    for after in range(0, last, 300):
        await report(writer, after)
        await writer.sweep(START + after)
    assert counts(fake) == [2]
    await report(writer, last)
    await writer.sweep(START + last)
    assert counts(fake) == [last // 300 + 1]


async def test_a_series_whose_event_was_deleted_is_a_new_event(fake: Any, writer: EventSeriesWriter) -> None:
    await report(writer, 0)
    fake.objects[EVENTS].clear()
    assert await report(writer, 1)
    assert counts(fake) == [0]


async def test_reason_and_action_make_different_events(fake: Any, writer: EventSeriesWriter) -> None:
    assert await writer.write(pod(), "Normal", "Preempted", "Preempting", "by x", START)
    assert await writer.write(pod(), "Normal", "Scheduled", "Binding", "to n1", START + 1)
    assert counts(fake) == [0, 0]


async def test_the_number_of_series_is_bounded(writer: EventSeriesWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("koordlet.kube.eventseries.MAX_SERIES", 2)
    for number in range(4):
        await writer.write(pod(f"web-{number}"), "Normal", "Scheduled", "Binding", "", START + number)
    assert len(writer._series) == 2 < MAX_SERIES

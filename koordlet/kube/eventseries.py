"""Events as client-go's events.k8s.io recorder writes them: an event, then a series of its repetitions.

kube-scheduler reports in this form: `eventTime`, `action` and `reportingComponent` are set, `count` is not. Repetitions
are of the same object, type, reason and action, whatever their message; the message is that of the first. The first
repetition within six minutes makes the series; its count is then written every 30 minutes and when the series ends.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from koordlet.api.core import Event, EventSeries
from koordlet.api.encoding.wire import MicroTime
from koordlet.api.meta import ObjectMeta, ObjectReference
from koordlet.kube.client import Client
from koordlet.kube.errors import NotFound

END_AFTER_S = 360.0
"""A series ends when the event was not repeated for this long."""
WRITE_EVERY_S = 1800.0
"""Interval at which the count of a continuing series is written."""
MAX_SERIES = 4096

SeriesKey = tuple[str, str, str, str, str, str, str]
"""Kind, namespace, name and uid of the object; type, reason and action of the event."""


@dataclass
class _Series:
    name: str
    namespace: str
    last: float
    """Unix time of the last repetition."""
    count: int = 1
    written_count: int = 1
    written_at: float = 0.0


class EventSeriesWriter:
    """`write` raises KubeError when the server cannot be asked; the caller then repeats the call."""

    def __init__(self, client: Client, component: str, instance: str) -> None:
        self._client = client
        self._component = component
        self._instance = instance
        self._series: OrderedDict[SeriesKey, _Series] = OrderedDict()

    async def write(self, about: ObjectReference, type: str, reason: str, action: str, message: str, at: float) -> bool:
        """Write an event of Unix time `at`; False if it only continued a series."""
        key = (about.kind, about.namespace, about.name, about.uid, type, reason, action)
        series = self._series.get(key)
        repeated = series is not None and at - series.last <= END_AFTER_S
        # The server deletes events after an hour: then the repetition is a new event.
        if series is not None and repeated and (series.written_count > 1 or await self._write_count(series, 2, at)):
            series.count, series.last = series.count + 1, at
            return False
        namespace = about.namespace or "default"
        name = f"{about.name}.{int(at * 1e9):x}"
        event = Event(
            metadata=ObjectMeta(name=name, namespace=namespace),
            involved_object=about,
            reason=reason,
            message=message,
            type=type,
            event_time=MicroTime.from_unix(at),
            action=action,
            reporting_component=self._component,
            reporting_instance=self._instance,
        )
        await self._client.create_blind(event, namespace=namespace)
        self._series[key] = _Series(name, namespace, at, written_at=at)
        self._series.move_to_end(key)
        if len(self._series) > MAX_SERIES:
            self._series.popitem(last=False)
        return True

    async def sweep(self, now: float) -> None:
        """End series without recent repetitions and write the counts of the others. Call it every few minutes."""
        for key, series in list(self._series.items()):
            ended = now - series.last > END_AFTER_S
            if ended:
                self._series.pop(key, None)
            if series.count > series.written_count and (ended or now - series.written_at >= WRITE_EVERY_S):
                await self._write_count(series, series.count, series.last)

    async def _write_count(self, series: _Series, count: int, at: float) -> bool:
        """False if the event is gone."""
        body = {"series": EventSeries(count=count, last_observed_time=MicroTime.from_unix(at))}
        try:
            await self._client.patch(Event, series.name, series.namespace, body=body)
        except NotFound:
            return False
        series.written_count, series.written_at = count, at
        return True

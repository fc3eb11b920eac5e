"""Events and leases (core/v1, coordination.k8s.io/v1)."""

import msgspec

from koordlet.api.encoding.base import Struct
from koordlet.api.encoding.wire import MicroTime, Time
from koordlet.api.meta import ApiObject, ObjectReference


class EventSource(Struct):
    """The component that reports an event."""

    component: str = ""
    host: str = ""


class EventSeries(Struct):
    """The repetitions of an event, by events.k8s.io clients."""

    count: int = 0
    last_observed_time: MicroTime | None = None


class Event(ApiObject, api_version="v1"):
    """core/v1 Event. Clients of events.k8s.io set `event_time`, `series` and `action`, others `count` and times."""

    involved_object: ObjectReference = msgspec.field(default_factory=ObjectReference)
    reason: str = ""
    message: str = ""
    source: EventSource = msgspec.field(default_factory=EventSource)
    first_timestamp: Time | None = None
    last_timestamp: Time | None = None
    count: int = 0
    type: str = ""
    event_time: MicroTime | None = None
    series: EventSeries | None = None
    action: str = ""
    reporting_component: str = ""
    reporting_instance: str = ""


class LeaseSpec(Struct):
    """`spec` of a lease. Times have microseconds: whole seconds are too coarse for leader election."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: MicroTime | None = None
    renew_time: MicroTime | None = None
    lease_transitions: int | None = None


class Lease(ApiObject, api_version="coordination.k8s.io/v1"):
    """coordination.k8s.io/v1 Lease."""

    spec: LeaseSpec = msgspec.field(default_factory=LeaseSpec)

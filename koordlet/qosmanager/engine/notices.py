"""Publishes the strategies' notices about pods: log, audit log, Events, counts."""

from __future__ import annotations

from koordlet.api.meta import ObjectReference
from koordlet.app.logging import get_logger
from koordlet.audit import Auditor
from koordlet.audit import pod as about_pod
from koordlet.kube import EventRecorder
from koordlet.prometheus import Registries
from koordlet.qosmanager.engine.strategy import Notice

log = get_logger(__name__)

AUDIT_LEVEL = 1


class NoticePublisher:
    """Called by `QoSManager` with each notice. Events of one kind about one pod are one Event with a count
    (`kube.events`)."""

    def __init__(self, events: EventRecorder, auditor: Auditor, registries: Registries) -> None:
        self._events = events
        self._auditor = auditor
        self._registries = registries

    def __call__(self, notice: Notice) -> None:
        meta = notice.pod
        log.info(notice.reason, pod=f"{meta.namespace}/{meta.name}", what=notice.message)
        about = about_pod(meta.namespace, meta.name)
        self._auditor.record(AUDIT_LEVEL, about, notice.reason, notice.message, details=notice.details)
        if notice.counts:
            self._registries.count(*notice.counts)
        if notice.event and meta.name:
            pod = ObjectReference(api_version="v1", kind="Pod", name=meta.name, namespace=meta.namespace, uid=meta.uid)
            self._events.event(pod, "Warning" if notice.warning else "Normal", notice.reason, notice.event)

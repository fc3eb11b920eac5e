"""One pod's life on this node, from its first sight to its last trace: a task that brings about what the spec asks.

`_sync` looks at the pod and at its containers, takes the next steps and says when to look again; events
(API updates, ends of containers, probe results) make it look at once. All state that matters is in the
runtime (containers and their attempts) and in `podstate`, so a new worker made after a kill -9 goes on
where the old one was. Steps that fail are told as events and tried again; nothing here ends the kubelet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from control.standalone.kubelet.cgroups.naming import QosClass
from control.standalone.kubelet.pods.changesignal import ChangeSignal
from control.standalone.kubelet.pods.containers import RETRY_SECONDS, PodContainers
from control.standalone.kubelet.pods.spec import MalformedPod, ParsedPod, parse_pod
from control.standalone.kubelet.pods.state import PodState
from control.standalone.kubelet.pods.status import (
    OWNED_CONDITIONS,
    ContainerRecord,
    PhaseDecision,
    failed_status,
    initialized,
    over,
    pod_status,
)
from control.standalone.kubelet.pods.workercontext import ApiUnavailable, PodWorkerContext
from control.standalone.kubelet.runtimes.runtime import RuntimeContainer, RuntimeFailure
from koordlet.app.logging import get_logger

log = get_logger(__name__)


def strip(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The object without what only the API server cares for."""
    meta = {k: v for k, v in raw["metadata"].items() if k != "managedFields"}
    return {"apiVersion": "v1", "kind": "Pod", **raw, "metadata": meta}


class PodWorker:
    """`start` begins the task; `update` and `removed` bring news from the API."""

    def __init__(self, around: PodWorkerContext, raw: Mapping[str, Any], state: PodState | None = None) -> None:
        self._a = around
        self.raw = strip(raw)
        self.uid: str = raw["metadata"]["uid"]
        self.start_time = state.start_time if state else around.clock.now()
        self.admitted = state.admitted if state else False
        self.verdict = state.verdict if state else None
        self.spec: ParsedPod | None = None
        self.status: dict[str, Any] = dict(raw.get("status") or {})
        self.seen = False
        """The API has been seen to have this pod, in this life of the kubelet."""
        self.gone = False
        """The API object does not exist (any more)."""
        self.final = False
        """Containers have been ended for good."""
        self._signal = ChangeSignal(around.clock)
        self._containers = PodContainers(around, self.uid, self._signal, self._say, self._grace)
        self._unsaved = True
        self._task: asyncio.Task[None] | None = None
        try:
            self.spec = parse_pod(raw)
        except MalformedPod as error:
            self._refuse(PhaseDecision("InvalidPod", f"{self._name()}: {error}"))
        if self.spec is not None:
            self._containers.adopt(self.spec, self.raw.get("status") or {})

    def _name(self) -> str:
        meta = self.raw["metadata"]
        return f"pod {meta.get('namespace', 'default')}/{meta.get('name')}"

    @property
    def namespace(self) -> str:
        return str(self.raw["metadata"].get("namespace") or "default")

    @property
    def pod_name(self) -> str:
        return str(self.raw["metadata"].get("name"))

    @property
    def deleting(self) -> bool:
        return self.gone or bool(self.raw["metadata"].get("deletionTimestamp"))

    @property
    def over(self) -> bool:
        """No container runs or will run: this pod takes none of the node's resources."""
        if self.verdict is not None or self.spec is None or self.final:
            return True
        return over(self.spec, self.records)

    @property
    def records(self) -> Mapping[str, ContainerRecord]:
        return self._containers.records

    def _say(self, kind: str, reason: str, message: str) -> None:
        self._a.host.event(self.raw, kind, reason, message)

    # --- news

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=f"pod:{self.namespace}/{self.pod_name}")

    async def stop(self) -> None:
        """End the task; containers keep running."""
        self._containers.stop_probing()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def update(self, raw: Mapping[str, Any]) -> None:
        old, self.raw = self.raw, strip(raw)
        if (old.get("spec"), _lasting(old)) != (self.raw.get("spec"), _lasting(self.raw)):
            try:
                self.spec = parse_pod(self.raw) if self.spec is not None else None
            except MalformedPod as error:  # keep running what was understood
                self._say("Warning", "InvalidPod", str(error))
            self._unsaved = True
            self.wake()
        if _foreign_conditions(old) != _foreign_conditions(self.raw):
            self.wake()  # a readiness gate may have opened
        if self.spec is not None:
            self._containers.shorten(self._grace(self.spec))

    def removed(self) -> None:
        self.gone = True
        self.wake()

    def wake(self) -> None:
        self._signal.notify_change()

    def container_ended(self, info: RuntimeContainer) -> None:
        self._containers.ended(info)
        self.wake()

    def log_path(self, container: str, attempt: int) -> Path:
        return self._containers.log_path(container, attempt)

    # --- the task

    async def _run(self) -> None:
        while True:
            self._signal.dirty = False
            try:
                again = await self._sync()
            except (RuntimeFailure, OSError, ApiUnavailable) as error:
                log.warning("pod sync failed", pod=f"{self.namespace}/{self.pod_name}", err=error)
                again = self._retry(error)
            except Exception as error:  # a fault of ours in one pod must not leave it without a worker
                log.exception("pod sync failed", pod=f"{self.namespace}/{self.pod_name}", err=error)
                again = self._retry(error)
            if again is not None and again < 0:
                return
            await self._signal.wait_until(lambda: self._signal.dirty, _constant(again))

    def _retry(self, exc: Exception) -> float:
        self._say("Warning", "FailedSync", f"error syncing pod: {exc}")
        return self._a.clock.monotonic() + RETRY_SECONDS

    async def _sync(self) -> float | None:
        """One pass; returns when to look again (None: on the next event; negative: all is over)."""
        if self._unsaved:  # before anything is started, so that it is found again
            self._save()
        if self.deleting:
            await self._terminate()
            return -1.0
        spec = self.spec
        if spec is None or self.verdict is not None:
            if spec is not None:
                await self._containers.stop_all(spec, self._grace(spec))
                await self._containers.release(spec)
            self._publish()
            return None
        if not self.admitted:
            ended = (self.raw.get("status") or {}).get("phase") in ("Succeeded", "Failed")
            if ended and not self._containers.any_started():
                return None  # in an earlier life of which nothing is left here
            verdict = await self._a.host.admit(self)
            if verdict is not None:
                self._refuse(verdict)
                self._save()
                return await self._sync()
            self._save()
        if spec.active_deadline is not None and not over(spec, self.records):
            left = self.start_time + spec.active_deadline - self._a.clock.now()
            if left <= 0:
                message = "Pod was active on the node longer than the specified deadline"
                self._refuse(PhaseDecision("DeadlineExceeded", message))
                self._save()
                return await self._sync()
        if over(spec, self.records):
            await self._containers.stop_all(spec, self._grace(spec))  # sidecars end after the containers they serve
            await self._containers.release(spec)
            self.final = True
            self._publish()
            return None
        again = await self._progress(spec)
        self._publish()
        if spec.active_deadline is not None:
            left = self.start_time + spec.active_deadline - self._a.clock.now()
            again = _sooner(again, self._a.clock.monotonic() + max(0.0, left))
        return again

    async def _progress(self, spec: ParsedPod) -> float | None:
        """Start what should run and does not; the soonest time at which something waits for."""
        await self._containers.ensure_sandbox(spec)
        again: float | None = None
        for container in spec.init_containers:
            record = self.records[container.name]
            if record.kill is not None:
                await self._containers.stop_unhealthy(spec, container, record)
            past = initialized(spec, self.records) or any(
                self.records[c.name].current is not None for c in spec.containers
            )
            if container.sidecar:
                if not record.running:
                    again = _sooner(again, await self._containers.start(spec, container, record))
                if not record.started and not past:
                    return again
            elif (record.current is None and not past) or record.exit_code not in (None, 0):
                again = _sooner(again, await self._containers.start(spec, container, record))
            if not container.sidecar and record.exit_code != 0 and not past:
                return again
        for container in spec.containers:
            record = self.records[container.name]
            if record.kill is not None:
                await self._containers.stop_unhealthy(spec, container, record)
            if record.running or not self._should_run(spec, record):
                continue
            again = _sooner(again, await self._containers.start(spec, container, record))
        if over(spec, self.records):
            return self._a.clock.monotonic()
        return again

    @staticmethod
    def _should_run(spec: ParsedPod, record: ContainerRecord) -> bool:
        if record.current is None or spec.restart_policy == "Always":
            return True
        return spec.restart_policy == "OnFailure" and record.exit_code != 0

    # --- the end

    def _grace(self, spec: ParsedPod) -> float:
        """Seconds of grace: what the deletion asks, else what the spec says."""
        asked = self.raw["metadata"].get("deletionGracePeriodSeconds")
        if self.raw["metadata"].get("deletionTimestamp") and isinstance(asked, int):
            return max(1.0, float(asked))
        return float(max(1, spec.grace_seconds))

    async def _terminate(self) -> None:
        """The API object is being deleted or gone: end everything, say so, leave nothing behind."""
        spec = self.spec
        if spec is not None:
            await self._containers.stop_all(spec, self._grace(spec))
            await self._containers.release(spec)
            self.final = True
            self._publish()
        await self._a.host.finalize(self)
        for info in self._a.runtime.containers(self.uid):
            await self._a.runtime.remove(info.id)
        self._a.store.forget(self.uid)
        for name in self.records:
            self._a.backoff.forget((self.uid, name))
        self._a.host.forget(self)

    async def kill_now(self) -> None:
        """End and remove everything at once, without telling the API (clean-up on exit)."""
        await self.stop()
        for info in self._a.runtime.containers(self.uid):
            await self._a.runtime.remove(info.id)
        if self.spec is not None:
            await self._containers.release(self.spec)
        self._a.store.forget(self.uid)

    # --- status

    def _refuse(self, verdict: PhaseDecision) -> None:
        self.verdict = verdict
        self._say("Warning", verdict.reason, verdict.message)

    def _publish(self) -> None:
        a = self._a
        spec = self.spec
        if spec is None or (self.verdict is not None and not self._containers.any_started()):
            assert self.verdict is not None
            self.status = failed_status(self.verdict, a.node.ip, self.start_time)
        elif self.admitted:
            self.status = pod_status(
                spec,
                self.records,
                host_ip=a.node.ip,
                start_time=self.start_time,
                sandbox=self._containers.sandbox_runs,
                now=a.clock.now(),
                old=self._conditions(),
                final=self.final,
                verdict=self.verdict,
            )
        else:
            return  # deleted before it was ever run: nothing of ours to say
        a.host.publish(self)

    def _conditions(self) -> list[dict[str, Any]]:
        """Ours as last computed (before the first time: as the API has them), and those of others."""
        ours = self.status.get("conditions") or []
        return [c for c in ours if c.get("type") in OWNED_CONDITIONS] + _foreign_conditions(self.raw)

    def api_object(self) -> dict[str, Any]:
        """The pod as /pods serves it: the API's object with this kubelet's newest status."""
        status = {**(self.raw.get("status") or {}), **self.status}
        status["conditions"] = self._conditions()
        if self.spec is None:
            status.setdefault("qosClass", QosClass.BESTEFFORT.value)
        return {**self.raw, "status": status}

    def _save(self) -> None:
        state = PodState(self.raw, self.start_time, self.admitted, self.verdict)
        self._a.store.save(self.uid, state)
        self._unsaved = False


def _lasting(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata without what changes on every write."""
    return {k: v for k, v in raw["metadata"].items() if k not in ("resourceVersion", "managedFields", "generation")}


def _foreign_conditions(raw: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Conditions that others (readiness gates, controllers) have put on the object."""
    found = (raw.get("status") or {}).get("conditions") or []
    return [c for c in found if c.get("type") not in OWNED_CONDITIONS]


def _constant(at: float | None) -> Callable[[], float | None]:
    return lambda: at


def _sooner(a: float | None, b: float | None) -> float | None:
    return b if a is None else a if b is None else min(a, b)

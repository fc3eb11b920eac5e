"""One task per pod that makes the containers match the spec, from the first sight of the pod to its removal.

`_sync` compares the pod with its containers, takes the next steps and returns when to run again; changes
(API updates, ends of containers, probe results) run it at once. All state is in the
runtime (containers and their attempts) and in `state`, so that the worker of a kubelet restarted after a kill -9
continues. A failed step is reported as an event and repeated; no error here ends the kubelet.
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
    finished,
    initialized,
    pod_status,
)
from control.standalone.kubelet.pods.workercontext import ApiUnavailable, PodWorkerContext
from control.standalone.kubelet.runtimes.runtime import RuntimeContainer, RuntimeFailure
from koordlet.app.logging import get_logger
from koordlet.app.tasks import end_tasks

log = get_logger(__name__)


def strip(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The object without managedFields."""
    meta = {k: v for k, v in raw["metadata"].items() if k != "managedFields"}
    return {"apiVersion": "v1", "kind": "Pod", **raw, "metadata": meta}


class PodWorker:
    """`start` starts the task; `update` and `removed` pass changes from the API."""

    def __init__(self, context: PodWorkerContext, raw: Mapping[str, Any], state: PodState | None = None) -> None:
        self._context = context
        self.raw = strip(raw)
        self.uid: str = raw["metadata"]["uid"]
        self.start_time = state.start_time if state else context.clock.now()
        self.admitted = state.admitted if state else False
        self.decision = state.decision if state else None
        self.spec: ParsedPod | None = None
        self.status: dict[str, Any] = dict(raw.get("status") or {})
        self.seen = False
        """The API had this pod since this kubelet process started."""
        self.gone = False
        """The API object does not exist."""
        self.final = False
        """All containers have been stopped and none will be started again."""
        self._signal = ChangeSignal(context.clock)
        self._containers = PodContainers(context, self.uid, self._signal, self._emit_event, self._grace)
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
    def finished(self) -> bool:
        """No container runs or will run, so that the pod uses none of the node's resources."""
        if self.decision is not None or self.spec is None or self.final:
            return True
        return finished(self.spec, self.records)

    @property
    def records(self) -> Mapping[str, ContainerRecord]:
        return self._containers.records

    def _emit_event(self, kind: str, reason: str, message: str) -> None:
        self._context.host.event(self.raw, kind, reason, message)

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=f"pod:{self.namespace}/{self.pod_name}")

    async def stop(self) -> None:
        """End the task; containers keep running."""
        self._containers.stop_probing()
        await end_tasks(self._task)

    def update(self, raw: Mapping[str, Any]) -> None:
        old, self.raw = self.raw, strip(raw)
        if (old.get("spec"), _lasting(old)) != (self.raw.get("spec"), _lasting(self.raw)):
            try:
                self.spec = parse_pod(self.raw) if self.spec is not None else None
                if self.spec is not None:
                    self._containers.track(self.spec)
            except MalformedPod as error:  # continue with the last valid spec
                self._emit_event("Warning", "InvalidPod", str(error))
            self._unsaved = True
            self.wake()
        if _foreign_conditions(old) != _foreign_conditions(self.raw):
            self.wake()  # a readiness gate may have become true
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

    async def _run(self) -> None:
        while True:
            self._signal.dirty = False
            try:
                again = await self._sync()
            except (RuntimeFailure, OSError, ApiUnavailable) as error:
                log.warning("Pod sync failed", pod=f"{self.namespace}/{self.pod_name}", err=error)
                again = self._retry(error)
            except Exception as error:  # an unexpected error must not end the pod's worker
                log.exception("Pod sync failed", pod=f"{self.namespace}/{self.pod_name}", err=error)
                again = self._retry(error)
            if again is not None and again < 0:
                return
            await self._signal.wait_until(lambda: self._signal.dirty, _constant(again))

    def _retry(self, error: Exception) -> float:
        self._emit_event("Warning", "FailedSync", f"error syncing pod: {error}")
        return self._context.clock.monotonic() + RETRY_SECONDS

    async def _sync(self) -> float | None:
        """One pass; returns the time of the next one (None: at the next change; negative: the pod is removed)."""
        if self._unsaved:  # before anything is started, so that a restarted kubelet knows the pod
            self._save()
        if self.deleting:
            await self._terminate()
            return -1.0
        spec = self.spec
        if spec is None or self.decision is not None:
            if spec is not None:
                await self._containers.stop_all(spec, self._grace(spec))
                await self._containers.release(spec)
            self._publish()
            return None
        if not self.admitted:
            ended = (self.raw.get("status") or {}).get("phase") in ("Succeeded", "Failed")
            if ended and not self._containers.any_started():
                return None  # it finished before, and nothing of it is left here
            decision = await self._context.host.admit(self)
            if decision is not None:
                self._refuse(decision)
                self._save()
                return await self._sync()
            self._save()
        if spec.active_deadline is not None and not finished(spec, self.records):
            left = self.start_time + spec.active_deadline - self._context.clock.now()
            if left <= 0:
                message = "Pod was active on the node longer than the specified deadline"
                self._refuse(PhaseDecision("DeadlineExceeded", message))
                self._save()
                return await self._sync()
        if finished(spec, self.records):
            await self._containers.stop_all(spec, self._grace(spec))  # sidecars stop after the main containers
            await self._containers.release(spec)
            self.final = True
            self._publish()
            return None
        again = _sooner(await self._progress(spec), await self._containers.renew_tokens(spec))
        self._publish()
        if spec.active_deadline is not None:
            left = self.start_time + spec.active_deadline - self._context.clock.now()
            again = _sooner(again, self._context.clock.monotonic() + max(0.0, left))
        return again

    async def _progress(self, spec: ParsedPod) -> float | None:
        """Start the containers that should run; returns the earliest time that one of them waits for."""
        await self._containers.ensure_sandbox(spec)
        again = await self._start_ephemeral(spec)
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
        if finished(spec, self.records):
            return self._context.clock.monotonic()
        return again

    async def _start_ephemeral(self, spec: ParsedPod) -> float | None:
        """Ephemeral containers run once, whatever the others do."""
        again: float | None = None
        for container in spec.ephemeral_containers:
            record = self.records[container.name]
            if record.current is None and not record.restarts:
                again = _sooner(again, await self._containers.start(spec, container, record))
        return again

    @staticmethod
    def _should_run(spec: ParsedPod, record: ContainerRecord) -> bool:
        if record.current is None or spec.restart_policy == "Always":
            return True
        return spec.restart_policy == "OnFailure" and record.exit_code != 0

    def _grace(self, spec: ParsedPod) -> float:
        """Grace period in seconds: the deletion's, else the spec's."""
        requested = self.raw["metadata"].get("deletionGracePeriodSeconds")
        if self.raw["metadata"].get("deletionTimestamp") and isinstance(requested, int):
            return max(1.0, float(requested))
        return float(max(1, spec.grace_seconds))

    async def _terminate(self) -> None:
        """The API object is being deleted or is gone: stop everything, report it, remove all traces."""
        spec = self.spec
        if spec is not None:
            await self._containers.stop_all(spec, self._grace(spec))
            await self._containers.release(spec)
            self.final = True
            self._publish()
        await self._context.host.finalize(self)
        for info in self._context.runtime.containers(self.uid):
            await self._context.runtime.remove(info.id)
        self._context.store.forget(self.uid)
        for name in self.records:
            self._context.backoff.forget((self.uid, name))
        self._context.host.forget(self)

    async def kill_now(self) -> None:
        """Kill and remove everything at once, without a report to the API (--cleanup-on-exit)."""
        await self.stop()
        for info in self._context.runtime.containers(self.uid):
            await self._context.runtime.remove(info.id)
        if self.spec is not None:
            await self._containers.release(self.spec)
        self._context.store.forget(self.uid)

    def _refuse(self, decision: PhaseDecision) -> None:
        self.decision = decision
        self._emit_event("Warning", decision.reason, decision.message)

    def _publish(self) -> None:
        context = self._context
        spec = self.spec
        if spec is None or (self.decision is not None and not self._containers.any_started()):
            assert self.decision is not None
            self.status = failed_status(self.decision, context.node.ip, self.start_time)
        elif self.admitted:
            self.status = pod_status(
                spec,
                self.records,
                host_ip=context.node.ip,
                start_time=self.start_time,
                sandbox=self._containers.sandbox_runs,
                now=context.clock.now(),
                old=self._conditions(),
                final=self.final,
                decision=self.decision,
            )
        else:
            return  # deleted before it was admitted: the kubelet has no status for it
        context.host.publish(self)

    def _conditions(self) -> list[dict[str, Any]]:
        """The kubelet's conditions as last computed (initially the API's), and those of other components."""
        computed = self.status.get("conditions") or []
        return [c for c in computed if c.get("type") in OWNED_CONDITIONS] + _foreign_conditions(self.raw)

    def api_object(self) -> dict[str, Any]:
        """The pod as returned by /pods: the API's object with this kubelet's newest status."""
        status = {**(self.raw.get("status") or {}), **self.status}
        status["conditions"] = self._conditions()
        if self.spec is None:
            status.setdefault("qosClass", QosClass.BESTEFFORT.value)
        return {**self.raw, "status": status}

    def _save(self) -> None:
        state = PodState(self.raw, self.start_time, self.admitted, self.decision)
        self._context.store.save(self.uid, state)
        self._unsaved = False


def _lasting(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata without the fields that change with every write."""
    return {k: v for k, v in raw["metadata"].items() if k not in ("resourceVersion", "managedFields", "generation")}


def _foreign_conditions(raw: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The conditions of other components (readiness gates, controllers)."""
    conditions = (raw.get("status") or {}).get("conditions") or []
    return [c for c in conditions if c.get("type") not in OWNED_CONDITIONS]


def _constant(time: float | None) -> Callable[[], float | None]:
    return lambda: time


def _sooner(a: float | None, b: float | None) -> float | None:
    return b if a is None else a if b is None else min(a, b)

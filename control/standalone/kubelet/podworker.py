"""One pod's life on this node, from its first sight to its last trace: a task that brings about what the spec asks.

`_sync` looks at the pod and at its containers, takes the next steps and says when to look again; events
(API updates, ends of containers, probe results) make it look at once. All state that matters is in the
runtime (containers and their attempts) and in `podstate`, so a new worker made after a kill -9 goes on
where the old one was. Steps that fail are told as events and tried again; nothing here ends the kubelet.
"""

from __future__ import annotations

import asyncio
import secrets
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from control.standalone.kubelet.backoff import Backoff
from control.standalone.kubelet.cgroups import CgroupError
from control.standalone.kubelet.cgvalues import container_values, oom_score_adj
from control.standalone.kubelet.environ import EnvError, Lookup, NodeFacts, command_line, environment, sources
from control.standalone.kubelet.naming import QosClass
from control.standalone.kubelet.podcgroups import PodCgroups
from control.standalone.kubelet.podspec import ContainerSpec, MalformedPod, PodSpec, parse_pod, qos_class
from control.standalone.kubelet.podstate import PodState, PodStore
from control.standalone.kubelet.probes import ContainerProber, ProbeResult, ask
from control.standalone.kubelet.runtime import (
    SANDBOX_NAME,
    ContainerConfig,
    ContainerInfo,
    Runtime,
    RuntimeFailure,
)
from control.standalone.kubelet.status import (
    CONTAINER_ID_SCHEME,
    OWNED_CONDITIONS,
    ContainerRecord,
    Verdict,
    failed_status,
    initialized,
    over,
    pod_status,
)
from koordlet.api.times import Duration
from koordlet.app.clock import Clock
from koordlet.app.logging import get_logger

log = get_logger(__name__)

RETRY_SECONDS = 10.0
"""After a step that failed for a reason which may pass (a missing Secret, a full disk)."""
SIDECAR_MIN_GRACE = 2.0
HOOK_SECONDS = 60.0


class ApiUnavailable(Exception):
    """What was asked of the API server could not be had now."""


class Host(Protocol):
    """What a worker asks of the kubelet around it."""

    def event(self, raw: Mapping[str, Any], kind: str, reason: str, message: str) -> None: ...

    def publish(self, worker: PodWorker) -> None:
        """The pod's `status` may have changed."""

    async def lookup(self, namespace: str, wanted: set[tuple[str, str]]) -> Lookup:
        """Fetch ConfigMaps and Secrets; raises `ApiUnavailable`."""
        ...

    async def finalize(self, worker: PodWorker) -> None:
        """Post the last status and delete the API object (uid as precondition); returns when it is gone."""

    async def admit(self, worker: PodWorker) -> Verdict | None:
        """None: may run (and `worker.admitted` is set in the same breath, before the next is judged)."""

    def forget(self, worker: PodWorker) -> None: ...


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all workers of a kubelet share."""

    runtime: Runtime
    cgroups: PodCgroups
    store: PodStore
    clock: Clock
    backoff: Backoff
    node: NodeFacts
    memory_capacity: int
    host: Host
    new_id: Callable[[], str] = lambda: secrets.token_hex(32)


def strip(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The object without what only the API server cares for."""
    meta = {k: v for k, v in raw["metadata"].items() if k != "managedFields"}
    return {"apiVersion": "v1", "kind": "Pod", **raw, "metadata": meta}


class PodWorker:
    """`start` begins the task; `update` and `removed` bring news from the API."""

    def __init__(self, around: Surroundings, raw: Mapping[str, Any], state: PodState | None = None) -> None:
        self._a = around
        self.raw = strip(raw)
        self.uid: str = raw["metadata"]["uid"]
        self.start_time = state.start_time if state else around.clock.now()
        self.admitted = state.admitted if state else False
        self.verdict = state.verdict if state else None
        self.spec: PodSpec | None = None
        self.status: dict[str, Any] = dict(raw.get("status") or {})
        self.records: dict[str, ContainerRecord] = {}
        self.sandbox: ContainerInfo | None = None
        self.seen = False
        """The API has been seen to have this pod, in this life of the kubelet."""
        self.gone = False
        """The API object does not exist (any more)."""
        self.terminating = False
        self.final = False
        """Containers have been ended for good."""
        self._probers: dict[str, tuple[str, ContainerProber]] = {}
        self._wake = asyncio.Event()
        self._dirty = True
        self._unsaved = True
        self._deadline: float | None = None
        self._task: asyncio.Task[None] | None = None
        try:
            self.spec = parse_pod(raw)
        except MalformedPod as exc:
            self._refuse(Verdict("InvalidPod", f"{self._name()}: {exc}"))
        if self.spec is not None:
            self._adopt(self.spec)

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

    # --- news

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=f"pod:{self.namespace}/{self.pod_name}")

    async def stop(self) -> None:
        """End the task; containers keep running."""
        for _, prober in self._probers.values():
            prober.stop()
        self._probers.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def update(self, raw: Mapping[str, Any]) -> None:
        old, self.raw = self.raw, strip(raw)
        if (old.get("spec"), _lasting(old)) != (self.raw.get("spec"), _lasting(self.raw)):
            try:
                self.spec = parse_pod(self.raw) if self.spec is not None else None
            except MalformedPod as exc:  # keep running what was understood
                self._a.host.event(self.raw, "Warning", "InvalidPod", str(exc))
            self._unsaved = True
            self.wake()
        if _foreign_conditions(old) != _foreign_conditions(self.raw):
            self.wake()  # a readiness gate may have opened
        if self._deadline is not None:
            self._shorten()

    def removed(self) -> None:
        self.gone = True
        self.wake()

    def wake(self) -> None:
        self._dirty = True
        self._wake.set()

    def container_ended(self, info: ContainerInfo) -> None:
        if info.name == SANDBOX_NAME:
            if self.sandbox is not None and self.sandbox.id == info.id:
                self.sandbox = info
        else:
            record = self.records.get(info.name)
            if record is not None and record.current is not None and record.current.id == info.id:
                self._ended(record, info)
        self.wake()

    # --- the task

    async def _run(self) -> None:
        while True:
            self._dirty = False
            try:
                again = await self._sync()
            except (RuntimeFailure, OSError, ApiUnavailable) as exc:
                log.warning("pod sync failed", pod=f"{self.namespace}/{self.pod_name}", err=exc)
                again = self._retry(exc)
            except Exception as exc:  # a fault of ours in one pod must not leave it without a worker
                log.exception("pod sync failed", pod=f"{self.namespace}/{self.pod_name}", err=exc)
                again = self._retry(exc)
            if again is not None and again < 0:
                return
            await self._until(lambda: self._dirty, _constant(again))

    def _retry(self, exc: Exception) -> float:
        self._a.host.event(self.raw, "Warning", "FailedSync", f"error syncing pod: {exc}")
        return self._a.clock.monotonic() + RETRY_SECONDS

    async def _until(self, done: Callable[[], bool], limit: Callable[[], float | None]) -> bool:
        """Wait for `done()`, looked at after each event, or until `limit()` (monotonic, may move)."""
        while not done():
            at = limit()
            left = None if at is None else at - self._a.clock.monotonic()
            if left is not None and left <= 0:
                return False
            self._wake.clear()
            try:
                async with self._a.clock.timeout(left):
                    await self._wake.wait()
            except TimeoutError:
                continue
        return True

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
                await self._stop_all(spec, self._grace(spec))
            await self._release()
            self._publish()
            return None
        if not self.admitted:
            if (self.raw.get("status") or {}).get("phase") in ("Succeeded", "Failed") and not self.records_exist():
                return None  # ended in an earlier life of which nothing is left here
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
                self._refuse(Verdict("DeadlineExceeded", message))
                self._save()
                return await self._sync()
        if over(spec, self.records):
            await self._stop_all(spec, self._grace(spec))  # sidecars end after the containers they serve
            await self._release()
            self.final = True
            self._publish()
            return None
        again = await self._progress(spec)
        self._publish()
        if spec.active_deadline is not None:
            left = self.start_time + spec.active_deadline - self._a.clock.now()
            again = _sooner(again, self._a.clock.monotonic() + max(0.0, left))
        return again

    def records_exist(self) -> bool:
        return any(r.current is not None for r in self.records.values())

    async def _progress(self, spec: PodSpec) -> float | None:
        """Start what should run and does not; the soonest time at which something waits for."""
        await self._ensure_sandbox(spec)
        again: float | None = None
        for container in spec.init_containers:
            record = self.records[container.name]
            if record.kill is not None:
                await self._stop_unhealthy(spec, container, record)
            past = initialized(spec, self.records) or any(
                self.records[c.name].current is not None for c in spec.containers
            )
            if container.sidecar:
                if not record.running:
                    again = _sooner(again, await self._start(spec, container, record))
                if not record.started and not past:
                    return again
            elif (record.current is None and not past) or record.exit_code not in (None, 0):
                again = _sooner(again, await self._start(spec, container, record))
            if not container.sidecar and record.exit_code != 0 and not past:
                return again
        for container in spec.containers:
            record = self.records[container.name]
            if record.kill is not None:
                await self._stop_unhealthy(spec, container, record)
            if record.running or not self._should_run(spec, record):
                continue
            again = _sooner(again, await self._start(spec, container, record))
        if over(spec, self.records):
            return self._a.clock.monotonic()
        return again

    @staticmethod
    def _should_run(spec: PodSpec, record: ContainerRecord) -> bool:
        if record.current is None or spec.restart_policy == "Always":
            return True
        return spec.restart_policy == "OnFailure" and record.exit_code != 0

    # --- containers

    def _adopt(self, spec: PodSpec) -> None:
        """Take over what the runtime has of this pod (all of it, after a restart of the kubelet)."""
        now, monotonic = self._a.clock.now(), self._a.clock.monotonic()
        found: dict[str, list[ContainerInfo]] = {}
        for info in self._a.runtime.containers(self.uid):
            found.setdefault(info.name, []).append(info)
        sandboxes = found.pop(SANDBOX_NAME, [])
        self.sandbox = next((s for s in sandboxes if s.running), sandboxes[0] if sandboxes else None)
        old = self.raw.get("status") or {}
        statuses = [*(old.get("initContainerStatuses") or []), *(old.get("containerStatuses") or [])]
        known = {s.get("name"): s for s in statuses}
        for container in spec.all_containers():
            record = self.records[container.name] = ContainerRecord()
            status = known.get(container.name, {})
            attempts = sorted(found.get(container.name, []), key=lambda i: i.attempt)
            if not attempts:
                if status.get("containerID"):  # it ran here, and its state was lost: this is a restart
                    record.restarts = int(status.get("restartCount", 0)) + 1
                continue
            record.current = attempts[-1]
            record.previous = attempts[-2] if len(attempts) > 1 else None
            record.restarts = record.current.attempt
            same = status.get("containerID") == CONTAINER_ID_SCHEME + record.current.id
            if record.running:
                record.started = container.startup is None or (same and bool(status.get("started")))
                record.ready = record.started and (container.readiness is None or (same and bool(status.get("ready"))))
                self._probe(container, record, adopted=True)
            else:
                record.ended_at = monotonic - max(0.0, now - (record.current.finished_at or 0) / 1e9)

    async def _ensure_sandbox(self, spec: PodSpec) -> None:
        path = self._a.cgroups.ensure_pod(spec)
        if self.sandbox is not None and self.sandbox.running:
            return
        if self.sandbox is not None:
            text = "Pod sandbox changed, it will be killed and re-created."
            self._a.host.event(self.raw, "Normal", "SandboxChanged", text)
            await self._a.runtime.remove(self.sandbox.id)
            self.sandbox = None
        container_id = self._a.new_id()
        names = self._a.cgroups.names
        cgroup = names.container(qos_class(spec), spec.uid, container_id)
        if not cgroup.startswith(path):
            raise CgroupError(f"{cgroup} is not below {path}")
        self.sandbox = await self._a.runtime.run_sandbox(spec.uid, container_id, cgroup)

    async def _start(self, spec: PodSpec, container: ContainerSpec, record: ContainerRecord) -> float | None:
        """Start one container unless it has to wait; the time until which it waits, if it does."""
        a, key = self._a, (spec.uid, container.name)
        now = a.clock.monotonic()
        if record.current is not None:
            left = a.backoff.remaining(key, record.ended_at, now)
            if left > 0:
                self._back_off(spec, container, record)
                return now + left
        try:
            a.runtime.pull(container.image, bool(container.command or container.args))
            lookup = await a.host.lookup(spec.namespace, sources(container))
            env = environment(spec, container, a.node, lookup)
        except RuntimeFailure as exc:
            return self._wait_for(container, record, exc.reason, str(exc))
        except (EnvError, ApiUnavailable) as exc:
            return self._wait_for(container, record, "CreateContainerConfigError", str(exc))
        attempt = record.restarts + 1 if record.current is not None else record.restarts
        if record.current is not None:
            a.backoff.restarted(key, record.ended_at, now)
            if record.previous is not None:
                await a.runtime.remove(record.previous.id)
        container_id = a.new_id()
        qos = qos_class(spec)
        config = ContainerConfig(
            id=container_id,
            pod_uid=spec.uid,
            name=container.name,
            attempt=attempt,
            image=container.image,
            argv=command_line(container, env),
            env={"HOSTNAME": spec.name, **env},
            cwd=container.working_dir,
            cgroup=a.cgroups.names.container(qos, spec.uid, container_id),
            values=container_values(container),
            oom_score_adj=oom_score_adj(spec, container, a.memory_capacity),
            log_path=self.log_path(container.name, attempt),
            user=container.user,
            group=container.group,
        )
        try:
            info = await a.runtime.start(config)
        except RuntimeFailure as exc:
            return self._wait_for(container, record, exc.reason, str(exc))
        record.previous, record.current, record.restarts = record.current, info, attempt
        record.waiting = record.kill = None
        self._prune_logs(container.name, attempt)
        if not info.running:
            a.host.event(self.raw, "Warning", "Failed", f"Error: {info.message or info.reason}")
            self._ended(record, info)
            return a.clock.monotonic()
        a.host.event(self.raw, "Normal", "Started", f"Started container {container.name}")
        record.started = container.startup is None
        record.ready = record.started and container.readiness is None
        if container.post_start is not None and not await self._post_start(spec, container, record):
            return a.clock.monotonic()
        self._probe(container, record, adopted=False)
        if container.sidecar:
            self.wake()  # the next init container may go on
        return None

    def log_path(self, container: str, attempt: int) -> Path:
        return self._a.store.folder(self.uid) / "logs" / container / f"{attempt}.log"

    def _prune_logs(self, container: str, attempt: int) -> None:
        """Keep the logs of the newest two attempts, as `kubectl logs --previous` needs."""
        if attempt >= 2:
            old = self.log_path(container, attempt - 2)
            for path in old.parent.glob(f"{old.name}*"):
                path.unlink(missing_ok=True)

    def _wait_for(self, container: ContainerSpec, record: ContainerRecord, reason: str, message: str) -> float:
        if record.waiting != (reason, message):
            text = f"Error: {message}" if reason != "ErrImagePull" else f"Failed to pull image: {message}"
            self._a.host.event(self.raw, "Warning", "Failed", text)
        record.waiting = (reason, message)
        return self._a.clock.monotonic() + RETRY_SECONDS

    def _back_off(self, spec: PodSpec, container: ContainerSpec, record: ContainerRecord) -> None:
        delay = self._a.backoff.delay((spec.uid, container.name))
        message = (
            f"back-off {Duration.of(nanoseconds=round(delay * 1e9))} restarting failed container={container.name} "
            f"pod={spec.name}_{spec.namespace}({spec.uid})"
        )
        if record.waiting != ("CrashLoopBackOff", message):
            text = f"Back-off restarting failed container {container.name} in pod {spec.full_name}"
            self._a.host.event(self.raw, "Warning", "BackOff", text)
        record.waiting = ("CrashLoopBackOff", message)

    def _ended(self, record: ContainerRecord, info: ContainerInfo) -> None:
        record.current = info
        record.ready = record.started = False
        record.ended_at = self._a.clock.monotonic()
        record.kill = None
        self._stop_probes(info.name)

    async def _post_start(self, spec: PodSpec, container: ContainerSpec, record: ContainerRecord) -> bool:
        assert record.current is not None
        assert container.post_start is not None
        answer = await ask(
            self._a.runtime, record.current.id, container, container.post_start, self._a.node.ip, HOOK_SECONDS
        )
        if answer.ok or not record.running:
            return answer.ok
        self._a.host.event(self.raw, "Warning", "FailedPostStartHook", f"PostStartHook failed: {answer.text}")
        await self._stop(container, record, self._grace(spec), "FailedPostStartHook")
        return False

    # --- probes

    def _probe(self, container: ContainerSpec, record: ContainerRecord, adopted: bool) -> None:
        if record.current is None or not (container.liveness or container.readiness or container.startup):
            return
        self._stop_probes(container.name)
        age = max(0.0, self._a.clock.now() - record.current.started_at / 1e9)
        prober = ContainerProber(
            self._a.runtime, self._a.clock, container, record.current.id, self._a.node.ip, age, self._probed
        )
        if adopted and record.started:
            prober.assume_started()
        self._probers[container.name] = (record.current.id, prober)

    def _stop_probes(self, name: str) -> None:
        entry = self._probers.pop(name, None)
        if entry is not None:
            entry[1].stop()

    def _probed(self, result: ProbeResult) -> None:
        record = self.records.get(result.container)
        if record is None or record.current is None or record.current.id != result.container_id:
            return
        if not result.ok:
            text = f"{result.kind.capitalize()} probe failed: {result.text}"
            self._a.host.event(self.raw, "Warning", "Unhealthy", text)
        if not result.settled or not record.running:
            return
        before = (record.started, record.ready, record.kill)
        if result.kind == "startup" and result.ok:
            record.started = True
            container = self.spec.find(result.container) if self.spec else None
            record.ready = container is not None and container.readiness is None
        elif result.kind == "readiness":
            record.ready = result.ok and record.started
        elif not result.ok and record.kill is None:
            record.kill, record.kill_grace = f"failed {result.kind} probe", result.grace
        if before != (record.started, record.ready, record.kill):
            self.wake()

    async def _stop_unhealthy(self, spec: PodSpec, container: ContainerSpec, record: ContainerRecord) -> None:
        if not record.running:
            record.kill = None
            return
        text = f"Container {container.name} {record.kill}, will be restarted"
        self._a.host.event(self.raw, "Normal", "Killing", text)
        grace = record.kill_grace if record.kill_grace is not None else self._grace(spec)
        await self._stop(container, record, grace, None)

    # --- the end

    def _grace(self, spec: PodSpec) -> float:
        """Seconds of grace: what the deletion asks, else what the spec says."""
        asked = self.raw["metadata"].get("deletionGracePeriodSeconds")
        if self.raw["metadata"].get("deletionTimestamp") and isinstance(asked, int):
            return max(1.0, float(asked))
        return float(max(1, spec.grace_seconds))

    def _shorten(self) -> None:
        """A second delete may ask for less grace while containers are being ended."""
        if self.spec is not None and self._deadline is not None:
            at = self._a.clock.monotonic() + self._grace(self.spec)
            if at < self._deadline:
                self._deadline = at
                self._wake.set()

    async def _stop_all(self, spec: PodSpec, grace: float) -> None:
        """End the containers together, then the sidecars in reverse order with what grace is left."""
        running = [c for c in spec.all_containers() if self.records[c.name].running]
        if not running:
            return
        self._deadline = self._a.clock.monotonic() + grace
        try:
            mains = [c for c in running if not c.sidecar]
            await asyncio.gather(*(self._stop(c, self.records[c.name], grace, "") for c in mains))
            for container in reversed([c for c in running if c.sidecar]):
                left = max(SIDECAR_MIN_GRACE, self._deadline - self._a.clock.monotonic())
                await self._stop(container, self.records[container.name], min(left, grace), "")
        finally:
            self._deadline = None

    async def _stop(self, container: ContainerSpec, record: ContainerRecord, grace: float, say: str | None) -> None:
        """preStop hook, SIGTERM, and after the grace SIGKILL to the whole cgroup."""
        info = record.current
        if info is None or not record.running:
            return
        a = self._a
        deadline = a.clock.monotonic() + grace
        if say is not None:
            because = f" ({say})" if say else ""
            a.host.event(self.raw, "Normal", "Killing", f"Stopping container {container.name}{because}")
        self._stop_probes(container.name)
        if container.pre_stop is not None:
            hook = asyncio.create_task(
                ask(a.runtime, info.id, container, container.pre_stop, a.node.ip, grace), name="prestop"
            )
            hook.add_done_callback(lambda _: self._wake.set())
            await self._until(lambda: hook.done() or not record.running, lambda: self._sooner_deadline(deadline))
            if not hook.done():
                hook.cancel()
            elif not (answer := hook.result()).ok:
                a.host.event(self.raw, "Warning", "FailedPreStopHook", f"PreStopHook failed: {answer.text}")
        a.runtime.signal(info.id, signal.SIGTERM)
        if not await self._until(lambda: not record.running, lambda: self._sooner_deadline(deadline)):
            await a.runtime.kill(info.id)
            ended = a.runtime.get(info.id)
            if ended is not None and record.running:
                self._ended(record, ended)

    def _sooner_deadline(self, deadline: float) -> float:
        return deadline if self._deadline is None else min(deadline, self._deadline)

    async def _release(self) -> None:
        """Take away sandbox and pod directory; what containers left (exit codes, logs) stays."""
        if self.sandbox is not None:
            await self._a.runtime.remove(self.sandbox.id)
            self.sandbox = None
        if self.spec is not None:
            path = self._a.cgroups.pod_dir(self.spec)
            if self._a.cgroups.tree.exists(path):
                await self._a.cgroups.remove_pod(path)

    async def _terminate(self) -> None:
        """The API object is being deleted or gone: end everything, say so, leave nothing behind."""
        self.terminating = True
        spec = self.spec
        if spec is not None:
            await self._stop_all(spec, self._grace(spec))
            await self._release()
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
        self.sandbox = None
        await self._release()
        self._a.store.forget(self.uid)

    # --- status

    def _refuse(self, verdict: Verdict) -> None:
        self.verdict = verdict
        self._a.host.event(self.raw, "Warning", verdict.reason, verdict.message)

    def _publish(self) -> None:
        a = self._a
        spec = self.spec
        if spec is None or (self.verdict is not None and not self.records_exist()):
            assert self.verdict is not None
            self.status = failed_status(self.verdict, a.node.ip, self.start_time)
        elif self.admitted:
            self.status = pod_status(
                spec,
                self.records,
                host_ip=a.node.ip,
                start_time=self.start_time,
                sandbox=self.sandbox is not None and self.sandbox.running,
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

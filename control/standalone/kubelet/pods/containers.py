"""The containers of one pod: adopt, start, probe, restart with back-off, stop, remove.

`PodWorker` decides when; this class does it and keeps the `ContainerRecord`s from which statuses are made. A step that
is not possible now is recorded as the reason for waiting, and the time of the next attempt is returned.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from control.standalone.kubelet.cgroups.directories import CgroupError
from control.standalone.kubelet.cgroups.values import container_values, oom_score_adj
from control.standalone.kubelet.pods.changesignal import ChangeSignal
from control.standalone.kubelet.pods.environ import EnvError, command_line, environment, sources
from control.standalone.kubelet.pods.probes import ContainerProber, ProbeResult, run_handler
from control.standalone.kubelet.pods.security import container_security, sandbox_security
from control.standalone.kubelet.pods.spec import ContainerSpec, ParsedPod, qos_class
from control.standalone.kubelet.pods.status import CONTAINER_ID_SCHEME, ContainerRecord
from control.standalone.kubelet.pods.volumes import PodVolumes
from control.standalone.kubelet.pods.workercontext import ApiUnavailable, PodWorkerContext
from control.standalone.kubelet.runtimes.runtime import (
    SANDBOX_NAME,
    UNRESTRICTED,
    ContainerConfig,
    RuntimeContainer,
    RuntimeFailure,
    SandboxConfig,
)
from koordlet.api.encoding.times import Duration

RETRY_SECONDS = 10.0
"""Delay after a step that failed for a reason that may go away (a missing Secret, a full disk)."""
SIDECAR_MIN_GRACE_SECONDS = 2.0
HOOK_TIMEOUT_SECONDS = 60.0


class PodContainers:
    """`emit_event(type, reason, message)` records an event on the pod; `grace(spec)` is its current grace period."""

    def __init__(
        self,
        context: PodWorkerContext,
        uid: str,
        change_signal: ChangeSignal,
        emit_event: Callable[[str, str, str], None],
        grace: Callable[[ParsedPod], float],
    ) -> None:
        self._context = context
        self._uid = uid
        self._signal = change_signal
        self._emit_event = emit_event
        self._grace = grace
        self.records: dict[str, ContainerRecord] = {}
        self.sandbox: RuntimeContainer | None = None
        self._gated: set[str] = set()
        """Containers with a readiness probe."""
        self._probers: dict[str, tuple[str, ContainerProber]] = {}
        self._volumes = PodVolumes(context.store.folder(uid), context.host, context.node, context.clock)
        self._deadline: float | None = None
        """While the whole pod is being terminated: monotonic time of SIGKILL."""

    @property
    def sandbox_runs(self) -> bool:
        return self.sandbox is not None and self.sandbox.running

    def any_started(self) -> bool:
        return any(r.current is not None for r in self.records.values())

    def ended(self, info: RuntimeContainer) -> None:
        """The runtime reported the end of a container."""
        if info.name == SANDBOX_NAME:
            if self.sandbox is not None and self.sandbox.id == info.id:
                self.sandbox = info
            return
        record = self.records.get(info.name)
        if record is not None and record.current is not None and record.current.id == info.id:
            self._ended(record, info)

    def stop_probing(self) -> None:
        for name in list(self._probers):
            self._stop_probes(name)

    def adopt(self, spec: ParsedPod, old: Mapping[str, Any]) -> None:
        """Take over the containers that the runtime has of this pod, after a restart of the kubelet."""
        now, monotonic = self._context.clock.now(), self._context.clock.monotonic()
        by_name: dict[str, list[RuntimeContainer]] = {}
        for info in self._context.runtime.containers(self._uid):
            by_name.setdefault(info.name, []).append(info)
        sandboxes = by_name.pop(SANDBOX_NAME, [])
        self.sandbox = next((s for s in sandboxes if s.running), sandboxes[0] if sandboxes else None)
        parts = ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses")
        statuses = [status for part in parts for status in old.get(part) or []]
        known = {s.get("name"): s for s in statuses}
        self._gated = {c.name for c in spec.all_containers() if c.readiness is not None}
        for container in spec.every_container():
            record = self.records[container.name] = ContainerRecord()
            status = known.get(container.name, {})
            attempts = sorted(by_name.get(container.name, []), key=lambda i: i.attempt)
            if not attempts:
                if status.get("containerID"):  # it ran here, but its state was lost: this counts as a restart
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

    def track(self, spec: ParsedPod) -> None:
        """Ephemeral containers may be added to a running pod."""
        for container in spec.ephemeral_containers:
            self.records.setdefault(container.name, ContainerRecord())

    async def ensure_sandbox(self, spec: ParsedPod) -> None:
        path = self._context.cgroups.ensure_pod(spec)
        if self.sandbox_runs:
            return
        if self.sandbox is not None:
            text = "Pod sandbox changed, it will be killed and re-created."
            self._emit_event("Normal", "SandboxChanged", text)
            await self._context.runtime.remove(self.sandbox.id)
            self.sandbox = None
        container_id = self._context.new_id()
        names = self._context.cgroups.names
        cgroup = names.container(qos_class(spec), spec.uid, container_id)
        if not cgroup.startswith(path):
            raise CgroupError(f"{cgroup} is not below {path}")
        self.sandbox = await self._context.runtime.run_sandbox(
            SandboxConfig(
                id=container_id,
                pod_uid=spec.uid,
                cgroup=cgroup,
                name=spec.name,
                namespace=spec.namespace,
                labels=spec.labels,
                annotations=spec.annotations,
                log_dir=self._context.store.folder(self._uid) / "logs",
                security=sandbox_security(spec) if self._context.runtime.isolates else UNRESTRICTED,
            )
        )

    async def renew_tokens(self, spec: ParsedPod) -> float | None:
        """Renew the account tokens in volumes that are due; the time of the next renewal. Raises ApiUnavailable."""
        return await self._volumes.renew(spec) if self._context.runtime.isolates else None

    async def start(self, spec: ParsedPod, container: ContainerSpec, record: ContainerRecord) -> float | None:
        """Start one container, or return the monotonic time until which it has to wait."""
        context, key = self._context, (spec.uid, container.name)
        now = context.clock.monotonic()
        if record.current is not None:
            left = context.backoff.remaining(key, record.ended_at, now)
            if left > 0:
                self._back_off(spec, container, record)
                return now + left
        try:
            await context.runtime.pull(container.image, bool(container.command or container.args))
            lookup = await context.host.lookup(spec.namespace, sources(container))
            env = environment(spec, container, context.node, lookup)
            argv = command_line(container, env)
            target = self._target(container)
            mounts = await self._volumes.mounts(spec, container) if context.runtime.isolates else []
            security = container_security(spec, container) if context.runtime.isolates else UNRESTRICTED
        except RuntimeFailure as error:
            return self._wait_for(container, record, error.reason, str(error))
        except (EnvError, ApiUnavailable, OSError) as error:
            return self._wait_for(container, record, "CreateContainerConfigError", str(error))
        attempt = record.restarts + 1 if record.current is not None else record.restarts
        if record.current is not None:
            context.backoff.restarted(key, record.ended_at, now)
            if record.previous is not None:
                await context.runtime.remove(record.previous.id)
        container_id = context.new_id()
        qos = qos_class(spec)
        config = ContainerConfig(
            id=container_id,
            pod_uid=spec.uid,
            name=container.name,
            attempt=attempt,
            image=container.image,
            argv=argv,
            env={"HOSTNAME": spec.name, **env},
            cwd=container.working_dir,
            cgroup=context.cgroups.names.container(qos, spec.uid, container_id),
            values=container_values(container),
            oom_score_adj=oom_score_adj(spec, container, context.memory_capacity),
            log_path=self.log_path(container.name, attempt),
            user=container.user,
            group=container.group,
            has_program=bool(container.command),
            stdin=container.stdin,
            stdin_once=container.stdin_once,
            tty=container.tty,
            target=target,
            mounts=mounts,
            security=security,
        )
        try:
            info = await context.runtime.start(config)
        except RuntimeFailure as error:
            return self._wait_for(container, record, error.reason, str(error))
        record.previous = record.current
        record.current = info
        record.restarts = attempt
        record.waiting = record.kill = None
        self._prune_logs(container.name, attempt)
        if not info.running:
            self._emit_event("Warning", "Failed", f"Error: {info.message or info.reason}")
            self._ended(record, info)
            return context.clock.monotonic()
        self._emit_event("Normal", "Started", "Container started")
        record.started = container.startup is None
        record.ready = record.started and container.readiness is None
        if container.post_start is not None and not await self._post_start(spec, container, record):
            return context.clock.monotonic()
        self._probe(container, record, adopted=False)
        if container.sidecar:
            self._signal.notify_change()  # the next init container may start
        return None

    def _target(self, container: ContainerSpec) -> str:
        """The id of the container whose processes an ephemeral one sees; "" for its own only."""
        record = self.records.get(container.target)
        if not container.target:
            return ""
        if record is None or record.current is None or not record.running:
            raise RuntimeFailure("CreateContainerError", f"target container {container.target} does not run")
        return record.current.id

    def log_path(self, container: str, attempt: int) -> Path:
        return self._context.store.folder(self._uid) / "logs" / container / f"{attempt}.log"

    def _prune_logs(self, container: str, attempt: int) -> None:
        """Keep only the logs of the newest two attempts, which `kubectl logs --previous` needs."""
        if attempt >= 2:
            old = self.log_path(container, attempt - 2)
            for path in old.parent.glob(f"{old.name}*"):
                path.unlink(missing_ok=True)

    def _wait_for(self, container: ContainerSpec, record: ContainerRecord, reason: str, message: str) -> float:
        if record.waiting != (reason, message):
            text = f"Error: {message}" if reason != "ErrImagePull" else f"Failed to pull image: {message}"
            self._emit_event("Warning", "Failed", text)
        record.waiting = (reason, message)
        return self._context.clock.monotonic() + RETRY_SECONDS

    def _back_off(self, spec: ParsedPod, container: ContainerSpec, record: ContainerRecord) -> None:
        delay = self._context.backoff.delay((spec.uid, container.name))
        message = (
            f"back-off {Duration.of(nanoseconds=round(delay * 1e9))} restarting failed container={container.name} "
            f"pod={spec.name}_{spec.namespace}({spec.uid})"
        )
        if record.waiting != ("CrashLoopBackOff", message):
            text = f"Back-off restarting failed container {container.name} in pod {spec.full_name}"
            self._emit_event("Warning", "BackOff", text)
        record.waiting = ("CrashLoopBackOff", message)

    def _ended(self, record: ContainerRecord, info: RuntimeContainer) -> None:
        record.current = info
        record.ready = record.started = False
        record.ended_at = self._context.clock.monotonic()
        record.kill = None
        self._stop_probes(info.name)

    async def _post_start(self, spec: ParsedPod, container: ContainerSpec, record: ContainerRecord) -> bool:
        assert record.current is not None
        assert container.post_start is not None
        result = await run_handler(
            self._context.runtime,
            record.current.id,
            container,
            container.post_start,
            self._context.node.ip,
            HOOK_TIMEOUT_SECONDS,
        )
        if result.ok or not record.running:
            return result.ok
        self._emit_event("Warning", "FailedPostStartHook", f"PostStartHook failed: {result.text}")
        await self._stop(container, record, self._grace(spec), "FailedPostStartHook")
        return False

    def _probe(self, container: ContainerSpec, record: ContainerRecord, adopted: bool) -> None:
        if record.current is None or not (container.liveness or container.readiness or container.startup):
            return
        self._stop_probes(container.name)
        age = max(0.0, self._context.clock.now() - record.current.started_at / 1e9)
        prober = ContainerProber(
            self._context.runtime,
            self._context.clock,
            container,
            record.current.id,
            self._context.node.ip,
            age,
            self._probed,
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
            self._emit_event("Warning", "Unhealthy", text)
        if not result.settled or not record.running:
            return
        before = (record.started, record.ready, record.kill)
        if result.kind == "startup" and result.ok:
            record.started = True
            record.ready = result.container not in self._gated
        elif result.kind == "readiness":
            record.ready = result.ok and record.started
        elif not result.ok and record.kill is None:
            record.kill = f"failed {result.kind} probe"
            record.kill_grace = result.grace
        if before != (record.started, record.ready, record.kill):
            self._signal.notify_change()

    async def stop_unhealthy(self, spec: ParsedPod, container: ContainerSpec, record: ContainerRecord) -> None:
        if not record.running:
            record.kill = None
            return
        text = f"Container {container.name} {record.kill}, will be restarted"
        self._emit_event("Normal", "Killing", text)
        grace = record.kill_grace if record.kill_grace is not None else self._grace(spec)
        await self._stop(container, record, grace, None)

    def shorten(self, grace: float) -> None:
        """Reduce the grace period of a running termination: a second delete may request a shorter one."""
        deadline = self._context.clock.monotonic() + grace
        if self._deadline is not None and deadline < self._deadline:
            self._deadline = deadline
            self._signal.recheck()

    async def stop_all(self, spec: ParsedPod, grace: float) -> None:
        """Stop the main containers together, then the sidecars in reverse order within the remaining grace period."""
        running = [c for c in spec.every_container() if self.records[c.name].running]
        if not running:
            return
        self._deadline = self._context.clock.monotonic() + grace
        try:
            mains = [c for c in running if not c.sidecar]
            await asyncio.gather(*(self._stop(c, self.records[c.name], grace, "") for c in mains))
            for container in reversed([c for c in running if c.sidecar]):
                left = max(SIDECAR_MIN_GRACE_SECONDS, self._deadline - self._context.clock.monotonic())
                await self._stop(container, self.records[container.name], min(left, grace), "")
        finally:
            self._deadline = None

    async def _stop(self, container: ContainerSpec, record: ContainerRecord, grace: float, detail: str | None) -> None:
        """preStop hook, SIGTERM, and after the grace period SIGKILL to the whole cgroup.

        `detail` is added to the Killing event; None records no event.
        """
        info = record.current
        if info is None or not record.running:
            return
        context = self._context
        deadline = context.clock.monotonic() + grace
        if detail is not None:
            suffix = f" ({detail})" if detail else ""
            self._emit_event("Normal", "Killing", f"Stopping container {container.name}{suffix}")
        self._stop_probes(container.name)
        if container.pre_stop is not None:
            hook = asyncio.create_task(
                run_handler(context.runtime, info.id, container, container.pre_stop, context.node.ip, grace),
                name="prestop",
            )
            hook.add_done_callback(lambda _: self._signal.recheck())
            await self._signal.wait_until(
                lambda: hook.done() or not record.running, lambda: self._sooner_deadline(deadline)
            )
            if not hook.done():
                hook.cancel()
            elif not (result := hook.result()).ok:
                self._emit_event("Warning", "FailedPreStopHook", f"PreStopHook failed: {result.text}")
        context.runtime.signal(info.id, signal.SIGTERM)
        if not await self._signal.wait_until(lambda: not record.running, lambda: self._sooner_deadline(deadline)):
            await context.runtime.kill(info.id)
            ended = context.runtime.get(info.id)
            if ended is not None and record.running:
                self._ended(record, ended)

    def _sooner_deadline(self, deadline: float) -> float:
        return deadline if self._deadline is None else min(deadline, self._deadline)

    async def release(self, spec: ParsedPod) -> None:
        """Remove sandbox and pod cgroup; exit codes and logs of the containers stay."""
        if self.sandbox is not None:
            await self._context.runtime.remove(self.sandbox.id)
            self.sandbox = None
        path = self._context.cgroups.pod_dir(spec)
        if self._context.cgroups.tree.exists(path):
            await self._context.cgroups.remove_pod(path)

"""The node of the benchmark: services and batch pods in the kubelet's cgroups, and a koordlet that starts and stops.

Services and batch pods may use all CPUs. The clients run outside the pods with the highest priority, in place of other
machines. koordlet gets the NodeSLO that koord-manager renders from `slo-controller-config`.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from control.manager.manifests import config
from koordlet.api.crs.slo import NodeSLOSpec
from koordlet.api.encoding import wire
from koordlet.api.sloconfig import configmap, profile
from koordlet.api.sloconfig.extensions import extensions_for_node, merge_extensions
from koordlet.system.cgroup.naming import KubeQOS
from tests.koordlet.process.fleet import Need, Pod, PodSpec
from tests.koordlet.process.kernelfigures import process_cpu_seconds
from tests.koordlet.process.patience import until
from tests.koordlet.process.scene import SLO
from tests.scale.colocation.client import WARM_SECONDS
from tests.scale.colocation.requests import percentile, seconds_of
from tests.scale.colocation.stage import CLIENT_PRIORITY, DISTURBED, HEAD_START, STOPPED
from tests.scale.colocation.testbed import Testbed, cpu_times
from tests.scale.colocation_real.batch import CLASSES, FILE_MIB, INTERRUPTED, NODE_MIB, RESULT, Job
from tests.scale.colocation_real.plan import (
    ALONE,
    BATCH_ONLY,
    DEFAULTS,
    ENFORCED,
    ORDINARY,
    RECOMMENDED,
    PlannedReading,
)
from tests.scale.colocation_real.services import Service, find, make

SHIPPED: Mapping[str, str] = config()[0]["data"]
"""`slo-controller-config` as it is installed."""
CONFIGURATIONS: Mapping[str, Mapping[str, str]] = {
    DEFAULTS: SHIPPED,
    RECOMMENDED: {**SHIPPED, "strategy-profile": '{"profile": "recommended"}'},
}
BATCH_PODS = 2
SERVICE = Need(cpu=(500, None), memory=(128, None))
BATCH = Need(batch_cpu=(500, 1000), batch_memory=(384, 512))
JOB = Need(cpu=(500, None), memory=(384, None))
"""The same work without Koordinator, in ordinary pods."""
TAIL = 1.0
"""Seconds that jobs run longer than the clients."""
PATIENCE = 120.0
ROOT = Path(__file__).resolve().parents[3]


def node_slo(data: Mapping[str, str]) -> dict[str, Any]:
    """NodeSLO.spec that koord-manager writes for this ConfigMap."""
    settings, problems = configmap.load(configmap.UNREAD, data)
    plugins = (profile.INTERFERENCE_PLUGIN,)
    extensions, errors = merge_extensions(plugins, {}, data)
    values, failed = extensions_for_node(plugins, {}, extensions, {})
    if problems or errors or failed:
        raise ValueError(f"invalid configuration: {problems} {errors} {failed}")
    assert settings.threshold and settings.qos and settings.cpu_burst and settings.system
    spec: dict[str, Any] = wire.to_builtins(
        NodeSLOSpec(
            resource_used_threshold_with_be=settings.threshold.cluster,
            resource_qos_strategy=settings.qos.cluster,
            cpu_burst_strategy=settings.cpu_burst.cluster,
            system_strategy=settings.system.cluster,
            extensions={"Object": values} if values else None,
        )
    )
    return spec


@dataclass(frozen=True)
class RealReading:
    """One reading: latencies by service in seconds, rates by program, cores used, disturbances."""

    latencies: Mapping[str, Sequence[float]]
    rates: Mapping[str, float]
    service_cores: float
    batch_cores: float
    koordlet_cores: float
    stolen: float
    """Share of the CPU time that the hypervisor took."""
    stopped: float
    """Share of the time in which a CPU stood still."""

    def percentile(self, service: str, percent: float) -> float:
        """Milliseconds."""
        return percentile(self.latencies[service], percent) * 1e3

    @property
    def disturbed(self) -> bool:
        return self.stolen > DISTURBED or self.stopped > STOPPED


class RealNode(Testbed):
    """See the module."""

    def __init__(self, scratch: Path, services: Sequence[str], weight: int) -> None:
        super().__init__(scratch, gates="", probes=True, weight=weight)
        scratch.chmod(0o711)
        self.services = make(services, scratch)
        pods = self.fleet.add(*(PodSpec(name, KubeQOS.BURSTABLE, "LS", (SERVICE,)) for name in services))
        self.pods = dict(zip(services, pods, strict=True))
        names = [f"batch-{place}" for place in range(BATCH_PODS)]
        self.best_effort = self.fleet.add(*(PodSpec(name, KubeQOS.BESTEFFORT, "BE", (BATCH,)) for name in names))
        names = [f"job-{place}" for place in range(BATCH_PODS)]
        self.ordinary = self.fleet.add(*(PodSpec(name, KubeQOS.BURSTABLE, "", (JOB,)) for name in names))
        self.files = [scratch / f"file-{place}" for place in range(BATCH_PODS)]

    def open(self) -> None:
        """Start everything but koordlet."""
        for program in ("stress-ng", "fio", "ffmpeg", "gcc"):
            find(program)
        self.open_node(node_slo(SHIPPED))
        for file in self.files:
            write_file(file)
        for service in self.services:
            for command in service.prepare():
                self._finish(service, command)
            with (service.place / "log").open("wb") as log:
                self.start(self._groups(service), service.command(), stdout=log, stderr=log)
            until(service.answers, f"{service.name} ({service.place / 'log'})", PATIENCE)
            for command in service.fill():
                until(partial(_succeeds, command), f"data of {service.name}", PATIENCE)

    @contextmanager
    def enforced(self, phase: str | None) -> Iterator[None]:
        """With koordlet and the phase's configuration; None: without koordlet."""
        if phase is None:
            yield
            return
        self.scene.api.patch(SLO, {"spec": None})
        self.scene.api.patch(SLO, {"spec": node_slo(CONFIGURATIONS[phase])})
        with self.koordlet("--probes=auto") as koordlet:
            for group in self.client_groups:  # in place of its own pod's requests
                (group / "cgroup.procs").write_text(str(koordlet.process.pid))
            yield

    def measure(self, planned: PlannedReading, seconds: float, head: float = HEAD_START) -> RealReading:
        """One reading; the batch work starts `head` seconds before the clients."""
        jobs = () if planned.phase == ALONE else CLASSES[planned.batch].jobs
        pods = self.ordinary if planned.phase == ORDINARY else self.best_effort
        length = head + WARM_SECONDS + seconds + TAIL
        running: list[tuple[Job, Path, subprocess.Popen[bytes]]] = []
        with self.memory_limited(NODE_MIB if planned.short_of_memory else None):
            try:
                for pod, file in zip(pods, self.files, strict=True):
                    running += [self._start_job(pod, job, file, length) for job in jobs]
                time.sleep(head)
                before, began = self._counters(pods, planned.phase), time.monotonic()
                with self.watched(sorted(os.sched_getaffinity(0))) as stops:
                    latencies = self._ask(seconds, idle=planned.phase == BATCH_ONLY)
                passed, after = time.monotonic() - began, self._counters(pods, planned.phase)
                rates = self._rates(running, length)
            finally:
                for _, _, process in running:
                    self._end_group(process)
        service, work, enforcer, stolen = (b - a for a, b in zip(before, after, strict=True))
        cpus = os.cpu_count() or 1
        return RealReading(
            latencies, rates, service / passed, work / passed, enforcer / passed, stolen / passed / cpus,
            seconds_of(stops) / passed / cpus,
        )  # fmt: skip

    def close(self) -> None:
        for process in list(self.processes):
            self._end_group(process)
        for pod in (*self.pods.values(), *self.best_effort, *self.ordinary):
            self._vacate(pod)
        super().close()

    def _groups(self, service: Service) -> list[Path]:
        return self.groups(self.pods[service.name].container_dirs[0])

    def _finish(self, service: Service, command: Sequence[str]) -> None:
        """Run a command in the service's container to its end."""
        process = self.start(self._groups(service), command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        out, _ = process.communicate(timeout=PATIENCE)
        self.processes.remove(process)
        if process.returncode:
            raise RuntimeError(f"{command[0]}: {out.decode(errors='replace')[-500:]}")

    def _start_job(self, pod: Pod, job: Job, file: Path, length: float) -> tuple[Job, Path, subprocess.Popen[bytes]]:
        place = self.scratch / f"{pod.spec.name}-{job.program.replace(' ', '')}"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        with (place / "log").open("wb") as log:
            command = job.command(place, file, length)
            process = self.start(self.groups(pod.container_dirs[0]), command, stdout=log, stderr=log, cwd=place)
        return job, place, process

    def _rates(self, running: Sequence[tuple[Job, Path, subprocess.Popen[bytes]]], length: float) -> dict[str, float]:
        """Program -> its figure, the sum over the pods."""
        rates: dict[str, float] = {}
        for job, place, process in running:
            process.wait(length + PATIENCE)
            if process.returncode not in (0, INTERRUPTED):
                raise RuntimeError(
                    f"{job.program} ended with {process.returncode}: {(place / 'log').read_text()[-500:]}"
                )
            text = (place / RESULT).read_text(encoding="utf-8")
            rates[job.program] = rates.get(job.program, 0.0) + job.rate(text, length)
        return rates

    def _ask(self, seconds: float, *, idle: bool) -> dict[str, list[float]]:
        """All clients at the same time; if `idle`, none."""
        if idle:
            time.sleep(seconds + WARM_SECONDS)
            return {}
        clients = [
            self.start(
                self.client_groups, service.client(seconds), priority=CLIENT_PRIORITY,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT,
            )
            for service in self.services
        ]  # fmt: skip
        latencies = {}
        try:
            for service, client in zip(self.services, clients, strict=True):
                out, errors = client.communicate(timeout=10 * seconds + PATIENCE)
                if client.returncode:
                    raise RuntimeError(f"client of {service.name}: {errors.decode(errors='replace')[-500:]}")
                latencies[service.name] = service.latencies(out.decode())
        finally:
            for client in clients:
                self._end_group(client)
        return latencies

    def _counters(self, pods: Sequence[Pod], phase: str) -> tuple[float, float, float, float]:
        """CPU seconds of services, of batch pods and of koordlet; stolen seconds."""
        enforcer = self.scene.koordlet.process if phase in ENFORCED else None
        enforcing = process_cpu_seconds(enforcer.pid) if enforcer is not None else 0.0
        services = sum(self.cpu_seconds(pod.dir) for pod in self.pods.values())
        work = 0.0 if phase == ALONE else sum(self.cpu_seconds(pod.dir) for pod in pods)
        return services, work, enforcing, cpu_times()[1]

    def _end_group(self, process: subprocess.Popen[bytes]) -> None:
        """End a process and those of its session that remained."""
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            process.poll()  # it has ended, and so has every other one
        self.end(process)

    def _vacate(self, pod: Pod) -> None:
        """End what runs in a pod, also processes with a session of their own (PostgreSQL's)."""
        self.fleet.vacate(pod)
        procs = self.tree.path("cpu", pod.container_dirs[0]) / "cgroup.procs"

        def gone() -> bool:
            pids = [int(line) for line in procs.read_text().split()]
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            return not pids

        until(gone, f"{pod.spec.name} to be empty", PATIENCE)


def _succeeds(command: Sequence[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def write_file(path: Path) -> None:
    """Random data on the disk, not in the page cache."""
    with path.open("wb") as file:
        for _ in range(FILE_MIB):
            file.write(os.urandom(1 << 20))
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

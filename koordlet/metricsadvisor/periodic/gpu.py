"""Use of NVIDIA GPUs by node, pods and containers, and whether they are healthy (spec 02 §6.1, 08 §3.3, §4.7).

A round queries NVML in a thread (`koordlet.devices`), because a call usually takes milliseconds and may hang. The loop
waits for at most `patience` seconds, starts no other call while one is pending, and reports that. Processes are mapped
to running containers by /proc/<pid>/cgroup: one read per process on a GPU; a process in a cgroup that its container
made counts as the container's. Bounded by GPUs x processes on them.

The facts `GPU`, `GPU_driver` and `GPU_faults` are stored in every round that has them: () where the driver holds no
GPU, nothing while NVML is not available. Known faults are kept when GPUs cannot be watched any more. A GPU that breaks
may make NVML unavailable: when a fault occurs while GPUs cannot be queried, the facts are stored again as they were
last.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from koordlet.app.clock import boot_clock
from koordlet.app.logging import get_logger
from koordlet.devices.callthread import CallThread
from koordlet.devices.gpus import NO_FUNCTION, GpuProcessUse, Gpus, GpuSnapshot
from koordlet.devices.health import GpuHealth
from koordlet.devices.model import DeviceFault, GpuInfo
from koordlet.metriccache import Batch, MetricCache
from koordlet.metriccache.facts import FACT_GPU, FACT_GPU_DRIVER, FACT_GPU_FAULTS
from koordlet.metricsadvisor.collector import CollectorOutput
from koordlet.metricsadvisor.conditions import CollectorConditions
from koordlet.metricsadvisor.labels import Row, container_labels
from koordlet.prometheus import Registries
from koordlet.statesinformer.pods.model import Subject, SubjectKind, Workloads
from koordlet.system.errors import KernelFileError
from koordlet.system.proc.procfs import read_cgroups
from koordlet.system.roots import Roots

log = get_logger(__name__)

NAME, HEALTH, SOURCE = "gpu", "gpu_health", "nvml"
PATIENCE_S = 10.0


class ContainerPaths:
    """Finds the running container of a process by its cgroup path."""

    def __init__(self, subjects: Iterable[Subject]) -> None:
        running = [subject for subject in subjects if subject.kind is SubjectKind.CONTAINER and subject.running]
        self._by_dir = {subject.cgroup_dir: subject for subject in running}
        names = [subject.cgroup_dir.rpartition("/")[2] for subject in running]
        count = Counter(names)
        self._by_name = {
            name: subject for name, subject in zip(names, running, strict=True) if name and count[name] == 1
        }

    def of(self, path: str) -> Subject | None:
        """`path` without a leading slash. It may begin above the root that koordlet sees. Where koordlet has a cgroup
        namespace of its own, it begins with dots and lacks the common part; then the last component decides."""
        parts = path.split("/")
        if parts[0] == "..":
            return next((subject for part in parts if (subject := self._by_name.get(part)) is not None), None)
        for start in range(len(parts)):
            for end in range(len(parts), start, -1):
                subject = self._by_dir.get("/".join(parts[start:end]))
                if subject is not None:
                    return subject
        return None


@dataclass(frozen=True, slots=True)
class ContainerUse:
    """Use of one GPU by one container."""

    subject: Subject
    gpu: GpuInfo
    use: GpuProcessUse


def by_container(snapshot: GpuSnapshot, owner: Callable[[int], Subject | None]) -> list[ContainerUse]:
    """Sums over the processes of each container on each GPU that it uses."""
    sums: dict[tuple[str, str], ContainerUse] = {}
    for gpu in snapshot.gpus.values():
        use = snapshot.use.get(gpu.uuid)
        for pid, amount in {} if use is None else use.processes.items():
            subject = owner(pid)
            if subject is not None:
                key = (subject.key, gpu.uuid)
                known = sums.get(key)
                sums[key] = ContainerUse(subject, gpu, amount if known is None else _plus(known.use, amount))
    return list(sums.values())


def by_pod(containers: Iterable[ContainerUse]) -> dict[tuple[str, str], tuple[GpuInfo, GpuProcessUse]]:
    """(pod UID, GPU UUID) -> the GPU and the sum over the pod's containers."""
    sums: dict[tuple[str, str], tuple[GpuInfo, GpuProcessUse]] = {}
    for container in containers:
        if container.subject.pod_uid:
            key = (container.subject.pod_uid, container.gpu.uuid)
            known = sums.get(key)
            sums[key] = (container.gpu, container.use if known is None else _plus(known[1], container.use))
    return sums


def _plus(left: GpuProcessUse, right: GpuProcessUse) -> GpuProcessUse:
    core = None if left.core is None or right.core is None else left.core + right.core
    return GpuProcessUse(left.memory + right.memory, core)


class GpuCollector:
    """`read` is one round; with `recovery` an unhealthy GPU that responds for ten minutes is healthy again."""

    def __init__(
        self,
        roots: Roots,
        workloads: Callable[[], Workloads],
        cache: MetricCache,
        registries: Registries,
        conditions: CollectorConditions,
        *,
        recovery: bool = False,
        clock: Callable[[], float] = boot_clock,
        gpus: Gpus | None = None,
        health: GpuHealth | None = None,
        patience: float = PATIENCE_S,
    ) -> None:
        self._roots = roots
        self._workloads = workloads
        self._cache = cache
        self._registries = registries
        self._conditions = conditions
        self._patience = patience
        self._clock = clock
        self._gpus = gpus or Gpus(roots, clock)
        self._health = health or GpuHealth(clock, recovery=recovery)
        self._caller = CallThread("gpu-use")
        self._output = CollectorOutput(NAME, cache, registries, "A GPU gives no figures")
        self._pending: asyncio.Future[GpuSnapshot] | None = None
        """A query that has not returned yet."""
        self.snapshot: GpuSnapshot | None = None
        """The last result with figures; None while there is no NVML."""
        self._inventory: GpuSnapshot | None = None
        """The last result that lists the GPUs."""
        self.containers: list[ContainerUse] = []
        self._faults: Mapping[str, DeviceFault] = {}
        self._watched = False
        """Whether a GPU without a known fault is healthy."""
        view = registries.view
        view("node_gpu_memory_bytes", lambda: [(_labels(gpu), gpu.memory_total) for gpu in self._known()])
        view("node_gpu_used_memory_bytes", self._node_memory)
        view("node_gpu_used_core_ratio", self._node_core)
        view("container_gpu_used_memory_bytes", self._container_memory)
        view("container_gpu_used_core_ratio", self._container_core)
        view("gpu_healthy", self._health_rows)

    async def read(self) -> None:
        """Query, wait, map processes to containers, store."""
        if self._pending is None:
            self._pending = asyncio.wrap_future(self._caller.submit(self._gpus.read))
        try:
            done, _ = await asyncio.wait({self._pending}, timeout=self._patience)
        except asyncio.CancelledError:
            self._pending.cancel()  # nothing will take the result
            raise
        if not done:
            self._registries.count("collector_failures_total", NAME, "hung")
            nvml = self._gpus.nvml
            if nvml is not None and self._inventory is not None:
                self._health.watch(nvml, self._inventory.gpus)
            self._unavailable(f"NVML has not answered for {self._patience:g} s", self._clock())
            return
        pending, self._pending = self._pending, None
        self._process(pending.result())

    def _process(self, snapshot: GpuSnapshot) -> None:
        for bus_id, error in snapshot.failures.items():
            self._output.fail("device", f"{bus_id}: {error}")
        nvml = self._gpus.nvml
        if not snapshot.unknown:
            self._inventory = snapshot
            self._store_inventory(snapshot, snapshot.at)
        if nvml is None:
            self._health.stop()
        if snapshot.problem or nvml is None or not snapshot.gpus:
            self._unavailable(snapshot.problem or "; ".join(snapshot.failures.values()) or NO_FUNCTION, snapshot.at)
            return
        self._conditions.up(NAME, SOURCE)
        self._health.watch(nvml, snapshot.gpus)
        self._update_health(snapshot.at)
        self.snapshot = snapshot
        self.containers = by_container(snapshot, self._owners())
        self._output.commit(self._batch(snapshot))

    def _store_inventory(self, snapshot: GpuSnapshot, at: float) -> None:
        self._cache.facts.set(FACT_GPU, tuple(snapshot.gpus.values()), at)
        self._cache.facts.set(FACT_GPU_DRIVER, snapshot.driver, at)

    def _unavailable(self, reason: str, at: float) -> None:
        self.snapshot = None
        self.containers = []
        self._conditions.down(NAME, reason, SOURCE)
        if self._inventory is None or not self._inventory.gpus:
            self._watched = False
            self._conditions.waiting(HEALTH, "no GPUs to watch", SOURCE)
            return
        before = self._faults.keys()
        self._update_health(at)
        if self._faults.keys() - before:
            self._store_inventory(self._inventory, at)

    def _update_health(self, at: float) -> None:
        health = self._health
        for event in health.events():
            self._registries.count("gpu_xid_errors_total", event.uuid, str(event.number))
        for uuid, reason in health.unwatched.items():
            log.once(f"unwatched:{uuid}:{reason}", "The health of a GPU is unknown", uuid=uuid, reason=reason)
        before = self._faults
        self._faults = dict(health.faults)
        self._watched = not health.problem
        for uuid, fault in self._faults.items():
            if before.get(uuid) != fault:
                log.warning("A GPU is unhealthy", uuid=uuid, reason=fault.code, text=fault.message)
        for uuid in before.keys() - self._faults.keys():
            log.info("A GPU is healthy again", uuid=uuid)
        if self._watched:
            self._conditions.up(HEALTH, SOURCE)
        else:
            self._conditions.down(HEALTH, health.problem, SOURCE)
        if self._watched or self._faults:
            self._cache.facts.set(FACT_GPU_FAULTS, self._faults, at)

    def _owners(self) -> Callable[[int], Subject | None]:
        """The container of a process; the paths of containers are collected only if some process is on a GPU."""
        paths = cache(lambda: ContainerPaths(self._workloads().subjects))
        return cache(lambda pid: self._owner(paths(), pid))

    def _owner(self, paths: ContainerPaths, pid: int) -> Subject | None:
        try:
            cgroups = read_cgroups(self._roots, pid) or {}  # the process may have ended
        except KernelFileError as error:
            self._output.fail("cgroup", str(error))
            return None
        return paths.of(cgroups.get("cpu", cgroups.get("", "")))

    def _batch(self, snapshot: GpuSnapshot) -> Batch:
        batch = Batch(snapshot.at)
        for gpu in snapshot.gpus.values():
            use = snapshot.use.get(gpu.uuid)
            if use is not None:
                batch.add("node_gpu_memory_usage", use.memory, *_labels(gpu))
                if use.core is not None:
                    batch.add("node_gpu_core_usage", use.core, *_labels(gpu))
        for container in self.containers:
            _add(batch, "container", container.subject.key, container.gpu, container.use)
        for (pod, _), (gpu, amount) in by_pod(self.containers).items():
            _add(batch, "pod", pod, gpu, amount)
        return batch

    def _known(self) -> Iterable[GpuInfo]:
        return () if self.snapshot is None else self.snapshot.gpus.values()

    def _node_memory(self) -> Iterator[Row]:
        for gpu in self._known():
            if self.snapshot is not None and (use := self.snapshot.use.get(gpu.uuid)) is not None:
                yield _labels(gpu), use.memory

    def _node_core(self) -> Iterator[Row]:
        for gpu in self._known():
            use = None if self.snapshot is None else self.snapshot.use.get(gpu.uuid)
            if use is not None and use.core is not None:
                yield _labels(gpu), use.core / 100

    def _container_memory(self) -> Iterator[Row]:
        for container in self.containers:
            yield (*container_labels(container.subject), *_labels(container.gpu)), container.use.memory

    def _container_core(self) -> Iterator[Row]:
        for container in self.containers:
            if container.use.core is not None:
                yield (*container_labels(container.subject), *_labels(container.gpu)), container.use.core / 100

    def _health_rows(self) -> Iterator[Row]:
        watched = self._watched and self.snapshot is not None
        for gpu in () if self._inventory is None else self._inventory.gpus.values():
            fault = self._faults.get(gpu.uuid)
            if fault is not None or (watched and gpu.uuid not in self._health.unwatched):
                yield (*_labels(gpu), "" if fault is None else fault.code), float(fault is None)


def _labels(gpu: GpuInfo) -> tuple[str, str]:
    return str(gpu.minor), gpu.uuid


def _add(batch: Batch, level: str, key: str, gpu: GpuInfo, use: GpuProcessUse) -> None:
    batch.add(f"{level}_gpu_memory_usage", use.memory, key, *_labels(gpu))
    if use.core is not None:
        batch.add(f"{level}_gpu_core_usage", use.core, key, *_labels(gpu))

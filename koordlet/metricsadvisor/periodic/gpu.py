"""Use of NVIDIA GPUs by node, pods and containers, and whether they are sound (spec 02 §6.1, 08 §3.3, §4.7).

A round asks NVML in a thread (`koordlet.devices`), as a call takes milliseconds on a good day and may hang on a bad
one: the loop waits for `patience` seconds at most, asks no more while a call is out, and says so. Processes are joined
with running containers by /proc/<pid>/cgroup: as many reads as there are processes on GPUs, and one in a cgroup that
its container made counts as the container's. Bounded by GPUs x processes on them.

The facts `GPU`, `GPU_driver` and `GPU_faults` are stored with every round that gave them: () where the driver holds no
GPU, nothing while NVML can't be had. Faults once found stay told when nobody can watch any more. A GPU that breaks may
take NVML along: a fault that comes when nobody can look has the facts stored once more, as they were last.
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
from koordlet.metriccache import Batch, MetricCache, SeriesError
from koordlet.metriccache.facts import FACT_GPU, FACT_GPU_DRIVER, FACT_GPU_FAULTS
from koordlet.metricsadvisor.conditions import Conditions
from koordlet.metricsadvisor.views import container_labels
from koordlet.prometheus import Registries
from koordlet.statesinformer.pods.model import Subject, SubjectKind, Workloads
from koordlet.system.errors import KernelFileError
from koordlet.system.proc.procfs import read_cgroups
from koordlet.system.roots import Roots

log = get_logger(__name__)

NAME, HEALTH, SOURCE = "gpu", "gpu_health", "nvml"
PATIENCE_SECONDS = 10.0
Row = tuple[tuple[str, ...], float]


class Places:
    """Whose a cgroup path is that a process has: a running container's, or nobody's."""

    def __init__(self, subjects: Iterable[Subject]) -> None:
        running = [one for one in subjects if one.kind is SubjectKind.CONTAINER and one.running]
        self._by_dir = {one.cgroup_dir: one for one in running}
        names = [one.cgroup_dir.rpartition("/")[2] for one in running]
        often = Counter(names)
        self._by_name = {name: one for name, one in zip(names, running, strict=True) if name and often[name] == 1}

    def of(self, path: str) -> Subject | None:
        """*path* without a leading slash. It may begin above the root that koordlet sees; and where koordlet has a
        cgroup namespace of its own it begins with dots and lacks what both have in common, so names must do."""
        parts = path.split("/")
        if parts[0] == "..":
            return next((found for part in parts if (found := self._by_name.get(part)) is not None), None)
        for start in range(len(parts)):
            for end in range(len(parts), start, -1):
                found = self._by_dir.get("/".join(parts[start:end]))
                if found is not None:
                    return found
        return None


@dataclass(frozen=True, slots=True)
class ContainerUse:
    """What one container has of one GPU."""

    subject: Subject
    gpu: GpuInfo
    use: GpuProcessUse


def by_container(look: GpuSnapshot, owner: Callable[[int], Subject | None]) -> list[ContainerUse]:
    """Sums over the processes of each container on each GPU that it touches."""
    sums: dict[tuple[str, str], ContainerUse] = {}
    for gpu in look.gpus.values():
        use = look.use.get(gpu.uuid)
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
    for one in containers:
        if one.subject.pod_uid:
            key = (one.subject.pod_uid, one.gpu.uuid)
            known = sums.get(key)
            sums[key] = (one.gpu, one.use if known is None else _plus(known[1], one.use))
    return sums


def _plus(one: GpuProcessUse, other: GpuProcessUse) -> GpuProcessUse:
    core = None if one.core is None or other.core is None else one.core + other.core
    return GpuProcessUse(one.memory + other.memory, core)


class GpuCollector:
    """`read` is one round; with `recovery` a sick GPU that answers for ten minutes is sound again."""

    def __init__(
        self,
        roots: Roots,
        workloads: Callable[[], Workloads],
        cache: MetricCache,
        registries: Registries,
        conditions: Conditions,
        *,
        recovery: bool = False,
        clock: Callable[[], float] = boot_clock,
        gpus: Gpus | None = None,
        health: GpuHealth | None = None,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        self._roots, self._workloads, self._cache = roots, workloads, cache
        self._registries, self._conditions, self._patience = registries, conditions, patience
        self._clock, self._gpus = clock, gpus or Gpus(roots, clock)
        self._health = health or GpuHealth(clock, recovery=recovery)
        self._caller = CallThread("gpu-use")
        self._out: asyncio.Future[GpuSnapshot] | None = None
        """A question that is not answered yet."""
        self.look: GpuSnapshot | None = None
        """The last one that gave something; None while there is no NVML."""
        self._told: GpuSnapshot | None = None
        """The last one that told which GPUs there are."""
        self.containers: list[ContainerUse] = []
        self._faults: Mapping[str, DeviceFault] = {}
        self._watched = False
        """Whether a GPU without a fault is a sound one."""
        view = registries.view
        view("node_gpu_memory_bytes", lambda: [(_labels(gpu), gpu.memory_total) for gpu in self._known()])
        view("node_gpu_used_memory_bytes", self._node_memory)
        view("node_gpu_used_core_ratio", self._node_core)
        view("container_gpu_used_memory_bytes", self._container_memory)
        view("container_gpu_used_core_ratio", self._container_core)
        view("gpu_healthy", self._health_rows)

    async def read(self) -> None:
        """Ask, wait, join, store."""
        if self._out is None:
            self._out = asyncio.wrap_future(self._caller.submit(self._gpus.read))
        try:
            done, _ = await asyncio.wait({self._out}, timeout=self._patience)
        except asyncio.CancelledError:
            self._out.cancel()  # its answer has nobody to come to
            raise
        if not done:
            self._registries.count("collector_failures_total", NAME, "hung")
            nvml = self._gpus.nvml
            if nvml is not None and self._told is not None:
                self._health.watch(nvml, self._told.gpus)
            self._nothing(f"NVML has not answered for {self._patience:g} s", self._clock())
            return
        answer, self._out = self._out, None
        self._take(answer.result())

    def _take(self, look: GpuSnapshot) -> None:
        for bus_id, text in look.failures.items():
            self._fail("device", f"{bus_id}: {text}")
        nvml = self._gpus.nvml
        if not look.unknown:
            self._told = look
            self._tell(look, look.at)
        if nvml is None:
            self._health.stop()
        if look.problem or nvml is None or not look.gpus:
            self._nothing(look.problem or "; ".join(look.failures.values()) or NO_FUNCTION, look.at)
            return
        self._conditions.up(NAME, SOURCE)
        self._health.watch(nvml, look.gpus)
        self._judge(look.at)
        self.look, self.containers = look, by_container(look, self._owners())
        try:
            self._cache.commit(self._batch(look))
        except SeriesError as error:
            self._fail("series", str(error))

    def _tell(self, look: GpuSnapshot, at: float) -> None:
        self._cache.facts.set(FACT_GPU, tuple(look.gpus.values()), at)
        self._cache.facts.set(FACT_GPU_DRIVER, look.driver, at)

    def _nothing(self, reason: str, at: float) -> None:
        self.look, self.containers = None, []
        self._conditions.down(NAME, reason, SOURCE)
        if self._told is None or not self._told.gpus:
            self._watched = False
            self._conditions.waiting(HEALTH, "no GPUs to watch", SOURCE)
            return
        before = self._faults.keys()
        self._judge(at)
        if self._faults.keys() - before:
            self._tell(self._told, at)

    def _judge(self, at: float) -> None:
        health = self._health
        for one in health.events():
            self._registries.count("gpu_xid_errors_total", one.uuid, str(one.number))
        for uuid, why in health.unwatched.items():
            log.once(f"unwatched:{uuid}:{why}", "nobody knows whether a GPU is sound", uuid=uuid, reason=why)
        before, self._faults, self._watched = self._faults, dict(health.faults), not health.problem
        for uuid, fault in self._faults.items():
            if before.get(uuid) != fault:
                log.warning("a GPU is unhealthy", uuid=uuid, reason=fault.code, text=fault.message)
        for uuid in before.keys() - self._faults.keys():
            log.info("a GPU is healthy again", uuid=uuid)
        if self._watched:
            self._conditions.up(HEALTH, SOURCE)
        else:
            self._conditions.down(HEALTH, health.problem, SOURCE)
        if self._watched or self._faults:
            self._cache.facts.set(FACT_GPU_FAULTS, self._faults, at)

    def _owners(self) -> Callable[[int], Subject | None]:
        """Containers are gone through only where some process is on a GPU."""
        places = cache(lambda: Places(self._workloads().subjects))
        return cache(lambda pid: self._owner(places(), pid))

    def _owner(self, places: Places, pid: int) -> Subject | None:
        try:
            cgroups = read_cgroups(self._roots, pid) or {}  # it may have ended meanwhile
        except KernelFileError as error:
            self._fail("cgroup", str(error))
            return None
        return places.of(cgroups.get("cpu", cgroups.get("", "")))

    def _batch(self, look: GpuSnapshot) -> Batch:
        batch = Batch(look.at)
        for gpu in look.gpus.values():
            use = look.use.get(gpu.uuid)
            if use is not None:
                batch.add("node_gpu_memory_usage", use.memory, *_labels(gpu))
                if use.core is not None:
                    batch.add("node_gpu_core_usage", use.core, *_labels(gpu))
        for one in self.containers:
            _add(batch, "container", one.subject.key, one.gpu, one.use)
        for (pod, _), (gpu, amount) in by_pod(self.containers).items():
            _add(batch, "pod", pod, gpu, amount)
        return batch

    # --- Prometheus rows

    def _known(self) -> Iterable[GpuInfo]:
        return () if self.look is None else self.look.gpus.values()

    def _node_memory(self) -> Iterator[Row]:
        for gpu in self._known():
            if self.look is not None and (use := self.look.use.get(gpu.uuid)) is not None:
                yield _labels(gpu), use.memory

    def _node_core(self) -> Iterator[Row]:
        for gpu in self._known():
            use = None if self.look is None else self.look.use.get(gpu.uuid)
            if use is not None and use.core is not None:
                yield _labels(gpu), use.core / 100

    def _container_memory(self) -> Iterator[Row]:
        for one in self.containers:
            yield (*container_labels(one.subject), *_labels(one.gpu)), one.use.memory

    def _container_core(self) -> Iterator[Row]:
        for one in self.containers:
            if one.use.core is not None:
                yield (*container_labels(one.subject), *_labels(one.gpu)), one.use.core / 100

    def _health_rows(self) -> Iterator[Row]:
        watched = self._watched and self.look is not None
        for gpu in () if self._told is None else self._told.gpus.values():
            fault = self._faults.get(gpu.uuid)
            if fault is not None or (watched and gpu.uuid not in self._health.unwatched):
                yield (*_labels(gpu), "" if fault is None else fault.code), float(fault is None)

    def _fail(self, cause: str, text: str) -> None:
        self._registries.count("collector_failures_total", NAME, cause)
        log.once(f"gpu:{cause}:{text}", "a GPU gave no figures", cause=cause, error=text)


def _labels(gpu: GpuInfo) -> tuple[str, str]:
    return str(gpu.minor), gpu.uuid


def _add(batch: Batch, level: str, key: str, gpu: GpuInfo, use: GpuProcessUse) -> None:
    batch.add(f"{level}_gpu_memory_usage", use.memory, key, *_labels(gpu))
    if use.core is not None:
        batch.add(f"{level}_gpu_core_usage", use.core, key, *_labels(gpu))

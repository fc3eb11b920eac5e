"""Every figure of a running koordlet against the kernel's own files over the same seconds, on v1 and v2 alike.

One scene a naming driver: an LS worker and a BE burner on one CPU; on the other a burner under quota, a holder of
memory and a sleeper. koordlet's samples come out of its snapshot with the times they were taken at, and counters are
compared while all processes are stopped, so load and emulation do not matter; tolerances are said at each check.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from koordlet.system.cgroup.naming import CgroupDriver, KubeQOS
from tests.koordlet.process.kernelfigures import (
    anonymous_bytes,
    is_stopped,
    node_busy_seconds,
    node_memory_used,
    process_cpu_seconds,
    run_delay_seconds,
    throttling,
)
from tests.koordlet.process.patience import until
from tests.koordlet.process.podtree import HEAVY
from tests.koordlet.process.programs import BURN, SLEEP, duty, touch
from tests.koordlet.process.witness import Witness, boot_time

pytestmark = [pytest.mark.kernel, pytest.mark.timing]

SECONDS = 9.0
MEBIBYTES = 64
QUOTA = 0.3
MIB = 1 << 20
WAITED = "koordlet_sched_latency_wait_seconds_total"
THROTTLED = "koordlet_sched_latency_throttled_seconds_total"


@dataclass
class Scene:
    koordlet: Any
    worker: Any
    idle: Any
    batch: Any
    limited: Any
    holder: Any
    pids: dict[str, int]
    witness: Any = None
    series: Any = None
    start: float = 0.0
    end: float = 0.0
    scrapes: tuple[Any, ...] = ()
    """Families before and after the window, all processes stopped."""
    kernel: tuple[dict[str, float], ...] = ()
    """What the kernel had counted at these moments."""
    ran: float = 0.0
    """Seconds for which the processes ran between the two scrapes; on a busy machine more than `SECONDS`."""
    top: Any = None
    pressed: tuple[float | None, float | None] = (None, None)
    """By the worker's cpu.pressure, None without the file: the share of the time until `top` in which the worker was
    stalled (from `total`), and avg10 at the second scrape. avg10 follows a change only after more than ten seconds."""

    def rate(self, kind: str, *labels: str) -> tuple[float, float, float]:
        rate: tuple[float, float, float] = self.series.mean(kind, *labels, start=self.start, end=self.end)
        return rate

    def counter(self, scrape: int, name: str, container: Any, **labels: str) -> float:
        """Sum over the samples of a container."""
        family = self.scrapes[scrape][name.removesuffix("_total")]
        labels_of_container = {"container_id": container.key, **labels}
        return float(
            sum(s.value for s in family.samples if s.name == name and labels_of_container.items() <= s.labels.items())
        )

    def gained(self, name: str, container: Any, **labels: str) -> float:
        return self.counter(1, name, container, **labels) - self.counter(0, name, container, **labels)

    def counted(self, source: str) -> float:
        """The kernel's count between the scrapes."""
        return self.kernel[1][source] - self.kernel[0][source]

    def pressure(self, figure: str) -> float | None:
        """`avg10` (percent) or `total` (microseconds) of the worker's cpu.pressure."""
        tree = self.worker.tree
        hierarchy = "" if tree.v2 else "unified"
        if hierarchy not in tree.roots or not Path("/proc/pressure").is_dir():
            return None
        text = (tree.roots[hierarchy] / tree.top / self.worker.dir / "cpu.pressure").read_text()
        return float(next(f for f in text.split() if f.startswith(f"{figure}=")).removeprefix(f"{figure}="))

    def stopped(self) -> tuple[Any, dict[str, float]]:
        """Stop every process, let koordlet read, and give what it and the kernel have counted."""
        for pid in self.pids.values():
            os.kill(pid, signal.SIGSTOP)

        def runs() -> float:
            started: float = self.koordlet.value("koord_periodic_task_runs_total", task="collect-sched-latency")
            return started

        until(lambda: all(is_stopped(pid) for pid in self.pids.values()), "every process is stopped")
        runs_before = runs()
        until(lambda: runs() >= runs_before + 2, "a whole collection after the stop")
        families = self.koordlet.families()
        self.pressed = (self.pressed[0], self.pressure("avg10"))
        counts = {name: run_delay_seconds(pid) for name, pid in self.pids.items()}
        counts["throttled"] = throttling(self.limited)[2]
        for pid in self.pids.values():
            os.kill(pid, signal.SIGCONT)
        return families, counts


@pytest.fixture(scope="module", params=list(CgroupDriver), ids=lambda driver: driver.value)
def scene(
    request: pytest.FixtureRequest, trees: Callable[..., Any], views: Any, koordlets: Any, cpus: Any
) -> Iterator[Scene]:
    assert cpus[0] != cpus[1], "the scene needs two CPUs"
    tree = trees(request.param, weight=HEAVY)
    (worker, idle), (batch,) = tree.pod(KubeQOS.BURSTABLE, 2), tree.pod(KubeQOS.BESTEFFORT)
    (limited,), (holder,) = tree.pod(KubeQOS.GUARANTEED), tree.pod(KubeQOS.BURSTABLE)
    limited.quota(QUOTA)
    koordlet = koordlets(views(tree)).wait()  # before anything takes the CPUs
    pids = {
        "worker": worker.run(duty(0.02, 0.02), cpus[0]),
        "idle": idle.run(SLEEP, cpus[1]),
        "batch": batch.run(BURN, cpus[0]),
        "limited": limited.run(BURN, cpus[1]),
        "holder": holder.run(touch(MEBIBYTES), cpus[1]),
    }
    scene = Scene(koordlet, worker, idle, batch, limited, holder, pids)
    _watch(scene, tree)
    yield scene
    assert scene.koordlet.terminate() == 0
    for container in tree.containers:
        container.end()


def _watch(scene: Scene, tree: Any) -> None:
    pids = scene.pids
    pods = {c.pod_uid: Path(c.path("memory")).parent for c in tree.containers}
    sources: dict[str, Callable[[], float]] = {
        **{f"cpu:{name}": partial(process_cpu_seconds, pid) for name, pid in pids.items()},
        "node": node_busy_seconds,
        "node memory": node_memory_used,
        "pods memory": lambda: sum(anonymous_bytes(path) for path in pods.values()),
        "holder memory": lambda: anonymous_bytes(scene.holder.path("memory")),
        "periods": lambda: throttling(scene.limited)[0],
        "throttled periods": lambda: throttling(scene.limited)[1],
    }
    with Witness(sources) as scene.witness:
        first = scene.stopped()
        scene.start = boot_time() + 0.5
        resumed = time.monotonic()
        stalled = scene.pressure("total")
        time.sleep(SECONDS)
        scene.top, stalled_then = scene.koordlet.top(), scene.pressure("total")
        if stalled is not None and stalled_then is not None:
            scene.pressed = ((stalled_then - stalled) / 1e6 / (time.monotonic() - resumed), None)
        scene.end = boot_time()
        scene.series = scene.koordlet.series(after=scene.end)
        scene.ran = time.monotonic() - resumed
        second = scene.stopped()
    scene.scrapes, scene.kernel = zip(first, second, strict=True)


def test_all_probes_are_loaded(scene: Scene) -> None:
    assert {probe["source"] for probe in scene.koordlet.top()["probes"]} == {"bpf"}


@pytest.mark.parametrize("name", ["worker", "batch", "limited"])
def test_cpu_of_a_container_is_its_processes(scene: Scene, name: str) -> None:
    """Within 3 % + 0.01 cores of utime + stime (ticks of 10 ms)."""
    start, end, cores = scene.rate("container_cpu_usage", getattr(scene, name).key)
    kernel = scene.witness.delta(f"cpu:{name}", start, end) / (end - start)
    assert kernel > 0.1, "the process did not run"
    assert cores == pytest.approx(kernel, rel=0.03, abs=0.01)


def test_a_quota_bounds_what_is_reported(scene: Scene) -> None:
    """A quota of 0.3 is used up: 0.3 and 10 %, less for a machine that stands still now and then; how much exactly is
    what its process says, above."""
    assert 0.6 * QUOTA <= scene.rate("container_cpu_usage", scene.limited.key)[2] <= 1.1 * QUOTA


def test_memory_is_what_was_touched(scene: Scene) -> None:
    """64 MiB and an interpreter (up to 8 MiB), within 1 MiB of memory.stat; the sleeper has the interpreter alone,
    and of that only what it touched since it moved in: a few pages, which the kernel counts once a CPU's batch is full.
    """
    held, sleeper = (
        scene.series.average("container_memory_usage", c.key, start=scene.start, end=scene.end)
        for c in (scene.holder, scene.idle)
    )
    assert MEBIBYTES - 1 <= held / MIB <= MEBIBYTES + 8
    assert 0 <= sleeper / MIB <= 8
    assert held == pytest.approx(scene.witness.average("holder memory", scene.start, scene.end), abs=MIB)


def test_node_figures_are_those_of_proc(scene: Scene) -> None:
    """CPU within 3 % + 0.03 cores of /proc/stat, memory within 2 % of MemTotal - MemAvailable."""
    start, end, cores = scene.rate("node_cpu_usage")
    assert cores == pytest.approx(scene.witness.delta("node", start, end) / (end - start), rel=0.03, abs=0.03)
    memory = scene.series.average("node_memory_usage", start=scene.start, end=scene.end)
    assert memory == pytest.approx(scene.witness.average("node memory", scene.start, scene.end), rel=0.02)


def test_pods_and_classes_add_up(scene: Scene) -> None:
    """A pod is the sum of its containers (within 0.02 cores: the files are read one after the other), a class the sum
    of its pods exactly."""
    start, end = scene.start, scene.end
    pod = scene.rate("pod_cpu_usage", scene.worker.pod_uid)[2]
    parts = sum(scene.rate("container_cpu_usage", c.key)[2] for c in (scene.worker, scene.idle))
    assert pod == pytest.approx(parts, abs=0.02)
    classes = {"LS": (scene.worker, scene.holder), "BE": (scene.batch,), "LSR": (scene.limited,)}
    for qos, members in classes.items():
        for resource in ("cpu", "memory"):
            total = scene.series.average(f"qos_{resource}_usage", qos, start=start, end=end)
            pods = [scene.series.average(f"pod_{resource}_usage", c.pod_uid, start=start, end=end) for c in members]
            assert total == pytest.approx(sum(pods), rel=1e-4)


def test_the_system_is_what_pods_leave(scene: Scene) -> None:
    """Sample by sample node - pods, never negative; within 1e-3 cores and 1 MiB (float32 in the cache)."""
    for resource, tolerance in (("cpu", 1e-3), ("memory", MIB)):
        times, system = scene.series.samples[f"sys_{resource}_usage",]
        at, node = scene.series.samples[f"node_{resource}_usage",]
        pods = 0.0
        for qos in ("LS", "BE", "LSR"):
            moments, values = scene.series.samples[f"qos_{resource}_usage", qos]
            pods = pods + values[-len(times) :]
            assert moments[-1] == times[-1] == at[-1]
        left = (node[-len(times) :] - pods).clip(min=0)
        count = min(len(left), 8)
        assert system[-count:] == pytest.approx(left[-count:], abs=tolerance)


def test_throttling_is_the_kernels(scene: Scene) -> None:
    """The share of throttled periods over the window within 0.1; others are never throttled."""
    times, _ = scene.series.samples["container_cpu_throttled", scene.limited.key]
    inside = times[(times >= scene.start) & (times <= scene.end)]
    start, end = float(inside[0]), float(inside[-1])
    kernel = scene.witness.delta("throttled periods", start, end) / scene.witness.delta("periods", start, end)
    assert kernel > 0.5, "the quota did not bite"
    assert scene.rate("container_cpu_throttled", scene.limited.key)[2] == pytest.approx(kernel, abs=0.1)
    assert scene.rate("container_cpu_throttled", scene.batch.key)[2] == 0


def test_throttled_time_is_distinguished_from_contention(scene: Scene) -> None:
    """Seconds throttled within 10 % + 0.05 s of cpu.stat; with the waiting they are the whole run delay, within 3 %."""
    throttled, waited = scene.gained(THROTTLED, scene.limited), scene.gained(WAITED, scene.limited)
    assert scene.counted("throttled") > 1.0, "the quota did not bite"
    assert throttled == pytest.approx(scene.counted("throttled"), rel=0.1, abs=0.05)
    assert throttled + waited == pytest.approx(scene.counted("limited"), abs=0.02 + 0.03 * scene.counted("limited"))
    assert waited < throttled / 3, "throttling was taken for contention"
    assert scene.gained(THROTTLED, scene.worker) == 0


def test_who_is_throttled_blames_no_neighbour_for_it(scene: Scene) -> None:
    """No container is charged with more than what the throttled one really waited for a CPU."""
    row = _row(scene, scene.limited)
    assert row["sched"]["throttled"] > row["sched"].get("wait", 0)
    by_others = sum(c["wait"] for c in row["sched"].get("culprits", []) if c["kind"] == "container")
    assert by_others <= row["sched"].get("wait", 0) + 0.01


@pytest.mark.parametrize("name", ["worker", "batch"])
def test_waiting_is_the_run_delay_of_the_threads(scene: Scene, name: str) -> None:
    """Within 3 % + 20 ms of the run delay in /proc/<tid>/schedstat."""
    assert scene.counted(name) > 0.5, "the two did not share a CPU"
    kernel = scene.counted(name)
    assert scene.gained(WAITED, getattr(scene, name)) == pytest.approx(kernel, abs=0.02 + 0.03 * kernel)


def test_the_noisy_neighbour_is_named(scene: Scene) -> None:
    """First culprit of the LS worker, with more than half of its waiting; the idle container is hardly blamed."""
    row = _row(scene, scene.worker)
    first = row["sched"]["culprits"][0]
    assert (first["pod"], first["name"], first["qos"]) == (scene.batch.pod_uid, scene.batch.name, "BE")
    assert first["share"] > 0.5
    shares = {culprit.get("name"): culprit["share"] for culprit in row["sched"]["culprits"]}
    assert shares.get(scene.idle.name, 0.0) < 0.05
    assert sum(shares.values()) <= 1.0 + 1e-6


def test_latency_percentiles_make_sense(scene: Scene) -> None:
    """p50 <= p99; the worker's p99 is a slice or some of them (0.2 ms to 1 s), and no longer than what it waited."""
    sched = _row(scene, scene.worker)["sched"]
    assert sched["p50"] <= sched["p99"]
    assert 0.0002 < sched["p99"] < 1.0
    share = scene.counted("worker") / scene.ran
    assert share / 3 < sched["wait"] < share * 3, "the wait a second is the window's, roughly"


def test_histogram_and_sum_are_of_the_same_waits(scene: Scene) -> None:
    """Buckets rise, +Inf is the count, and the sums of both reasons are the waiting within 1 %."""
    family = scene.scrapes[1]["koordlet_sched_latency_seconds"]
    mine = [s for s in family.samples if s.labels["container_id"] == scene.worker.key]
    for reason in ("wakeup", "preempted"):
        buckets = [s.value for s in mine if s.name.endswith("_bucket") and s.labels["reason"] == reason]
        assert buckets == sorted(buckets)
        count = next(s.value for s in mine if s.name.endswith("_count") and s.labels["reason"] == reason)
        assert buckets[-1] == count
    total = sum(s.value for s in mine if s.name.endswith("_sum"))
    assert total == pytest.approx(scene.counter(1, WAITED, scene.worker), rel=0.01)


def test_culprit_counters_add_up_to_the_waiting(scene: Scene) -> None:
    """The counters of all culprits sum up to the waiting, within 5 % + 50 ms."""
    waited = scene.gained(WAITED, scene.worker)
    charged = scene.gained("koordlet_sched_latency_culprit_wait_seconds_total", scene.worker)
    assert charged == pytest.approx(waited, rel=0.05, abs=0.05)


def test_pressure_is_the_kernels_where_it_has_it(scene: Scene) -> None:
    """Where these cgroups have cpu.pressure, the worker's stalls are within 0.25 of the file's."""
    running, stopped = scene.pressed
    if running is None or stopped is None:
        assert not scene.koordlet.values("koordlet_container_psi")
        return
    assert running > 0.05, "the worker was not stalled"
    assert _row(scene, scene.worker)["pressure"]["cpu"] == pytest.approx(running, abs=0.25)
    family = scene.scrapes[1]["koordlet_container_psi"]
    shown = [
        s.value
        for s in family.samples
        if s.labels["container_id"] == scene.worker.key
        and (s.labels["psi_resource_type"], s.labels["psi_precision"], s.labels["psi_degree"])
        == ("cpu", "avg10", "some")
    ]
    assert len(shown) == 1
    assert shown[0] == pytest.approx(stopped, abs=25)


def test_top_shows_what_the_cache_keeps(scene: Scene) -> None:
    """Node and containers in /top are one of the last samples that the cache had then."""

    def last(*series: str) -> Any:
        times, kept = scene.series.samples[series]
        return kept[times <= scene.end][-8:]

    assert min(abs(last("node_cpu_usage") - scene.top["cpu"])) < 1e-4
    for container in (scene.worker, scene.batch, scene.limited, scene.holder):
        assert min(abs(last("container_cpu_usage", container.key) - _row(scene, container)["cpu"])) < 1e-4


def _row(scene: Scene, container: Any) -> Any:
    return next(row for row in scene.top["rows"] if row["id"] == container.key)

"""Scheduling throughput in process, and memory of a cluster.

Run: `python tests/scale/bench_scheduler.py [--nodes 5000] [--pods 5000] [--only SCENARIO,…] [--profile]`. The plugins
are those of the shipped profile that evaluate nodes. A placement is a whole cycle, PreFilter to Permit, assumed and
reserved; the following API call is omitted. Scenarios:

  one        pods of one shape
  mixed      100 shapes, interleaved
  spread     one shape, spread over zones (hard) and hosts (soft)
  anti       pods of 50 apps, each with required anti-affinity to itself by host
  loadaware  one shape, while NodeMetrics of 1 % of the nodes arrive every 100 placements
  churn      one shape; every tenth placement is followed by a removal, every hundredth by a node's change
  volumes    pods with a claim each whose volume is created on the pod's node (late binding)
  quotas     pods of 1,000 quotas in four levels, half of whose leaves have to borrow
  cores      LSR pods with whole cores. This and the next six: nodes with 128 CPUs, 4 NUMA nodes, 8 GPUs and 4 RDMA
             NICs, and the plugins NodeNUMAResource and DeviceShare
  singlezone pods that want all resources from one NUMA node
  gpuzone    LSR pods that want a GPU, CPUs and memory from one NUMA node
  gpushares  pods with a part of a GPU
  gpujoint   pods with 8 GPUs and a virtual function on each of their PCIe switches
  gpuplain   pods of one shape without devices and without CPUs of their own
  gpumix     the six above in turn, with quotas, and every third of the plain ones with a reservation
  reservations  pods of 10 apps, half of which must use a reservation; there is a reservation per pod, for one pod
  unreserved    `one` with the plugin Reservation and no reservations
  gangs      1,000 gangs of 4 that arrive interleaved: queue, cycles, Permit, and bindings that take no time
  gangs64    gangs of 64, with the same total of members
  api        pods of one shape through the embedded API server, with the default limit of 50 requests per second and
             without: 1,000 nodes and 1,000 pods
  memory     resident size of 10,000 nodes with 100,000 pods
  sharedmemory  the same with ElasticQuota and Reservation: pods of 1,000 quotas, 5,000 of which use reservations

Figures: pods/s over the whole run, p50 and p99 of a placement, CPU time per pod (without other processes'), and the
time of a calibration loop (a slower machine is slower in both).
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import pstats
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from control.scheduler.cycle.cycle import Cycle
from control.scheduler.cycle.failures import FitError
from control.scheduler.state.objects import trim_pod
from control.scheduler.state.pods import PodInfo
from control.scheduler.state.transform import transform_pod
from koordlet.api.core import PersistentVolumeClaim, Pod, StorageClass
from koordlet.api.crs.quota import ElasticQuota
from koordlet.api.encoding.wire import convert, decode, encode
from koordlet.api.gates import SCHEDULER
from koordlet.api.names import (
    ANNOTATION_RESERVATION_ALLOCATED,
    LABEL_QUOTA_IS_PARENT,
    LABEL_QUOTA_NAME,
    LABEL_QUOTA_PARENT,
    ROOT_QUOTA,
)
from koordlet.app.gates import FeatureGates
from tests.control.scheduler.build import node, pod
from tests.control.scheduler.loadreports import metric
from tests.scale.figures import Figure, calibration, report
from tests.scale.schedulerapi import place as place_by_api
from tests.scale.schedulerdevices import add_machines
from tests.scale.schedulerdevices import aligned as aligned_gpus
from tests.scale.schedulerdevices import joint as joint_gpus
from tests.scale.schedulerdevices import shared as shared_gpus
from tests.scale.schedulergangs import place as place_gangs
from tests.scale.schedulernuma import full_cores, single_zone
from tests.scale.schedulerprofile import Bench, open_bench
from tests.scale.schedulerreservations import owners, reserve

SEED = 1
RESERVED = 5000
"""Reservations of `sharedmemory`."""
LEAVES = 1000
"""Quotas that have pods."""


@dataclass(frozen=True)
class Result:
    """Seconds of each placement, in order, and of the whole run."""

    seconds: list[float]
    whole: float
    cpu: float
    failed: int

    def percentile(self, share: float) -> float:
        return sorted(self.seconds)[min(len(self.seconds) - 1, int(len(self.seconds) * share))]


Between = Callable[[Bench, int, PodInfo], None]


def place_all(bench: Bench, pods: list[Pod], between: Between | None = None) -> Result:
    """Place the pods sequentially; the first is not counted, as it fills the equivalence cache of its shape."""
    infos = [bench.cluster.info(pod) for pod in pods]
    cycle: Cycle = bench.cycle
    seconds: list[float] = []
    failed = 0
    gc.collect()
    gc.freeze()
    begun, cpu = time.perf_counter(), time.process_time()
    for number, info in enumerate(infos):
        at = time.perf_counter()
        try:
            cycle.place(info)
        except FitError:
            failed += 1
        seconds.append(time.perf_counter() - at)
        if between is not None:
            between(bench, number, info)
    whole, cpu = time.perf_counter() - begun, time.process_time() - cpu
    gc.unfreeze()
    return Result(seconds, whole, cpu, failed)


def one_shape(count: int) -> list[Pod]:
    return [pod(cpu="500m", memory="512Mi", labels={"app": "web"}) for _ in range(count)]


def mixed(count: int) -> list[Pod]:
    pods = []
    for i in range(count):
        shape = i % 100
        pods.append(
            pod(
                cpu=f"{100 + 50 * (shape % 20)}m",
                memory=f"{256 * (1 + shape % 5)}Mi",
                labels={"app": f"app-{shape}"},
                priority=9000 + shape % 3,
                spec={"nodeSelector": {"pool": f"p{shape % 4}"}} if shape % 2 else None,
            )
        )
    return pods


def spread(count: int) -> list[Pod]:
    selector = {"matchLabels": {"app": "spread"}}
    constraints = [
        {
            "maxSkew": 1,
            "topologyKey": "topology.kubernetes.io/zone",
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": selector,
        },
        {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": selector,
        },
    ]
    spec = {"topologySpreadConstraints": constraints}
    return [pod(cpu="200m", memory="256Mi", labels={"app": "spread"}, spec=spec) for _ in range(count)]


def anti(count: int) -> list[Pod]:
    pods = []
    for i in range(count):
        app = f"anti-{i % 50}"
        term = {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": "kubernetes.io/hostname"}
        affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
        pods.append(pod(cpu="200m", memory="256Mi", labels={"app": app}, spec={"affinity": affinity}))
    return pods


def quota_name(number: int) -> str:
    """Of leaf `number`."""
    return f"q{number % 10}-{number // 10 % 10}-{number // 100}"


def of_quotas(count: int) -> list[Pod]:
    """One leaf after another."""
    labels = [{LABEL_QUOTA_NAME: quota_name(number)} for number in range(LEAVES)]
    return [pod(cpu="500m", memory="512Mi", labels=labels[number % LEAVES]) for number in range(count)]


def quotas(count: int) -> Iterator[ElasticQuota]:
    """Three levels of parents, with ten children each, and leaves with half of what their pods ask for as min."""

    def quota(name: str, parent: str, share: int) -> ElasticQuota:
        cpu = count * 500 // 2 // share
        low = {"cpu": f"{cpu}m", "memory": f"{count * 256 // share}Mi"}
        labels = {LABEL_QUOTA_PARENT: parent, LABEL_QUOTA_IS_PARENT: "false" if name.count("-") == 2 else "true"}
        spec = {"min": low, "max": {"cpu": "100000", "memory": "1000Ti"}}
        return convert(
            {"metadata": {"name": name, "namespace": "quotas", "labels": labels}, "spec": spec}, ElasticQuota
        )

    yield quota("top", ROOT_QUOTA, 1)
    for a in range(10):
        yield quota(f"q{a}", "top", 10)
        for b in range(10):
            yield quota(f"q{a}-{b}", f"q{a}", 100)
            for c in range(LEAVES // 100):
                yield quota(f"q{a}-{b}-{c}", f"q{a}-{b}", LEAVES)


def machine_mix(count: int) -> list[Pod]:
    """The pods of all scenarios on such machines, one leaf of the quotas after another."""
    kinds = (full_cores, single_zone, aligned_gpus, shared_gpus, joint_gpus, one_shape)
    share = count // len(kinds)
    listed = [kind(share) for kind in kinds]
    for plain, owner in zip(listed[-1][::3], owners(share // 3), strict=False):
        plain.metadata = owner.metadata
    mixed_pods = [mixed for turn in zip(*listed, strict=True) for mixed in turn]
    for number, mixed in enumerate(mixed_pods):
        mixed.metadata.labels = {**mixed.metadata.labels, LABEL_QUOTA_NAME: quota_name(number % LEAVES)}
    return mixed_pods


def with_claims(count: int) -> list[Pod]:
    pods = []
    for i in range(count):
        volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": f"claim-{i}"}}]
        pods.append(pod(cpu="500m", memory="512Mi", labels={"app": "db"}, spec={"volumes": volumes}))
    return pods


def storage(count: int) -> list[object]:
    """A storage class with volumes in some zones only, and a claim per pod."""
    topologies = [{"matchLabelExpressions": [{"key": "topology.kubernetes.io/zone", "values": ["zone-1", "zone-2"]}]}]
    body = {
        "metadata": {"name": "late"}, "provisioner": "disk.csi", "volumeBindingMode": "WaitForFirstConsumer",
        "allowedTopologies": topologies,
    }  # fmt: skip
    want = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": "late"}
    claims = ({"metadata": {"name": f"claim-{i}", "namespace": "default"}, "spec": want} for i in range(count))
    return [convert(body, StorageClass), *(convert(claim, PersistentVolumeClaim) for claim in claims)]


def churn(bench: Bench, number: int, info: PodInfo) -> None:
    if number % 10 == 9 and info.row >= 0:
        bench.cycle.cache.remove_pod(info.uid)
    if number % 100 == 99:
        name = f"node-{bench.random.randrange(bench.nodes)}"
        bench.cluster.table.set_node(bench_node(int(name.removeprefix("node-")), number))  # type: ignore[arg-type]


def live_load(bench: Bench, number: int, info: PodInfo) -> None:
    """NodeMetrics of 1 % of the nodes arrive."""
    if number % 100 == 0:
        for _ in range(bench.nodes // 100):
            name = f"node-{bench.random.randrange(bench.nodes)}"
            cpu, memory_gib = f"{bench.random.randrange(1, 16)}", f"{bench.random.randrange(1, 128)}Gi"
            bench.reports.tell(metric(name, cpu, memory_gib, at=time.time()))


def bench_node(number: int, version: int = 0) -> object:
    return node(
        f"node-{number}",
        cpu="32",
        memory="256Gi",
        pods=256,
        labels={
            "topology.kubernetes.io/zone": f"zone-{number % 5}",
            "pool": f"p{number % 4}",
            "version": str(version),
        },
    )


BUDGETS = {
    "reservations": 3000.0, "quotas": 5000.0, "one": 10_000.0, "mixed": 2500.0, "spread": 1000.0, "anti": 1000.0,
    "cores": 2000.0, "singlezone": 1500.0, "gpushares": 2000.0, "gpujoint": 1000.0, "gpuplain": 10_000.0,
    "gpumix": 1500.0,
}  # fmt: skip
MACHINES = ("cores", "singlezone", "gpuzone", "gpushares", "gpujoint", "gpuplain", "gpumix")
MEMORY = ("memory", "sharedmemory")
EXTRA = {
    "sharedmemory": ("ElasticQuota", "Reservation"),
    "quotas": ("ElasticQuota",),
    "reservations": ("Reservation",),
    "unreserved": ("Reservation",),
    **dict.fromkeys(MACHINES, ("NodeNUMAResource", "DeviceShare")),
    "gpumix": ("NodeNUMAResource", "DeviceShare", "Reservation", "ElasticQuota"),
}
"""Plugins that only some scenarios have."""


def scenarios(count: int) -> dict[str, tuple[list[Pod], Between | None]]:
    return {
        "one": (one_shape(count), None),
        "mixed": (mixed(count), None),
        "spread": (spread(count // 2), None),
        "anti": (anti(count // 2), None),
        "loadaware": (one_shape(count), live_load),
        "churn": (one_shape(count), churn),
        "volumes": (with_claims(count // 5), None),
        "quotas": (of_quotas(count), None),
        "cores": (full_cores(count), None),
        "singlezone": (single_zone(count), None),
        "gpuzone": (aligned_gpus(count), None),
        "gpushares": (shared_gpus(count), None),
        "gpujoint": (joint_gpus(count), None),
        "gpuplain": (one_shape(count), None),
        "gpumix": (machine_mix(count), None),
        "reservations": (owners(count), None),
        "unreserved": (one_shape(count), None),
    }


def run(name: str, nodes: int, count: int, *, profile: bool) -> Iterator[Figure]:
    pods, between = scenarios(count)[name]
    bench = open_bench(nodes, random.Random(SEED), *EXTRA.get(name, ()))
    if name in MACHINES:
        add_machines(bench)
        for number, kind in enumerate({len(pod.metadata.annotations): pod for pod in pods[:12]}.values()):
            yield from first_of_its_shape(bench, f"{name}{number or ''}", kind)
    if name == "reservations":
        reserve(bench, len(pods))
    if name == "gpumix":
        reserve(bench, len(pods) // 18)
    if name == "volumes":
        bench.reports.put(*storage(len(pods)))
    if name in ("quotas", "gpumix"):
        for quota in quotas(len(pods)):
            bench.reports.tell(quota)
        begun = time.perf_counter()
        for waiting in pods:
            bench.reports.tell(waiting)
        yield Figure(f"{name}_{nodes}_counted", len(pods) / (time.perf_counter() - begun), "pods/s")
    profiler = cProfile.Profile()
    if profile:
        profiler.enable()
    result = place_all(bench, pods, between)
    if profile:
        profiler.disable()
        pstats.Stats(profiler).sort_stats("tottime").print_stats(30)
    budget = BUDGETS.get(name) if nodes == 5000 else None
    label = f"{name}_{nodes}"
    yield Figure(f"{label}_placed", len(pods) / result.whole, "pods/s", budget, at_least=True)
    yield Figure(f"{label}_cpu", 1e6 * result.cpu / len(pods), "us")
    yield Figure(f"{label}_p50", 1e6 * result.percentile(0.5), "us")
    yield Figure(f"{label}_p99", 1e6 * result.percentile(0.99), "us")
    yield Figure(f"{label}_unplaced", result.failed, "pods")
    yield Figure(f"{label}_calibration", calibration(), "ms")


def first_of_its_shape(bench: Bench, name: str, pod: Pod) -> Iterator[Figure]:
    """CPU time. The first pod of all fills caches that do not depend on its shape, so it is placed before."""
    bench.cycle.place(bench.cluster.info(one_shape(1)[0]))
    info = bench.cluster.info(pod)
    at = time.process_time()
    bench.cycle.place(info)
    yield Figure(f"{name}_{bench.nodes}_first", 1000 * (time.process_time() - at), "ms", 50.0)
    bench.cycle.cache.remove_pod(info.uid)


GANGS = {"gangs": 4, "gangs64": 64}


def gangs(name: str, nodes: int, count: int, *, profile: bool) -> Iterator[Figure]:
    """`count` members, at most 4,000."""
    size = GANGS[name]
    number = max(1, min(count, 4000) // size)
    profiler = cProfile.Profile()
    if profile:
        profiler.enable()
    result = asyncio.run(place_gangs(nodes, number, size, random.Random(SEED)))
    if profile:
        profiler.disable()
        pstats.Stats(profiler).sort_stats("tottime").print_stats(30)
    turns = sorted(result.turns)
    label = f"{name}_{nodes}"
    yield Figure(f"{label}_bound", result.bound / result.seconds, "pods/s")
    yield Figure(f"{label}_cpu", 1e6 * result.cpu / max(result.bound, 1), "us")
    yield Figure(f"{label}_turn_p50", 1000 * turns[len(turns) // 2], "ms")
    yield Figure(f"{label}_turn_p99", 1000 * turns[min(len(turns) - 1, int(len(turns) * 0.99))], "ms")
    yield Figure(f"{label}_unbound", number * size - result.bound, "pods", 0)
    yield Figure(f"{label}_calibration", calibration(), "ms")


def through_api(nodes: int, count: int) -> Iterator[Figure]:
    """The scheduler as a separate process, with and without a request limit."""
    for label, qps, budget in (("limited", 0, 41.0), ("unlimited", 100_000, None)):
        result = asyncio.run(place_by_api(nodes, count, qps))
        yield Figure(f"api_{nodes}_{label}", result.pods / result.seconds, "pods/s", budget, at_least=True)
        yield Figure(f"api_{nodes}_{label}_unbound", count - result.pods, "pods", 0)
    yield Figure(f"api_{nodes}_calibration", calibration(), "ms")


def memory(name: str, nodes: int, count: int) -> Iterator[Figure]:
    """A table of `nodes` with `count` pods of 1,000 workloads, decoded and trimmed as the process does."""
    gates = FeatureGates(SCHEDULER)
    shared = name == "sharedmemory"
    labels = {LABEL_QUOTA_NAME: "QUOTA"} if shared else {}
    template = encode(running(labels, {}))
    of_owner = encode(running(labels, {ANNOTATION_RESERVATION_ALLOCATED: "RESERVATION"}))
    gc.collect()
    before = resident()
    bench = open_bench(nodes, random.Random(SEED), *EXTRA.get(name, ()))
    cache = bench.cycle.cache
    with_nodes = resident()
    if shared:
        for quota in quotas(count):
            bench.reports.tell(quota)
        reserve(bench, RESERVED)
    with_objects = resident()
    for i in range(count):
        body = of_owner if shared and i < RESERVED else template
        body = body.replace(b"APP", b"web-%d" % (i % 1000)).replace(b"NODE", b"node-%d" % (i % nodes))
        body = body.replace(b"NUMBER", b"%05d" % i).replace(b"QUOTA", quota_name(i % LEAVES).encode())
        body = body.replace(b'"RESERVATION"', encode(allocation(i)))
        added = trim_pod(transform_pod(decode(body, Pod), gates))
        cache.set_pod(added)
        bench.reports.tell(added)
    gc.collect()
    after = resident()
    yield Figure(f"{name}_{nodes}_nodes_{count}_pods", after, "MB", 2000.0 if count >= 100_000 else None)
    yield Figure(f"{name}_a_node", 1000 * (with_nodes - before) / nodes, "kB")
    yield Figure(f"{name}_quotas_and_reservations", with_objects - with_nodes, "MB")
    yield Figure(f"{name}_a_pod", 1000 * (after - with_objects) / count, "kB")


def allocation(number: int) -> str:
    """The annotation of the pod that consumes this reservation of `reserve`."""
    return encode({"name": f"r{number}", "uid": f"uid-r{number}"}).decode()


def running(labels: dict[str, str], annotations: dict[str, str]) -> Pod:
    """A typical pod: owned, with a token, tolerations, conditions and a container's status."""
    at = "2026-01-01T00:00:00Z"
    kinds = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "APP-6d4cf56db6", "uid": "APP", "controller": True}
    started = {"name": "main", "image": "registry/APP:1", "containerID": "containerd://NUMBER", "ready": True}
    return pod(
        "APP-6d4cf56db6-NUMBER",
        cpu="500m",
        memory="512Mi",
        labels={"app": "APP", "pod-template-hash": "6d4cf56db6", "koordinator.sh/qosClass": "LS", **labels},
        annotations={"prometheus.io/scrape": "true", **annotations},
        on="NODE",
        spec={
            "volumes": [{"name": "kube-api-access-NUMBER", "projected": {"sources": []}}],
            "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}],
            "priority": 9500,
        },
        metadata={"uid": "uid-NUMBER", "ownerReferences": [owner], "creationTimestamp": at},
        status={
            "phase": "Running",
            "conditions": [{"type": kind, "status": "True", "lastTransitionTime": at} for kind in kinds],
            "containerStatuses": [started],
            "startTime": at,
        },
    )


def resident() -> float:
    """Megabytes of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1000
    raise OSError("/proc/self/status has no VmRSS")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", default="1000,5000,10000")
    parser.add_argument("--pods", type=int, default=5000)
    parser.add_argument("--only", default="")
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    only = [name for name in args.only.split(",") if name] or [*scenarios(1), *GANGS, "api", *MEMORY]
    figures = []
    for name in [name for name in MEMORY if name in only]:  # first, while the process is small
        only.remove(name)
        for figure in memory(name, 10_000, 100_000):
            print(figure, flush=True)
            figures.append(figure)
    if "api" in only:
        only.remove("api")
        for figure in through_api(1000, min(args.pods, 1000)):
            print(figure, flush=True)
            figures.append(figure)
    for nodes in map(int, args.nodes.split(",")):
        for name in only:
            for figure in (gangs if name in GANGS else run)(name, nodes, args.pods, profile=args.profile):
                print(figure, flush=True)
                figures.append(figure)
    return report("scheduler", figures)


if __name__ == "__main__":
    sys.exit(main())

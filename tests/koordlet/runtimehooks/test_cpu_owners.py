"""CPU suppress, CPU sets, bursts and normalization together, on a model kernel with the real kernel's refusals:
conflicts leave no problem, every pod stays in its pool and its parent, and all settings can be restored.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from koordlet.api import names
from koordlet.prometheus import Registries
from koordlet.qosmanager.engine.view import NodeView, PodView, container_quota, normalized_quota, pod_quota
from koordlet.qosmanager.rules.cpu import CPURules, joined
from koordlet.qosmanager.strategies.cpuburst import CPUBurst
from koordlet.qosmanager.strategies.cpusuppress import CPUSuppress, unsuppressed
from koordlet.resourceexecutor.executor import Executor
from koordlet.resourceexecutor.ledger import Ledger
from koordlet.resourceexecutor.settings import Setting, Value
from koordlet.runtimehooks.hooks.cpunormalization import CPUNormalization
from koordlet.runtimehooks.hooks.cpuset import CPUSetAllocator
from koordlet.system.cpu.cpuset import CPUSet
from koordlet.system.write import WriteRefused
from koordlet.wiring.ownerrules import RULES
from tests.koordlet.qosmanager.conftest import flat, make_node, make_pod, make_view
from tests.koordlet.resourceexecutor.conftest import ModelKernel, Recorder

QUOTA, CPUS, BURST = "cpu.cfs_quota_us", "cpuset.cpus", "cpu.cfs_burst_us"
DIRS = {"Guaranteed": "kubepods", "Burstable": "kubepods/burstable", "BestEffort": "kubepods/besteffort"}
ALL = CPUSet(range(8))
SLO = {
    "resourceUsedThresholdWithBE": {"enable": True, "cpuSuppressThresholdPercent": 65},
    "cpuBurstStrategy": {"policy": "auto", "cpuBurstPercent": 1000, "cfsQuotaBurstPercent": 300},
}
CLASSES = (
    ("LSE", "Guaranteed"), ("LSR", "Guaranteed"), ("LS", "Burstable"), ("", "Burstable"), ("SYSTEM", "Burstable"),
    ("BE", "BestEffort"), ("", "BestEffort"), ("LS", "BestEffort"), ("BE", "Burstable"),
)  # fmt: skip


def pod_of(number: int, qos: str, kube: str, limit: int | None, cpuset: str, node: int | None) -> PodView:
    allocated = "" if node is None else f',"numaNodeResources":[{{"node":{node},"resources":{{"cpu":"1"}}}}]'
    annotations = {names.ANNOTATION_RESOURCE_STATUS: f'{{"cpuset":"{cpuset}"{allocated}}}'}
    limits = {} if limit is None else {"cpu": f"{limit}m"}
    spec = {"containers": [{"name": f"c{n}", "resources": {"limits": limits}} for n in range(2)]}
    pod = make_pod(f"p{number}", qos=qos, kube=kube, containers=2, spec=spec, annotations=annotations, cpu=500)
    containers = tuple(replace(container, cpu=300, throttled=0.3) for container in pod.containers)
    return replace(pod, containers=containers)


pods = st.lists(
    st.tuples(
        st.sampled_from(CLASSES),
        st.none() | st.integers(100, 4000),
        st.sampled_from(["", "", "2", "2-3"]),
        st.none() | st.integers(0, 1),
    ),
    min_size=1,
    max_size=5,
).map(lambda rows: [pod_of(n, *owner, limit, cpus, node) for n, (owner, limit, cpus, node) in enumerate(rows)])
nodes = st.tuples(st.floats(0.5, 3), st.booleans(), st.integers(0, 8000), st.booleans(), st.booleans())


def _limit(pod: PodView) -> int:
    """The quota of each container in microseconds."""
    return -1 if pod.meta.pod is None else container_quota(pod.meta.pod.spec.containers[0])


def view_of(pods: list[PodView], node: tuple[float, bool, int, bool, bool], held: ModelKernel, now: float) -> NodeView:
    ratio, static, used, suppress, pinned = node
    own = CPUSet().union(*(pod.cpuset for pod in pods))
    exclusive = CPUSet().union(*(pod.cpuset for pod in pods if pod.raw_qos == "LSE"))
    shared = {n: CPUSet(range(4 * n, 4 * n + 4)) - own for n in range(2)}
    best_effort = {n: CPUSet(range(4 * n, 4 * n + 4)) - exclusive for n in range(2)}
    rules = CPURules(shared, best_effort, kubelet_static=static)
    slo = {**SLO, "resourceUsedThresholdWithBE": {**SLO["resourceUsedThresholdWithBE"], "enable": suppress}}  # type: ignore[dict-item]
    return make_view(
        now=now, pods=tuple(pods), qos_dirs=DIRS, slo=slo, node=make_node("8"), cpu=used, topology=flat(8, 4),
        cpu_rules=rules, kubelet_static=static, normalization=ratio if pinned else 1.0, current=held.values.get,
    )  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(pods, st.lists(nodes, min_size=1, max_size=4), st.booleans())
def test_combined_strategies_desire_only_what_the_kernel_accepts(
    pods: list[PodView], history: list[tuple[float, bool, int, bool, bool]], manager: bool
) -> None:
    kernel = BurstKernel()
    kernel.mkdir("kubepods", "kubepods/burstable", "kubepods/besteffort")
    for pod in pods:
        kernel.mkdir(pod.meta.cgroup_dir, *(container.meta.cgroup_dir for container in pod.containers))
        assert pod.meta.pod is not None
        kernel.values[Setting(QUOTA, pod.meta.cgroup_dir)] = pod_quota(pod.meta.pod)
        for container, spec in zip(pod.containers, pod.meta.pod.spec.containers, strict=True):
            kernel.values[Setting(QUOTA, container.meta.cgroup_dir)] = container_quota(spec)
    before = dict(kernel.values)
    strategies = [
        CPUSuppress(be_cpu_manager=manager), CPUSetAllocator(be_cpu_manager=manager), CPUNormalization(),
        CPUBurst(interval=1, random=Random(1)),
    ]  # fmt: skip
    executor = Executor(kernel, Ledger(None, "boot"), Recorder(), Registries(), rules=RULES)  # type: ignore[arg-type]
    for second, node in enumerate(history):
        view = view_of(pods, node, kernel, 1000.0 + second)
        for strategy in strategies:
            decision = strategy.decide(view)
            if decision is not None:
                own = [
                    container for container in decision.updates if container.setting.resource in (QUOTA, CPUS, BURST)
                ]
                executor.declare(strategy.name, own)
        result = executor.apply()
        assert result.problems == {}, "the model kernel refuses a child outside its parent and an empty CPU set"
        _check_cpus_and_quotas(view, kernel)
    executor.restore_everything()
    assert kernel.values == before


class BurstKernel(ModelKernel):
    """Refuses a burst above the quota as mainline does."""

    def mkdir(self, *directories: str, cpus: str = "0-7") -> None:
        super().mkdir(*directories, cpus=cpus)
        self.values.update({Setting(BURST, directory): 0 for directory in directories})

    def write(self, setting: Setting, value: Value) -> None:
        pair = {name: self.values.get(Setting(name, setting.cgroup_dir), 0) for name in (QUOTA, BURST)}
        pair[setting.resource] = value
        if setting.resource in (QUOTA, BURST) and pair[QUOTA] != -1 and int(pair[BURST]) > int(pair[QUOTA]):
            raise WriteRefused(setting.label, str(value), 22, "value not acceptable here")
        super().write(setting, value)


def _check_cpus_and_quotas(view: NodeView, kernel: ModelKernel) -> None:
    rules = view.cpu_rules
    assert rules is not None
    for pod in view.pods:
        for container in pod.containers:
            cpus = CPUSet.parse(str(kernel.values[Setting(CPUS, container.meta.cgroup_dir)]))
            burst = kernel.values[Setting(BURST, container.meta.cgroup_dir)]
            quota = kernel.values[Setting(QUOTA, container.meta.cgroup_dir)]
            if pod.meta.kube_qos == "BestEffort":
                assert cpus <= unsuppressed(view), "best effort does not run on CPUs of LSE pods"
            elif pod.cpuset:
                assert cpus == pod.cpuset
            elif joined(rules.shared) and pod.raw_qos == "LS" and not pod.numa_nodes:
                assert cpus == joined(rules.shared)
            if cpus == pod.cpuset and pod.raw_qos in ("LSE", "LSR", ""):
                assert quota == -1
            limit = normalized_quota(_limit(pod), view.ratio_of(pod))
            if limit > 0 and pod.raw_qos == "LS" and not pod.cpuset:
                assert limit <= int(quota) <= 3 * limit
                assert int(burst) == limit, "the maximum of mainline kernels"

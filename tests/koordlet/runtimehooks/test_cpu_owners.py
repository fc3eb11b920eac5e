"""CPU suppress, CPU sets, bursts and normalization at once, over a kernel that refuses what the real one refuses: no
conflict leaves a problem, nobody ends up outside his pool or his parent, and all of it can be given back.
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
    containers = tuple(replace(one, cpu=300, throttled=0.3) for one in pod.containers)
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
).map(lambda rows: [pod_of(n, *who, limit, cpus, node) for n, (who, limit, cpus, node) in enumerate(rows)])
nodes = st.tuples(st.floats(0.5, 3), st.booleans(), st.integers(0, 8000), st.booleans(), st.booleans())


def _limit(pod: PodView) -> int:
    """Of each of its containers, in microseconds."""
    return -1 if pod.meta.pod is None else container_quota(pod.meta.pod.spec.containers[0])


def view_of(found: list[PodView], node: tuple[float, bool, int, bool, bool], held: ModelKernel, now: float) -> NodeView:
    ratio, static, used, suppress, pinned = node
    own = CPUSet().union(*(pod.cpuset for pod in found))
    exclusive = CPUSet().union(*(pod.cpuset for pod in found if pod.raw_qos == "LSE"))
    shared = {n: CPUSet(range(4 * n, 4 * n + 4)) - own for n in range(2)}
    best_effort = {n: CPUSet(range(4 * n, 4 * n + 4)) - exclusive for n in range(2)}
    rules = CPURules(shared, best_effort, kubelet_static=static)
    slo = {**SLO, "resourceUsedThresholdWithBE": {**SLO["resourceUsedThresholdWithBE"], "enable": suppress}}
    return make_view(
        now=now, pods=tuple(found), qos_dirs=DIRS, slo=slo, node=make_node("8"), cpu=used, topology=flat(8, 4),
        cpu_rules=rules, kubelet_static=static, normalization=ratio if pinned else 1.0, current=held.values.get,
    )  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(pods, st.lists(nodes, min_size=1, max_size=4), st.booleans())
def test_together_they_never_ask_for_what_the_kernel_refuses(found, history, manager) -> None:
    kernel = BurstKernel()
    kernel.mkdir("kubepods", "kubepods/burstable", "kubepods/besteffort")
    for pod in found:
        kernel.mkdir(pod.meta.cgroup_dir, *(one.meta.cgroup_dir for one in pod.containers))
        assert pod.meta.pod is not None
        kernel.values[Setting(QUOTA, pod.meta.cgroup_dir)] = pod_quota(pod.meta.pod)
        for one, spec in zip(pod.containers, pod.meta.pod.spec.containers, strict=True):
            kernel.values[Setting(QUOTA, one.meta.cgroup_dir)] = container_quota(spec)
    before = dict(kernel.values)
    strategies = [
        CPUSuppress(be_cpu_manager=manager), CPUSetAllocator(be_cpu_manager=manager), CPUNormalization(),
        CPUBurst(interval=1, random=Random(1)),
    ]  # fmt: skip
    executor = Executor(kernel, Ledger(None, "boot"), Recorder(), Registries(), rules=RULES)  # type: ignore[arg-type]
    for second, node in enumerate(history):
        view = view_of(found, node, kernel, 1000.0 + second)
        for strategy in strategies:
            decision = strategy.decide(view)
            if decision is not None:
                mine = [one for one in decision.updates if one.setting.resource in (QUOTA, CPUS, BURST)]
                executor.declare(strategy.name, mine)
        result = executor.apply()
        assert result.problems == {}, "the model kernel refuses a child outside its parent and a CPU set of nothing"
        _everybody_is_where_he_belongs(view, kernel)
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


def _everybody_is_where_he_belongs(view: NodeView, kernel: ModelKernel) -> None:
    rules = view.cpu_rules
    assert rules is not None
    for pod in view.pods:
        for container in pod.containers:
            cpus = CPUSet.parse(str(kernel.values[Setting(CPUS, container.meta.cgroup_dir)]))
            burst = kernel.values[Setting(BURST, container.meta.cgroup_dir)]
            quota = kernel.values[Setting(QUOTA, container.meta.cgroup_dir)]
            if pod.meta.kube_qos == "BestEffort":
                assert cpus <= unsuppressed(view), "best effort is off what LSE pods have for themselves"
            elif pod.cpuset:
                assert cpus == pod.cpuset
            elif joined(rules.shared) and pod.raw_qos == "LS" and not pod.numa_nodes:
                assert cpus == joined(rules.shared)
            if cpus == pod.cpuset and pod.raw_qos in ("LSE", "LSR", ""):
                assert quota == -1
            limit = normalized_quota(_limit(pod), view.ratio_of(pod))
            if limit > 0 and pod.raw_qos == "LS" and not pod.cpuset:
                assert limit <= int(quota) <= 3 * limit
                assert int(burst) == limit, "as much as mainline allows"

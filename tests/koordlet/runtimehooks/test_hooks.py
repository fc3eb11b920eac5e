"""Hooks: stages, order, overwriting, failure policies."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.prometheus import Registries
from koordlet.qosmanager.engine.view import PodView
from koordlet.runtimehooks.contexts import pod_of
from koordlet.runtimehooks.hooks.batchresource import BatchResource
from koordlet.runtimehooks.hooks.gpu import GPUEnvInject
from koordlet.runtimehooks.hooks.groupidentity import GroupIdentity
from koordlet.runtimehooks.hooks.rdma import RDMADeviceInject
from koordlet.runtimehooks.stages import (
    NO_CHANGE,
    WRITABLE,
    ContainerMount,
    FailurePolicy,
    HookAnswer,
    HookContainer,
    HookContext,
    HookError,
    Hooks,
    HookStage,
    MountDirectory,
    followed_pods,
)
from koordlet.statesinformer.pods.deviceallocation import devices_of_pod
from koordlet.system.devices.rdma import DeviceNode
from tests.koordlet.qosmanager.conftest import make_pod, make_view
from tests.present import present

SANDBOX, CREATE, UPDATE = (
    HookStage.PRE_RUN_POD_SANDBOX,
    HookStage.PRE_CREATE_CONTAINER,
    HookStage.PRE_UPDATE_CONTAINER_RESOURCES,
)
GIB = 1 << 30
EXTENDED = "node.koordinator.sh/extended-resource-spec"


class Plugin:
    """Returns a given answer or raises a given error."""

    def __init__(self, hook: str, answer: HookAnswer | Exception = NO_CHANGE, *stages: HookStage) -> None:
        self.hook, self.stages, self.result = hook, stages or (SANDBOX,), answer
        self.calls = 0

    def answer(self, stage: HookStage, context: HookContext, view: Any) -> HookAnswer:
        self.calls += 1
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


def context(
    qos: str = "BE", container: str = "", parent: str = "/kubepods/besteffort/pod1", **annotations: Any
) -> HookContext:
    """`annotations`: the extended resources, others by the last part of their key."""
    keys = {"extended": EXTENDED, "cpu_qos": "koordinator.sh/cpuQOS"}
    texts = {keys[name]: value if isinstance(value, str) else json.dumps(value) for name, value in annotations.items()}
    pod = pod_of("job", "default", "1", {"koordinator.sh/qosClass": qos} if qos else {}, texts, parent)
    return HookContext(pod, HookContainer(container) if container else None)


def hooks(*plugins: Any, policy: FailurePolicy = FailurePolicy.IGNORE) -> Hooks:
    return Hooks(plugins, Registries(), policy=policy)


def test_hooks_of_a_stage_run_in_the_order_of_their_names() -> None:
    plugins = hooks(Plugin("b"), Plugin("a"), Plugin("gpu env inject"), Plugin("Z"), Plugin("c", NO_CHANGE, CREATE))
    assert plugins.names(SANDBOX) == ("Z", "a", "b", "gpu env inject")
    assert plugins.stages == (SANDBOX, CREATE)


def test_duplicate_plugin_names_in_a_stage_are_an_error() -> None:
    hooks(Plugin("a"), Plugin("a", NO_CHANGE, CREATE))
    with pytest.raises(ValueError, match="two hooks of stage PreRunPodSandbox are named 'a'"):
        hooks(Plugin("a"), Plugin("b"), Plugin("a"))


def test_later_hooks_overwrite_values_and_append_to_lists() -> None:
    mount_a, mount_b = ContainerMount("/a", "/a"), ContainerMount("/b", "/b")
    first = HookAnswer(cpu_shares=2, cfs_quota=7, env={"A": "1", "B": "1"}, mounts=(mount_a,))
    second = HookAnswer(cfs_quota=-1, cpuset="", env={"B": "2"}, mounts=(mount_b,))
    answer = hooks(Plugin("a", first), Plugin("b", second)).answer(SANDBOX, context(), make_view())
    assert answer == HookAnswer(
        cpu_shares=2, cfs_quota=-1, cpuset="", env={"A": "1", "B": "2"}, mounts=(mount_a, mount_b)
    )


answers = st.builds(
    HookAnswer,
    cpu_shares=st.none() | st.integers(2, 9),
    cfs_quota=st.none() | st.just(-1),
    cpuset=st.none() | st.sampled_from(["", "0"]),
    env=st.dictionaries(st.sampled_from("AB"), st.sampled_from("12")),
    mounts=st.lists(st.builds(ContainerMount, st.just("/a"), st.sampled_from(["/b", "/c"]))).map(tuple),
)


@given(answers, answers, answers)
def test_merging_answers_is_associative_with_a_neutral_element(
    answer: HookAnswer, two: HookAnswer, three: HookAnswer
) -> None:
    assert (answer | two) | three == answer | (two | three)
    assert answer | NO_CHANGE == NO_CHANGE | answer == answer


FAILURES = {
    "its own words": (HookError("no device"), "hook b, pod default/job: no device"),
    "a fault of its own": (KeyError("x"), r"hook b, pod default/job: KeyError\('x'\)"),
}


@pytest.mark.parametrize(("error", "message"), FAILURES.values(), ids=FAILURES)
def test_a_failing_hook_is_omitted_or_ends_the_stage(error: Exception, message: str) -> None:
    first, last = Plugin("a", HookAnswer(cpu_shares=2)), Plugin("c", HookAnswer(cfs_quota=5))
    result = hooks(first, Plugin("b", error), last).answer(SANDBOX, context(), make_view())
    assert result == HookAnswer(cpu_shares=2, cfs_quota=5)
    with pytest.raises(HookError, match=message):
        hooks(first, Plugin("b", error), last, policy=FailurePolicy.FAIL).answer(SANDBOX, context(), make_view())
    assert last.calls == 1


def test_time_and_failures_are_counted_once_the_node_is_known() -> None:
    registries = Registries()
    plugins = Hooks([Plugin("a"), Plugin("b", HookError("no"))], registries)
    plugins.answer(SANDBOX, context(), make_view())
    registries.node = "n"
    plugins.answer(SANDBOX, context(), make_view())
    (family,) = [f for f in registries.internal.collect() if "runtime_hook_invoked" in f.name]
    counts = {(s.labels["hook"], s.labels["status"]): s.value for s in family.samples if s.name.endswith("_count")}
    assert counts == {("a", "succeeded"): 1, ("b", "failed"): 1}


TWO = {
    "containers": {
        "c0": {
            "requests": {"kubernetes.io/batch-cpu": "500", "kubernetes.io/batch-memory": "1Gi"},
            "limits": {"kubernetes.io/batch-cpu": "1000", "kubernetes.io/batch-memory": "1Gi"},
        },
        "c1": {
            "requests": {"kubernetes.io/batch-cpu": "500", "kubernetes.io/batch-memory": "1Gi"},
            "limits": {"kubernetes.io/batch-cpu": "500", "kubernetes.io/batch-memory": "1Gi"},
        },
    }
}
POD = HookAnswer(cpu_shares=1024, cfs_quota=150_000, memory_limit=2 * GIB)
FIRST = HookAnswer(cpu_shares=512, cfs_quota=100_000, memory_limit=GIB)
BATCH = {
    "the pod": (SANDBOX, context(extended=TWO), POD),
    "a container": (CREATE, context(container="c0", extended=TWO), FIRST),
    "its update": (UPDATE, context(container="c1", extended=TWO), HookAnswer(cpu_shares=512, cfs_quota=50_000,
                                                                        memory_limit=GIB)),
    "a container that asks for nothing": (CREATE, context(container="c2", extended=TWO), NO_CHANGE),
    "an LS pod": (SANDBOX, context("LS", extended=TWO), NO_CHANGE),
    "no annotation": (SANDBOX, context(), NO_CHANGE),
    "no containers (spec 03 §8.16)": (SANDBOX, context(extended={"containers": {}}), NO_CHANGE),
}  # fmt: skip


@pytest.mark.parametrize(("stage", "hook_context", "answer"), BATCH.values(), ids=BATCH)
def test_batch_resources(stage: HookStage, hook_context: HookContext, answer: HookAnswer) -> None:
    assert BatchResource().answer(stage, hook_context, make_view()) == answer


def test_batch_resources_follow_the_nodes_speed_and_its_suppression() -> None:
    hook_context = context(extended=TWO)
    assert BatchResource().answer(SANDBOX, hook_context, make_view(normalization=1.2)).cfs_quota == 125_000
    suppressed = {"resourceUsedThresholdWithBE": {"enable": True, "cpuSuppressPolicy": "cfsQuota"}}
    assert BatchResource().answer(SANDBOX, hook_context, make_view(slo=suppressed)).cfs_quota == -1


def test_strategy_and_hook_agree() -> None:
    """The strategy and the hook have the same rule for a pod that both know."""
    containers = [{"name": name, "resources": amounts} for name, amounts in TWO["containers"].items()]
    pod = make_pod("job", qos="BE", kube="BestEffort", containers=2, spec={"containers": containers})
    decided = {u.setting.resource: u.value for u in present(BatchResource().decide(make_view(pods=(pod,)))).updates
               if u.setting.cgroup_dir == pod.meta.cgroup_dir}  # fmt: skip
    assert decided == {
        "cpu.shares": POD.cpu_shares,
        "cpu.cfs_quota_us": POD.cfs_quota,
        "memory.limit_in_bytes": POD.memory_limit,
    }


@pytest.mark.parametrize("broken", ["{", '{"containers": 1}', '{"containers": {"c0": {"limits": {"a": "x"}}}}'])
def test_a_malformed_annotation_fails_the_hook_and_names_it(broken: str) -> None:
    strict = hooks(BatchResource(), policy=FailurePolicy.FAIL)
    with pytest.raises(HookError, match=r"hook BatchResource, pod default/job.*extended-resource-spec"):
        strict.answer(SANDBOX, context(extended=broken), make_view())


ALL_ON = {"resourceQOSStrategy": {f"{name}Class": {"cpuQOS": {"enable": True}} for name in ("lsr", "ls", "be")}}
BURSTABLE = "/kubepods/burstable/pod1"
IDENTITIES = {
    "BE": (context("BE"), ("cpu.bvt_warp_ns",), HookAnswer(cpu_bvt=-1)),
    "LS": (context("LS", parent=BURSTABLE), ("cpu.bvt_warp_ns",), HookAnswer(cpu_bvt=2)),
    "an LS pod that steps back": (
        context("LS", parent=BURSTABLE, cpu_qos={"enable": True, "groupIdentity": -1}),
        ("cpu.bvt_warp_ns",),
        HookAnswer(cpu_bvt=-1),
    ),
    "by path": (context("", parent="/kubepods/pod1"), ("cpu.bvt_warp_ns",), HookAnswer(cpu_bvt=2)),
    "a stock kernel": (context("BE", parent=BURSTABLE), ("cpu.idle",), HookAnswer(cpu_idle=1)),
    "below an idle directory": (context("BE"), ("cpu.idle",), NO_CHANGE),
}


@pytest.mark.parametrize(("hook_context", "kernel", "answer"), IDENTITIES.values(), ids=IDENTITIES)
def test_group_identity(hook_context: HookContext, kernel: tuple[str, ...], answer: HookAnswer) -> None:
    plugin = GroupIdentity(lambda resource, directory: resource in kernel)
    assert plugin.answer(SANDBOX, hook_context, make_view(slo=ALL_ON)) == answer
    assert plugin.answer(SANDBOX, hook_context, make_view()) == NO_CHANGE, "no class is on"


def test_an_identity_out_of_range_fails_for_every_class() -> None:
    plugin = GroupIdentity(lambda resource, directory: True)
    for qos in ("LS", "BE"):
        hook_context = context(qos, cpu_qos={"enable": True, "groupIdentity": 3})
        with pytest.raises(HookError, match=r"koordinator.sh/cpuQOS.*3 is not within"):
            hooks(plugin, policy=FailurePolicy.FAIL).answer(SANDBOX, hook_context, make_view(slo=ALL_ON))


ALLOCATED = "scheduling.koordinator.sh/device-allocated"
HAMI = {"koordinator.sh/gpu-isolation-provider": "HAMi-core"}
HALF = {"koordinator.sh/gpu-memory-ratio": "50", "koordinator.sh/gpu-memory": "16Gi", "koordinator.sh/gpu-core": "50"}
LIBRARY = "/usr/local/vgpu/libvgpu.so"


def with_devices(devices: Any, labels: dict[str, str] | None = None) -> HookContext:
    text = devices if isinstance(devices, str) else json.dumps(devices)
    pod = pod_of("job", "default", "1", labels or {}, {ALLOCATED: text}, "/kubepods/pod1")
    return HookContext(pod, HookContainer("main"))


def gpus(*resources: dict[str, str]) -> dict[str, Any]:
    return {"gpu": [{"minor": minor, "resources": amounts} for minor, amounts in enumerate(resources)]}


VISIBLE = {"NVIDIA_VISIBLE_DEVICES": "0"}
BOUNDED = {
    **VISIBLE,
    "CUDA_DEVICE_MEMORY_LIMIT": "17179869184",
    "CUDA_DEVICE_SM_LIMIT": "50",
    "LD_PRELOAD": LIBRARY,
}
GPUS = {
    "two": (gpus({}, {}), {}, {"NVIDIA_VISIBLE_DEVICES": "0,1"}),
    "another kind": ({"rdma": [{"minor": 0}]}, {}, {}),
    "half of one, without isolation": (gpus(HALF), {}, VISIBLE),
    "half of one": (gpus(HALF), HAMI, BOUNDED),
    "a whole one": (gpus({**HALF, "koordinator.sh/gpu-memory-ratio": "100"}), HAMI, VISIBLE),
}


@pytest.mark.parametrize(("devices", "labels", "env"), GPUS.values(), ids=GPUS)
def test_gpus(devices: Any, labels: dict[str, str], env: dict[str, str]) -> None:
    assert GPUEnvInject(LIBRARY).answer(CREATE, with_devices(devices, labels), make_view()).env == env


def test_a_bounded_gpu_needs_mounts_and_the_monitor_a_directory() -> None:
    hook_context = with_devices(gpus(HALF), HAMI)
    shared = ContainerMount(
        "/usr/local/vgpu/vgpulock", "/tmp/vgpulock", options=WRITABLE, directory=MountDirectory.SHARED
    )
    both = (ContainerMount(LIBRARY, LIBRARY, options=("rbind", "ro", "nosuid", "nodev")), shared)
    assert GPUEnvInject(LIBRARY).answer(CREATE, hook_context, make_view()).mounts == both
    watched = GPUEnvInject(LIBRARY, monitor=True).answer(CREATE, hook_context, make_view())
    source = "/usr/local/vgpu/containers/1_main"
    own = ContainerMount(source, "/usr/local/vgpu", options=WRITABLE, directory=MountDirectory.FRESH)
    assert watched.mounts == (*both, own)
    assert watched.env["CUDA_DEVICE_MEMORY_SHARED_CACHE"] == "/usr/local/vgpu/1_main.cache"


BROKEN = {
    "not JSON": ("{", "device-allocated"),
    "no ratio": (gpus({}), r"gpu 0 has no koordinator.sh/gpu-memory-ratio"),
    "no memory": (gpus({"koordinator.sh/gpu-memory-ratio": "50"}), r"gpu 0 has no koordinator.sh/gpu-memory$"),
}


@pytest.mark.parametrize(("devices", "message"), BROKEN.values(), ids=BROKEN)
def test_incomplete_gpu_allocations_are_reported(devices: Any, message: str) -> None:
    with pytest.raises(HookError, match=message):
        hooks(GPUEnvInject(LIBRARY), policy=FailurePolicy.FAIL).answer(CREATE, with_devices(devices, HAMI), make_view())


def holder(devices: Any) -> PodView:
    """A listed pod with accepted devices."""
    pod = make_pod("holder", annotations={ALLOCATED: json.dumps(devices)})
    assert pod.meta.pod is not None
    return replace(pod, meta=replace(pod.meta, device_allocation=devices_of_pod(pod.meta.pod)))


def test_a_device_of_another_pod_is_refused() -> None:
    plugin = GPUEnvInject(LIBRARY)
    view = make_view(pods=(holder(gpus({})),))
    with pytest.raises(HookError, match="pod default/holder has gpu 0"):
        plugin.answer(CREATE, with_devices(gpus({})), view)
    shared = make_view(pods=(holder(gpus(HALF)),))
    assert plugin.answer(CREATE, with_devices(gpus(HALF)), shared).env == VISIBLE
    with pytest.raises(HookError, match="pod default/holder has gpu 0"):
        plugin.answer(CREATE, with_devices(gpus({"koordinator.sh/gpu-memory-ratio": "51"})), shared)


def test_a_device_that_the_node_does_not_have_is_refused() -> None:
    with pytest.raises(HookError, match="this node has no gpu 0"):
        GPUEnvInject(LIBRARY, minors={"gpu": {1}}.get).answer(CREATE, with_devices(gpus({})), make_view())
    with pytest.raises(HookError, match="this node has no rdma 3"):
        RDMADeviceInject(lambda address: pytest.fail("opened"), minors={"rdma": {1}}.get).answer(
            CREATE, with_devices({"rdma": [{"minor": 3}]}), make_view()
        )


def test_rdma_functions_virtual_before_physical() -> None:
    addresses: list[str] = []

    def find(address: str) -> DeviceNode:
        addresses.append(address)
        return DeviceNode(f"/dev/infiniband/uverbs{len(addresses)}", 231, len(addresses), 0o640)

    allocated = {
        "rdma": [
            {"minor": 0, "id": "0000:01:00.0"},
            {"minor": 1, "id": "0000:02:00.0", "extension": {"vfs": [{"minor": 3, "busID": "0000:02:00.3"}]}},
        ]
    }
    answer = RDMADeviceInject(find).answer(CREATE, with_devices(allocated), make_view())
    assert addresses == ["", "0000:01:00.0", "0000:02:00.3"]
    assert [(device.type, device.major, device.minor, device.mode) for device in answer.devices] == [
        ("c", 231, n, 0o640) for n in (1, 2, 3)
    ]


def test_settings_follow_listed_and_announced_pods() -> None:
    pods = (make_pod("runs"), make_pod("done", phase="Succeeded"), make_pod("vm", spec={"runtimeClassName": "kata"}))
    announced = context().pod
    view = make_view(pods=pods, announced=(announced,))
    assert [pod.meta.name for pod in followed_pods(view)] == ["runs", "job"]

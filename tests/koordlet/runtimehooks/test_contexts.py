"""Hook contexts from requests: directories, classes, extended resources, container ids; messages and responses."""

from __future__ import annotations

import pytest

from koordlet.api.hooks.api_pb2 import (
    ContainerResourceHookRequest,
    LinuxContainerResources,
    PodSandboxHookRequest,
)
from koordlet.runtimehooks.contexts import cgroup_dir, container_id, pod_of
from koordlet.runtimehooks.protocols.wire import (
    container_context,
    container_response,
    sandbox_context,
    sandbox_response,
)
from koordlet.runtimehooks.stages import HookAnswer, HookError

SLICE = "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod1_2.slice"
DIRECTORIES = {
    "cgroupfs": ("/kubepods/besteffort/pod1", "kubepods/besteffort/pod1", "BestEffort"),
    "cgroupfs, guaranteed": ("/kubepods/pod1", "kubepods/pod1", "Guaranteed"),
    "systemd": (f"/{SLICE}", SLICE, "BestEffort"),
    "as Docker is told": ("kubepods-besteffort-pod1_2.slice", SLICE, "BestEffort"),
    "another slice": ("system.slice", "system.slice", "Guaranteed"),
    "nothing": ("", "", "Guaranteed"),
}


@pytest.mark.parametrize(("parent", "directory", "kube_qos"), DIRECTORIES.values(), ids=DIRECTORIES)
def test_directories(parent: str, directory: str, kube_qos: str) -> None:
    assert cgroup_dir(parent) == directory
    pod = pod_of("p", "ns", "1", {}, {}, parent)
    assert (pod.meta.cgroup_dir, pod.meta.kube_qos, pod.active) == (directory, kube_qos, True)


def test_a_path_with_parent_references_is_rejected() -> None:
    with pytest.raises(HookError, match="leads upwards"):
        pod_of("p", "ns", "1", {}, {}, "/kubepods/../../etc")


@pytest.mark.parametrize(
    ("runtime", "digest", "annotations", "expected"),
    [
        ("containerd", "abc", {}, "containerd://abc"),
        ("containerd", "abc", {"io.kubernetes.docker.type": "container"}, "docker://abc"),
        ("cri-o", "abc", {}, "cri-o://abc"),
        ("containerd", "", {}, ""),
    ],
    ids=["the node's", "Docker's", "cri-o's", "not made yet"],
)
def test_container_ids(runtime: str, digest: str, annotations: dict[str, str], expected: str) -> None:
    assert container_id(runtime, digest, annotations) == expected


@pytest.mark.parametrize(("quota", "expected"), [(None, None), (0, None), (-1, -1), (25_000, 25_000)])
def test_the_requested_quota_is_read(quota: int | None, expected: int | None) -> None:
    resources = None if quota is None else LinuxContainerResources(cpu_quota=quota)
    context = container_context(ContainerResourceHookRequest(container_resources=resources), "containerd", "")
    assert context.container is not None
    assert context.container.cfs_quota == expected


def test_a_sandboxs_context_and_response() -> None:
    request = PodSandboxHookRequest(
        pod_meta={"name": "p", "namespace": "ns", "uid": "1"},
        runtime_handler="kata",
        labels={"koordinator.sh/qosClass": "LS"},
        annotations={"a": "1"},
        cgroup_parent="/kubepods/burstable/pod1",
    )
    context = sandbox_context(request)
    assert (context.key, context.pod.raw_qos, context.annotations) == ("pod ns/p", "LS", {"a": "1"})
    assert context.pod.meta.pod is not None
    assert context.pod.meta.pod.spec.runtime_class_name == "kata"
    untouched = sandbox_response(request, HookAnswer(cpu_bvt=2))
    assert not untouched.HasField("resources")
    assert (dict(untouched.labels), dict(untouched.annotations)) == (dict(request.labels), {"a": "1"})
    assert untouched.cgroup_parent == request.cgroup_parent
    assert sandbox_response(request, HookAnswer(cpu_shares=2)).resources == LinuxContainerResources(cpu_shares=2)


def test_a_containers_response_keeps_unchanged_fields() -> None:
    resources = LinuxContainerResources(
        cpu_period=50_000, cpu_quota=25_000, cpu_shares=512, oom_score_adj=-997, cpuset_mems="0", unified={"a": "b"}
    )
    request = ContainerResourceHookRequest(
        pod_meta={"name": "p", "namespace": "ns", "uid": "1"},
        container_meta={"name": "c", "id": "abc"},
        container_annotations={"k": "v"},
        container_resources=resources,
        container_envs={"A": "1"},
    )
    context = container_context(request, "containerd", "kubepods/besteffort/pod1")
    assert context.container is not None
    assert (context.key, context.container.id) == ("pod ns/p, container c", "containerd://abc")
    assert context.pod.meta.kube_qos == "BestEffort", "the directory known here, where the request names none"
    response = container_response(request, HookAnswer(cfs_quota=20_000, cpuset="", env={"B": "2"}))
    expected = LinuxContainerResources()
    expected.CopyFrom(resources)
    expected.cpu_quota, expected.cpu_period, expected.cpuset_cpus = 20_000, 100_000, ""
    assert response.container_resources == expected
    assert (dict(response.container_envs), dict(response.container_annotations)) == ({"A": "1", "B": "2"}, {"k": "v"})
    plain = container_response(request, HookAnswer(cfs_quota=-1))
    assert plain.container_resources.cpu_period == 50_000
    assert not plain.container_envs  # the container's own variables stay unchanged

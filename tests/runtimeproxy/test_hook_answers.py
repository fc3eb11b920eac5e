"""Invalid responses of hook servers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.api.hooks.api_pb2 import (
    ContainerResourceHookRequest,
    ContainerResourceHookResponse,
    LinuxContainerResources,
    PodSandboxHookRequest,
    PodSandboxHookResponse,
)
from runtimeproxy.hooks.validate import InvalidHookResponse, check, is_list


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ("0", True), ("0-3", True), ("0-3,8,10-11", True), ("3,1", True),
        ("", False), ("3-1", False), ("0-", False), ("a", False), ("0,,1", False), ("0-3\n", False), ("-1", False),
        ("99999", False), ("0 1", False), ("0-1-2", False), ("٣", False),
    ],
)  # fmt: skip
def test_lists(text: str, valid: bool) -> None:
    assert is_list(text) is valid


def resources(**fields: Any) -> dict[str, Any]:
    return {"container_resources": LinuxContainerResources(**fields)}


@pytest.mark.parametrize(
    ("answer", "named"),
    [
        pytest.param(resources(cpuset_cpus="0-"), "cpuset_cpus", id="cpus"),
        pytest.param(resources(cpuset_mems="all"), "cpuset_mems", id="mems"),
        pytest.param(resources(memory_limit_in_bytes=-2), "memory_limit_in_bytes", id="memory"),
        pytest.param(resources(cpu_quota=-5), "cpu_quota", id="quota"),
        pytest.param(resources(unified={"../x": "1"}), "unified", id="unified-path"),
        pytest.param(resources(unified={"cpu.idle": "\0"}), "unified", id="unified-value"),
        pytest.param({"pod_cgroup_parent": "/kubepods/../etc"}, "pod_cgroup_parent", id="parent-up"),
        pytest.param({"pod_cgroup_parent": "/"}, "the root", id="parent-root"),
        pytest.param({"pod_cgroup_parent": "//./"}, "the root", id="parent-root-in-disguise"),
        pytest.param({"pod_cgroup_parent": "/kubepods\n"}, "pod_cgroup_parent", id="parent-line"),
        pytest.param({"container_envs": {"": "1"}}, "container_envs", id="variable-without-name"),
        pytest.param({"container_envs": {"A=B": "1"}}, "A=B", id="variable-with-equals"),
        pytest.param({"container_envs": {"A": "\0"}}, "container_envs", id="variable-with-zero"),
    ],
)
def test_refused(answer: dict[str, Any], named: str) -> None:
    response = ContainerResourceHookResponse(**answer)
    with pytest.raises(InvalidHookResponse, match=named):
        check(ContainerResourceHookRequest(), response)
    # but the request's own values are never the server's fault
    echoed = ContainerResourceHookRequest(
        container_resources=response.container_resources,
        pod_cgroup_parent=response.pod_cgroup_parent,
        container_envs=response.container_envs,
    )
    check(echoed, response)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(resources(memory_limit_in_bytes=-1, cpu_quota=-1), id="unlimited"),
        pytest.param(resources(oom_score_adj=5000), id="score-is-passed-over-later"),
        pytest.param(resources(cpuset_cpus=""), id="no-cpuset"),
        pytest.param({"pod_cgroup_parent": "kubepods-besteffort-pod1.slice"}, id="systemd"),
        pytest.param({"pod_cgroup_parent": "/kubepods/besteffort/pod..1"}, id="dots-in-a-name"),
        pytest.param({"container_envs": {"A": "x=y\nz", "É": ""}}, id="odd-variables"),
        pytest.param(resources(unified={"cpu.max": "max 100000", "hugetlb.2MB.max": "0"}), id="unified"),
    ],
)
def test_allowed(answer: dict[str, Any]) -> None:
    check(ContainerResourceHookRequest(), ContainerResourceHookResponse(**answer))


def test_sandboxes_too() -> None:
    with pytest.raises(InvalidHookResponse, match="cgroup_parent"):
        check(PodSandboxHookRequest(), PodSandboxHookResponse(cgroup_parent="../.."))
    with pytest.raises(InvalidHookResponse, match=r"resources\.cpu_shares"):
        check(PodSandboxHookRequest(), PodSandboxHookResponse(resources=LinuxContainerResources(cpu_shares=-7)))


@given(st.lists(st.integers(min_value=0, max_value=65535), min_size=1))
def test_every_list_of_processors_is_one(processors: list[int]) -> None:
    assert is_list(",".join(map(str, processors)))

"""The hook proto holds the field numbers of spec 01 §8, and its stubs talk over a unix socket."""

from collections.abc import Iterator
from concurrent import futures
from pathlib import Path

import grpc
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from grpc import ServicerContext

from koordlet.api.hooks import SERVICE, api_pb2, api_pb2_grpc

# message -> field -> (number, type); map<string,string> is "map".
FIELDS = {
    "PodSandboxMetadata": {"name": (1, "string"), "uid": (2, "string"), "namespace": (3, "string"),
                           "attempt": (4, "uint32")},
    "PodSandboxHookRequest": {"pod_meta": (1, "PodSandboxMetadata"), "runtime_handler": (2, "string"),
                              "labels": (3, "map"), "annotations": (4, "map"), "cgroup_parent": (5, "string"),
                              "overhead": (6, "LinuxContainerResources"),
                              "resources": (7, "LinuxContainerResources")},
    "PodSandboxHookResponse": {"labels": (1, "map"), "annotations": (2, "map"), "cgroup_parent": (3, "string"),
                               "resources": (4, "LinuxContainerResources")},
    "LinuxContainerResources": {"cpu_period": (1, "int64"), "cpu_quota": (2, "int64"), "cpu_shares": (3, "int64"),
                                "memory_limit_in_bytes": (4, "int64"), "oom_score_adj": (5, "int64"),
                                "cpuset_cpus": (6, "string"), "cpuset_mems": (7, "string"),
                                "hugepage_limits": (8, "repeated HugepageLimit"), "unified": (9, "map"),
                                "memory_swap_limit_in_bytes": (10, "int64")},
    "HugepageLimit": {"page_size": (1, "string"), "limit": (2, "uint64")},
    "ContainerMetadata": {"name": (1, "string"), "attempt": (2, "uint32"), "id": (3, "string")},
    "ContainerResourceHookRequest": {"pod_meta": (1, "PodSandboxMetadata"),
                                     "container_meta": (2, "ContainerMetadata"),
                                     "container_annotations": (3, "map"),
                                     "container_resources": (4, "LinuxContainerResources"),
                                     "pod_resources": (5, "LinuxContainerResources"), "pod_annotations": (6, "map"),
                                     "pod_labels": (7, "map"), "pod_cgroup_parent": (8, "string"),
                                     "container_envs": (9, "map")},
    "ContainerResourceHookResponse": {"container_annotations": (1, "map"),
                                      "container_resources": (2, "LinuxContainerResources"),
                                      "pod_cgroup_parent": (3, "string"), "container_envs": (4, "map")},
}  # fmt: skip

RPCS = {
    "PreRunPodSandboxHook": "PodSandbox",
    "PostStopPodSandboxHook": "PodSandbox",
    "PreCreateContainerHook": "ContainerResource",
    "PreStartContainerHook": "ContainerResource",
    "PostStartContainerHook": "ContainerResource",
    "PostStopContainerHook": "ContainerResource",
    "PreUpdateContainerResourcesHook": "ContainerResource",
}

SCALARS = {3: "int64", 4: "uint64", 9: "string", 13: "uint32"}


def fields_of(message: Descriptor) -> dict[str, tuple[int, str]]:
    def kind(field: FieldDescriptor) -> str:
        if field.message_type is None:
            return SCALARS[field.type]
        if field.message_type.GetOptions().map_entry:
            entry = field.message_type.fields_by_name
            assert {SCALARS[entry["key"].type], SCALARS[entry["value"].type]} == {"string"}
            return "map"
        return ("repeated " if field.is_repeated else "") + field.message_type.name

    return {field.name: (field.number, kind(field)) for field in message.fields}


@pytest.mark.parametrize("name", FIELDS)
def test_numbers_and_types(name: str) -> None:
    assert fields_of(api_pb2.DESCRIPTOR.message_types_by_name[name]) == FIELDS[name]


def test_nothing_beyond_the_table() -> None:
    assert set(api_pb2.DESCRIPTOR.message_types_by_name) == set(FIELDS)
    assert api_pb2.DESCRIPTOR.package == "runtime.v1alpha1"


def test_service() -> None:
    service = api_pb2.DESCRIPTOR.services_by_name["RuntimeHookService"]
    assert service.full_name == SERVICE
    assert {m.name: (m.input_type.name, m.output_type.name) for m in service.methods} == {
        name: (f"{subject}HookRequest", f"{subject}HookResponse") for name, subject in RPCS.items()
    }
    assert not any(m.client_streaming or m.server_streaming for m in service.methods)


def test_bytes_on_the_wire() -> None:
    """A hand-made message: field 2, length-delimited; then field 10 of the nested resources, varint -1."""
    request = api_pb2.PodSandboxHookRequest(
        runtime_handler="runc", overhead=api_pb2.LinuxContainerResources(memory_swap_limit_in_bytes=-1)
    )
    assert request.SerializeToString() == b"\x12\x04runc\x32\x0b\x50" + b"\xff" * 9 + b"\x01"


class Echo(api_pb2_grpc.RuntimeHookServiceServicer):
    def PreCreateContainerHook(
        self, request: api_pb2.ContainerResourceHookRequest, context: ServicerContext
    ) -> api_pb2.ContainerResourceHookResponse:
        response = api_pb2.ContainerResourceHookResponse(
            container_annotations=request.container_annotations,
            container_resources=request.container_resources,
            pod_cgroup_parent=request.pod_cgroup_parent,
            container_envs=request.container_envs,
        )
        response.container_resources.cpuset_cpus = "0-1"
        return response


@pytest.fixture
def stub(tmp_path: Path) -> Iterator[api_pb2_grpc.RuntimeHookServiceStub]:
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=1))
    api_pb2_grpc.add_RuntimeHookServiceServicer_to_server(Echo(), server)  # type: ignore[no-untyped-call]
    server.add_insecure_port(f"unix:{tmp_path}/h.sock")
    server.start()
    try:
        with grpc.insecure_channel(f"unix:{tmp_path}/h.sock") as channel:
            yield api_pb2_grpc.RuntimeHookServiceStub(channel)  # type: ignore[no-untyped-call]
    finally:
        server.stop(grace=None).wait()


def test_round_trip(stub: api_pb2_grpc.RuntimeHookServiceStub) -> None:
    response = stub.PreCreateContainerHook(
        api_pb2.ContainerResourceHookRequest(
            pod_meta=api_pb2.PodSandboxMetadata(name="web-0", namespace="prod", uid="u1"),
            container_resources=api_pb2.LinuxContainerResources(cpu_shares=1024, cpu_quota=-1),
            container_envs={"A": "1"},
            pod_cgroup_parent="/kubepods/podu1",
        ),
        timeout=30,
    )
    assert response.container_resources.cpu_shares == 1024
    assert response.container_resources.cpu_quota == -1
    assert response.container_resources.cpuset_cpus == "0-1"
    assert dict(response.container_envs) == {"A": "1"}
    assert response.pod_cgroup_parent == "/kubepods/podu1"


def test_a_hook_that_is_not_served_is_unimplemented(stub: api_pb2_grpc.RuntimeHookServiceStub) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        stub.PreRunPodSandboxHook(api_pb2.PodSandboxHookRequest(), timeout=30)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED

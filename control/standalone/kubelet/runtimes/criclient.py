"""A CRI client (runtime.v1) on a unix socket, for the stand-in kubelet and for tests of runtimes and proxies.

Messages are those of `koordlet.api.cri`. Every call has a deadline in seconds; a failed call raises `CriError`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from koordlet.api.cri import api_pb2 as cri

RUNTIME, IMAGES = "RuntimeService", "ImageService"
API = "v1"
DEADLINE_SECONDS = 120.0
"""Kubelet's deadline, too."""
MAX_MESSAGE_BYTES = 16 << 20


class CriError(Exception):
    """The runtime rejected the call or did not respond."""

    def __init__(self, method: str, code: grpc.StatusCode, details: str) -> None:
        super().__init__(f"{method}: {details or code.name}")
        self.method = method
        self.code = code
        self.details = details

    @property
    def absent(self) -> bool:
        """There is no such sandbox, container or image."""
        return self.code is grpc.StatusCode.NOT_FOUND

    @property
    def lost(self) -> bool:
        """There was no response: the call may have been executed."""
        return self.code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


@dataclass(frozen=True, slots=True)
class _Method:
    service: str
    response: Any


_METHODS: Mapping[str, _Method] = {
    "Version": _Method(RUNTIME, cri.VersionResponse),
    "Status": _Method(RUNTIME, cri.StatusResponse),
    "RunPodSandbox": _Method(RUNTIME, cri.RunPodSandboxResponse),
    "StopPodSandbox": _Method(RUNTIME, None),
    "RemovePodSandbox": _Method(RUNTIME, None),
    "PodSandboxStatus": _Method(RUNTIME, cri.PodSandboxStatusResponse),
    "ListPodSandbox": _Method(RUNTIME, cri.ListPodSandboxResponse),
    "CreateContainer": _Method(RUNTIME, cri.CreateContainerResponse),
    "StartContainer": _Method(RUNTIME, None),
    "StopContainer": _Method(RUNTIME, None),
    "RemoveContainer": _Method(RUNTIME, None),
    "ListContainers": _Method(RUNTIME, cri.ListContainersResponse),
    "ContainerStatus": _Method(RUNTIME, cri.ContainerStatusResponse),
    "UpdateContainerResources": _Method(RUNTIME, None),
    "ReopenContainerLog": _Method(RUNTIME, None),
    "ExecSync": _Method(RUNTIME, cri.ExecSyncResponse),
    "Exec": _Method(RUNTIME, cri.StreamResponse),
    "Attach": _Method(RUNTIME, cri.StreamResponse),
    "PortForward": _Method(RUNTIME, cri.StreamResponse),
    "ImageStatus": _Method(IMAGES, cri.ImageStatusResponse),
    "ListImages": _Method(IMAGES, cri.ListImagesResponse),
    "PullImage": _Method(IMAGES, cri.PullImageResponse),
}


class CriClient:
    """`async with CriClient("/run/…/containerd.sock") as client:`; the path may have the prefix `unix://`."""

    def __init__(self, endpoint: str, seconds: float = DEADLINE_SECONDS) -> None:
        self.path = endpoint.removeprefix("unix://")
        self._seconds = seconds
        self._channel = grpc.aio.insecure_channel(
            f"unix:{self.path}",
            options=[
                ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
                ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
                ("grpc.max_reconnect_backoff_ms", 1000),  # the runtime or the proxy before it may restart
                ("grpc.use_local_subchannel_pool", 1),
            ],
        )
        self._calls = {name: self._unary(name, method) for name, method in _METHODS.items()}

    async def __aenter__(self) -> CriClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._channel.close()

    def _unary(self, name: str, method: _Method) -> Any:
        return self._channel.unary_unary(
            f"/runtime.{API}.{method.service}/{name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=method.response.FromString if method.response is not None else bytes,
        )

    async def call(self, name: str, request: Any, seconds: float | None = None) -> Any:
        """The response message; empty bytes for a method with an empty response."""
        try:
            return await self._calls[name](request, timeout=self._seconds if seconds is None else seconds)
        except grpc.aio.AioRpcError as error:
            raise CriError(name, error.code(), error.details() or "") from error

    async def version(self, seconds: float | None = None) -> Any:
        return await self.call("Version", cri.VersionRequest(version=API), seconds)

    async def conditions(self) -> dict[str, bool]:
        """`RuntimeReady` and `NetworkReady`."""
        response = await self.call("Status", cri.StatusRequest())
        return {condition.type: condition.status for condition in response.status.conditions}

    async def run_pod_sandbox(self, config: Any) -> str:
        """The id of the new sandbox."""
        return str((await self.call("RunPodSandbox", cri.RunPodSandboxRequest(config=config))).pod_sandbox_id)

    async def stop_pod_sandbox(self, sandbox: str) -> None:
        await self.call("StopPodSandbox", cri.PodSandboxRequest(pod_sandbox_id=sandbox))

    async def remove_pod_sandbox(self, sandbox: str) -> None:
        """Also removes its containers, running or not."""
        await self.call("RemovePodSandbox", cri.PodSandboxRequest(pod_sandbox_id=sandbox))

    async def pod_sandbox_status(self, sandbox: str, *, verbose: bool = False) -> Any:
        """PodSandboxStatusResponse."""
        return await self.call("PodSandboxStatus", cri.PodSandboxStatusRequest(pod_sandbox_id=sandbox, verbose=verbose))

    async def list_pod_sandbox(self) -> Sequence[Any]:
        return list((await self.call("ListPodSandbox", cri.ListPodSandboxRequest())).items)

    async def create_container(self, sandbox: str, config: Any, sandbox_config: Any) -> str:
        """The id of the new container."""
        request = cri.CreateContainerRequest(pod_sandbox_id=sandbox, config=config, sandbox_config=sandbox_config)
        return str((await self.call("CreateContainer", request)).container_id)

    async def start_container(self, container: str) -> None:
        await self.call("StartContainer", cri.ContainerRequest(container_id=container))

    async def stop_container(self, container: str, grace: int = 0) -> None:
        """SIGTERM and, after `grace` seconds, SIGKILL; returns when the container has exited."""
        request = cri.StopContainerRequest(container_id=container, timeout=grace)
        await self.call("StopContainer", request, grace + self._seconds)

    async def remove_container(self, container: str) -> None:
        await self.call("RemoveContainer", cri.ContainerRequest(container_id=container))

    async def list_containers(self) -> Sequence[Any]:
        return list((await self.call("ListContainers", cri.ListContainersRequest())).containers)

    async def container_status(self, container: str, *, verbose: bool = False) -> Any:
        """ContainerStatusResponse."""
        return await self.call("ContainerStatus", cri.ContainerStatusRequest(container_id=container, verbose=verbose))

    async def exec_sync(self, container: str, command: Sequence[str], limit: float = 0) -> Any:
        """ExecSyncResponse; DEADLINE_EXCEEDED when the command takes longer than `limit` seconds (0: no limit)."""
        seconds = max(1, round(limit)) if limit else 0
        request = cri.ExecSyncRequest(container_id=container, cmd=command, timeout=seconds)
        return await self.call("ExecSync", request, seconds + self._seconds)

    async def exec(
        self, container: str, command: Sequence[str], *, stdin: bool, stdout: bool, stderr: bool, tty: bool
    ) -> str:
        """A URL of the runtime's streaming server, where the command starts when a client connects."""
        request = cri.ExecRequest(
            container_id=container, cmd=command, stdin=stdin, stdout=stdout, stderr=stderr, tty=tty
        )
        return str((await self.call("Exec", request)).url)

    async def attach(self, container: str, *, stdin: bool, stdout: bool, stderr: bool, tty: bool) -> str:
        """A URL, as `exec` returns."""
        request = cri.AttachRequest(container_id=container, stdin=stdin, stdout=stdout, stderr=stderr, tty=tty)
        return str((await self.call("Attach", request)).url)

    async def port_forward(self, sandbox: str, ports: Sequence[int]) -> str:
        """A URL, as `exec` returns."""
        return str((await self.call("PortForward", cri.PortForwardRequest(pod_sandbox_id=sandbox, port=ports))).url)

    async def events(self) -> AsyncIterator[Any]:
        """ContainerEventResponse without end; UNIMPLEMENTED when the runtime is older than containerd 1.7."""
        stream = self._channel.unary_stream(
            f"/runtime.{API}.{RUNTIME}/GetContainerEvents",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=cri.ContainerEventResponse.FromString,
        )(cri.GetEventsRequest())
        try:
            async for event in stream:
                yield event
        except grpc.aio.AioRpcError as error:
            raise CriError("GetContainerEvents", error.code(), error.details() or "") from error
        finally:
            stream.cancel()

    async def image(self, name: str) -> Any | None:
        """The image's id and tags; None when it is not present."""
        response = await self.call("ImageStatus", cri.ImageStatusRequest(image=cri.ImageSpec(image=name)))
        return response.image if response.HasField("image") else None

    async def pull_image(self, name: str) -> str:
        return str((await self.call("PullImage", cri.PullImageRequest(image=cri.ImageSpec(image=name)))).image_ref)

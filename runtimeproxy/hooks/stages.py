"""The hooks of spec 08 §9: their names in registration files, their RPCs and message types."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

from koordlet.api.hooks.api_pb2 import (
    ContainerResourceHookRequest,
    ContainerResourceHookResponse,
    PodSandboxHookRequest,
    PodSandboxHookResponse,
)

HookRequest: TypeAlias = PodSandboxHookRequest | ContainerResourceHookRequest
HookResponse: TypeAlias = PodSandboxHookResponse | ContainerResourceHookResponse


class HookFailurePolicy(StrEnum):
    """What a failed pre hook means for the call; NONE: no server was called."""

    NONE = "None"
    IGNORE = "Ignore"
    FAIL = "Fail"


class Hook(StrEnum):
    """The value is the name in registration files; the RPC is named `<value>Hook`."""

    PRE_RUN_POD_SANDBOX = "PreRunPodSandbox"
    POST_STOP_POD_SANDBOX = "PostStopPodSandbox"
    PRE_CREATE_CONTAINER = "PreCreateContainer"
    PRE_START_CONTAINER = "PreStartContainer"
    POST_START_CONTAINER = "PostStartContainer"
    PRE_UPDATE_CONTAINER_RESOURCES = "PreUpdateContainerResources"
    POST_STOP_CONTAINER = "PostStopContainer"

    @property
    def rpc(self) -> str:
        return f"{self.value}Hook"

    @property
    def response(self) -> type[HookResponse]:
        """Message type of responses."""
        return PodSandboxHookResponse if self.value.endswith("PodSandbox") else ContainerResourceHookResponse

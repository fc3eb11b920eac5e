"""The hooks of spec 08 §9: their names in registration files, their calls, the messages they speak."""

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


class Stage(StrEnum):
    """On which side of the runtime's own work a hook runs."""

    BEFORE = "before"
    AFTER = "after"


class Policy(StrEnum):
    """What a before-stage hook that fails means for the call; NONE: no server was asked."""

    NONE = "None"
    IGNORE = "Ignore"
    FAIL = "Fail"


class Hook(StrEnum):
    """The value is what a registration file says; the call is named `<value>Hook`."""

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
    def stage(self) -> Stage:
        return Stage.BEFORE if self.value.startswith("Pre") else Stage.AFTER

    @property
    def response(self) -> type[HookResponse]:
        """What answers are parsed as; a request of the other kind is a mistake of the caller."""
        return PodSandboxHookResponse if self.value.endswith("PodSandbox") else ContainerResourceHookResponse

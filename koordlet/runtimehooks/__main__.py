"""Call a hook of a running koordlet, as a runtime proxy does (docs/hooks.md):

    python -m koordlet.runtimehooks SOCKET STAGE < request.json

The request is the message of that stage in the JSON form of protobuf; the response is printed in the same form.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import json_format

from koordlet.api.hooks import SERVICE
from koordlet.api.hooks.api_pb2 import (
    ContainerResourceHookRequest,
    ContainerResourceHookResponse,
    PodSandboxHookRequest,
    PodSandboxHookResponse,
)
from koordlet.runtimehooks.protocols.server import CONTAINER, SANDBOX

CALL_TIMEOUT_S = 10.0


def call(socket: Path, stage: str, request: str) -> str:
    """The response as JSON. Raises ValueError for an unknown stage, json_format.ParseError for a malformed request,
    grpc.RpcError when koordlet refuses the call."""
    known: dict[str, tuple[type[Any], type[Any]]] = {
        **{name.value: (PodSandboxHookRequest, PodSandboxHookResponse) for name in SANDBOX},
        **{name.value: (ContainerResourceHookRequest, ContainerResourceHookResponse) for name in CONTAINER},
    }
    if stage not in known:
        raise ValueError(f"unknown stage {stage!r}; stages are {', '.join(known)}")
    request_type, response_type = known[stage]
    message = json_format.Parse(request, request_type())
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        method = channel.unary_unary(
            f"/{SERVICE}/{stage}Hook", request_type.SerializeToString, response_type.FromString
        )
        response = method(message, timeout=CALL_TIMEOUT_S)
        return str(json_format.MessageToJson(response, preserving_proto_field_name=True))


def main(arguments: list[str]) -> int:
    """Exit status: 0, 1 when koordlet refuses the call, 2 for an invalid command line or request."""
    if len(arguments) != 2:
        sys.stderr.write(f"{__doc__}\n")
        return 2
    try:
        sys.stdout.write(call(Path(arguments[0]), arguments[1], sys.stdin.read()) + "\n")
    except (ValueError, json_format.ParseError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except grpc.RpcError as error:
        sys.stderr.write(f"{error.code().name}: {error.details()}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

"""Ask a running koordlet what it answers to a hook, as a runtime proxy does (docs/hooks.md):

    python -m koordlet.runtimehooks SOCKET STAGE < request.json

The request is the message of that stage in protobuf's JSON form; the response is printed in the same form.
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

CALL_SECONDS = 10.0


def ask(socket: Path, stage: str, request: str) -> str:
    """The response as JSON. ValueError for an unknown stage, json_format.ParseError for a request that is none,
    grpc.RpcError for what koordlet refuses."""
    known: dict[str, tuple[type[Any], type[Any]]] = {
        **{name.value: (PodSandboxHookRequest, PodSandboxHookResponse) for name in SANDBOX},
        **{name.value: (ContainerResourceHookRequest, ContainerResourceHookResponse) for name in CONTAINER},
    }
    if stage not in known:
        raise ValueError(f"no stage {stage!r}; there are {', '.join(known)}")
    asked, answered = known[stage]
    message = json_format.Parse(request, asked())
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        call = channel.unary_unary(f"/{SERVICE}/{stage}Hook", asked.SerializeToString, answered.FromString)
        return str(json_format.MessageToJson(call(message, timeout=CALL_SECONDS), preserving_proto_field_name=True))


def main(arguments: list[str]) -> int:
    """Exit status: 0, 1 where koordlet refuses, 2 for a bad command line or request."""
    if len(arguments) != 2:
        sys.stderr.write(f"{__doc__}\n")
        return 2
    try:
        sys.stdout.write(ask(Path(arguments[0]), arguments[1], sys.stdin.read()) + "\n")
    except (ValueError, json_format.ParseError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except grpc.RpcError as error:
        sys.stderr.write(f"{error.code().name}: {error.details()}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

"""Options of exec, attach and port-forward requests, and the path of the same request at a kubelet. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, urlencode

from multidict import MultiMapping

from control.standalone import errors
from control.standalone.streams.remotecommand import CommandStreams

Json = dict[str, Any]
CONNECTS: Final = ("exec", "attach", "portforward")
"""Subresources of pods that are streams."""
_CONTAINER_FIELDS = ("initContainers", "containers", "ephemeralContainers")


@dataclass(frozen=True, slots=True)
class ConnectTarget:
    """A stream request at a kubelet."""

    node: str
    path: str
    streams: CommandStreams = field(default_factory=CommandStreams)


def flag(query: MultiMapping[str], name: str) -> bool:
    """As in query parameters of Kubernetes: present, and neither 0 nor false."""
    return query.get(name, "false").lower() not in ("false", "0")


def container_of(pod: Json, requested_name: str) -> str:
    """The name of the container that is meant. Raises StatusError 400."""
    spec, name = pod.get("spec") or {}, pod["metadata"]["name"]
    known = [c["name"] for part in _CONTAINER_FIELDS for c in spec.get(part) or []]
    if requested_name:
        if requested_name not in known:
            raise errors.bad_request(f"container {requested_name} is not valid for pod {name}")
        return requested_name
    mains = [str(c["name"]) for c in spec.get("containers") or []]
    if len(mains) == 1:
        return mains[0]
    raise errors.bad_request(
        f"a container name must be specified for pod {name}, choose one of: [{' '.join(known)}]"
        if mains
        else f"a container name must be specified for pod {name}"
    )


def node_of(pod: Json) -> str:
    """The pod's node. Raises StatusError 400."""
    node = (pod.get("spec") or {}).get("nodeName")
    if not node:
        raise errors.bad_request(f"pod {pod['metadata']['name']} does not have a host assigned")
    return str(node)


def connect_target(subresource: str, pod: Json, query: MultiMapping[str]) -> ConnectTarget:
    """What a request for a subresource in CONNECTS means. Raises StatusError 400."""
    meta = pod["metadata"]
    where = f"{quote(meta['namespace'])}/{quote(meta['name'])}"
    if subresource == "portforward":
        ports = _ports(query.getall("ports", []))
        path = f"/portForward/{where}" + (f"?port={','.join(map(str, ports))}" if ports else "")
        return ConnectTarget(node_of(pod), path)
    container = container_of(pod, query.get("container", ""))
    node = node_of(pod)
    streams = CommandStreams(*(flag(query, name) for name in ("stdin", "stdout", "stderr", "tty")))
    flags = {"input": streams.stdin, "output": streams.stdout, "error": streams.stderr, "tty": streams.tty}
    parameters = [(name, "1") for name, value in flags.items() if value]
    if subresource == "exec":
        parameters += [("command", word) for word in query.getall("command", [])]
    return ConnectTarget(node, f"/{subresource}/{where}/{quote(container)}?{urlencode(parameters)}", streams)


def _ports(texts: list[str]) -> list[int]:
    ports = []
    for text in texts:
        for part in text.split(","):
            if not part.isdecimal() or len(part) > 5 or not 1 <= int(part) <= 65535:
                raise errors.bad_request(f"ports: {part[:32]!r} is not a port")
            ports.append(int(part))
    return ports

"""What the query of exec, attach and port-forward means, and the request to the kubelet."""

from __future__ import annotations

from typing import Any

import pytest
from multidict import MultiDict
from yarl import URL

from control.standalone.errors import StatusError
from control.standalone.http.connectoptions import connect_target
from control.standalone.streams.remotecommand import ERROR, RESIZE, STDERR, STDIN, STDOUT, CommandStreams


def pod(*names: str, **spec: Any) -> dict[str, Any]:
    containers = [{"name": name} for name in names]
    return {"metadata": {"namespace": "ns", "name": "p"}, "spec": {"nodeName": "n", "containers": containers, **spec}}


@pytest.mark.parametrize(
    ("subresource", "query", "path"),
    [
        ("exec", "command=a%26b%0A&command=c&stdout=true", "/exec/ns/p/c?output=1&command=a%26b%0A&command=c"),
        ("exec", "command=ls&stdin=1&stdout=&stderr=false&tty=0", "/exec/ns/p/c?input=1&output=1&command=ls"),
        ("attach", "stdin=TRUE&tty=true&command=ignored", "/attach/ns/p/c?input=1&tty=1"),
        ("portforward", "ports=80,443&ports=8080", "/portForward/ns/p?port=80,443,8080"),
        ("portforward", "", "/portForward/ns/p"),
    ],
)  # fmt: skip
def test_the_request_to_the_kubelet(subresource: str, query: str, path: str) -> None:
    target = connect_target(subresource, pod("c"), MultiDict(URL(f"/?{query}").query))
    assert (target.node, target.path) == ("n", path)


@pytest.mark.parametrize(
    ("raw", "query", "message"),
    [
        (pod("a", "b", initContainers=[{"name": "i"}]), {},
         "a container name must be specified for pod p, choose one of: [i a b]"),
        (pod(), {}, "a container name must be specified for pod p"),
        (pod("a"), {"container": "x"}, "container x is not valid for pod p"),
        (pod("a", nodeName=""), {}, "pod p does not have a host assigned"),
    ],
)  # fmt: skip
def test_messages_are_those_of_kubernetes(raw: dict[str, Any], query: dict[str, str], message: str) -> None:
    with pytest.raises(StatusError) as error:
        connect_target("exec", raw, MultiDict(query))
    assert (error.value.code, error.value.message) == (400, message)


@pytest.mark.parametrize("ports", ["0", "65536", "http", "1,", "-1", "9" * 5000])
def test_ports_are_checked(ports: str) -> None:
    with pytest.raises(StatusError, match="is not a port"):
        connect_target("portforward", pod("c"), MultiDict({"ports": ports}))


@pytest.mark.parametrize(
    ("streams", "channels"),
    [
        (CommandStreams(), (ERROR,)),
        (CommandStreams(stdin=True, stdout=True, stderr=True), (ERROR, STDIN, STDOUT, STDERR)),
        (CommandStreams(stdin=True, stdout=True, stderr=True, tty=True), (ERROR, STDIN, STDOUT, RESIZE)),
    ],
)
def test_a_terminal_has_a_size_and_no_stderr(streams: CommandStreams, channels: tuple[int, ...]) -> None:
    assert streams.channels == channels

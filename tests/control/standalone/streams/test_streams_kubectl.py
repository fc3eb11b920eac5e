"""The stock kubectl and the official Python client against API server, kubelet and containerd, in both protocols."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import pty
import random
import re
import select
import socket
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from control.ctl.cluster.podproxy import proxied
from control.ctl.cluster.portforward import PodPort, forwarded
from koordlet.kube import ClientConfig
from tests.control.standalone.streams.streamnode import BOTH_PROTOCOLS, StreamNode, busybox
from tests.waiting import wait_until

pytestmark = [pytest.mark.runtime, pytest.mark.kubectl]
EXEC = ("exec", "p", "-c", "main")
MIB = 1 << 20
PAYLOAD = random.Random(18).randbytes(10 * MIB)
SCRIPT = ["sh", "-c", "read a; echo $a; echo $a >&2; exit 5"]
DIGEST = hashlib.sha256(PAYLOAD).hexdigest()


@pytest.fixture(params=BOTH_PROTOCOLS)
def protocol(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def upgrades(node: StreamNode, subresource: str) -> dict[str, int]:
    """Finished streams by the verb of their request: WebSocket begins with a GET, SPDY with a POST."""
    text = node.kubectl("get", "--raw=/metrics").stdout.decode()
    pattern = rf'apiserver_request_total{{code="101",[^}}]*subresource="{subresource}",verb="(\w+)"[^}}]*}} (\d+)'
    return {verb: int(count) for verb, count in re.findall(pattern, text)}


def test_outputs_and_exit_code(node: StreamNode, protocol: str) -> None:
    before = upgrades(node, "exec")
    done = node.kubectl(*EXEC, "--", "sh", "-c", "echo out; echo err >&2; exit 3", protocol=protocol, status=3)
    assert (done.stdout, done.stderr) == (b"out\n", b"err\ncommand terminated with exit code 3\n")
    verb = {"websocket": "get", "spdy": "create"}[protocol]
    # kubectl ends before the server has counted its stream.
    wait_until(lambda: upgrades(node, "exec").get(verb, 0) == before.get(verb, 0) + 1)


def test_a_stream_counts_as_upgraded_when_its_client_is_killed(node: StreamNode, protocol: str) -> None:
    before = upgrades(node, "exec")
    script = ("sh", "-c", "echo started; sleep 60")
    with subprocess.Popen(
        node.argv(*EXEC, "--", *script), env=node.env(protocol), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == b"started\n"
        client.kill()
    verb = {"websocket": "get", "spdy": "create"}[protocol]
    wait_until(lambda: upgrades(node, "exec").get(verb, 0) > before.get(verb, 0))


def test_a_large_input_arrives_and_ends(node: StreamNode, protocol: str) -> None:
    done = node.kubectl(*EXEC, "-i", "--", "sha256sum", protocol=protocol, stdin=PAYLOAD)
    assert done.stdout.split()[0].decode() == DIGEST


def test_a_large_output_arrives_unchanged(node: StreamNode, protocol: str) -> None:
    script = "head -c 3000000 /dev/urandom | tee /tmp/out; sha256sum /tmp/out >&2"
    done = node.kubectl(*EXEC, "--", "sh", "-c", script, protocol=protocol)
    assert done.stderr.split()[0].decode() == hashlib.sha256(done.stdout).hexdigest()


def test_cp_in_both_directions(node: StreamNode, protocol: str, tmp_path: Path) -> None:
    (tmp_path / "tree/inner").mkdir(parents=True)
    (tmp_path / "tree/inner/data").write_bytes(PAYLOAD[:MIB])
    (tmp_path / "tree/empty").write_bytes(b"")
    node.kubectl("cp", "-c", "main", str(tmp_path / "tree"), f"p:/tmp/{protocol}", protocol=protocol)
    node.kubectl("cp", "-c", "main", f"p:/tmp/{protocol}", str(tmp_path / "back"), protocol=protocol)
    assert (tmp_path / "back/inner/data").read_bytes() == PAYLOAD[:MIB]
    assert (tmp_path / "back/empty").read_bytes() == b""


class Terminal:
    """A kubectl on a terminal of its own."""

    def __init__(self, node: StreamNode, protocol: str, rows: int, columns: int, *args: str) -> None:
        self._master, slave = pty.openpty()
        self.size(rows, columns)
        self.process = subprocess.Popen(
            node.argv(*args), env=node.env(protocol), stdin=slave, stdout=slave, stderr=slave, start_new_session=True
        )
        os.close(slave)
        self.output = b""

    def size(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def write(self, text: str) -> None:
        os.write(self._master, text.encode())

    def until(self, expected: bytes, seconds: float = 60.0) -> None:
        end = time.monotonic() + seconds
        while expected not in self.output:
            assert select.select([self._master], [], [], max(0.0, end - time.monotonic()))[0], (expected, self.output)
            self.output += os.read(self._master, 65536)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)


@pytest.fixture
def terminal(node: StreamNode) -> Iterator[Callable[..., Terminal]]:
    with contextlib.ExitStack() as stack:

        def make(*args: Any) -> Terminal:
            terminal = Terminal(node, *args)
            stack.callback(terminal.close)
            return terminal

        yield make


def test_a_terminal_has_its_size_and_follows_changes(terminal: Callable[..., Terminal], protocol: str) -> None:
    screen = terminal(protocol, 41, 123, *EXEC, "-it", "--", "sh")
    screen.write("while [ \"$(stty size)\" != '41 123' ]; do sleep 0.1; done; echo first-$((1+1))\n")
    screen.until(b"first-2")
    screen.size(33, 77)
    screen.process.send_signal(28)  # SIGWINCH, which a terminal's own processes get
    screen.write("while [ \"$(stty size)\" != '33 77' ]; do sleep 0.1; done; echo second-$((1+1))\n")
    screen.until(b"second-2")
    screen.write("printf '\\033[31mred\\033[0m\\007-\\377\\n'; exit 7\n")
    screen.until(b"\x1b[31mred\x1b[0m\x07-\xff\r\n")
    assert screen.process.wait(30) == 7


def test_attach_reads_and_writes_a_running_container(node: StreamNode, protocol: str) -> None:
    script = "read -r line; echo got $line; read -r line; echo got $line >&2; exec sleep 1000"
    node.create(f"attached-{protocol}", busybox("main", script, stdin=True, stdinOnce=True))
    process = subprocess.Popen(
        node.argv("attach", "-i", f"attached-{protocol}"),
        env=node.env(protocol), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(b"one\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"got one\n"
        process.stdin.write(b"two\n")
        process.stdin.flush()
        lines = iter(process.stderr.readline, b"")
        assert b"got two\n" in lines
        process.kill()
    assert node.kubectl("logs", f"attached-{protocol}").stdout == b"got one\ngot two\n"


def test_run_attaches_to_its_pod_and_returns_the_exit_code(node: StreamNode) -> None:
    overrides = '--overrides={"apiVersion":"v1","spec":{"nodeName":"streams","tolerations":[{"operator":"Exists"}]}}'
    done = node.kubectl(
        "run", "runner", "--image=busybox", "-i", "--rm", "--restart=Never", overrides, "--quiet",
        "--", "sh", "-c", "cat; exit 4", stdin=b"to the container\n", status=4,
    )  # fmt: skip
    assert b"to the container\n" in done.stdout


def test_debug_starts_an_ephemeral_container(node: StreamNode, terminal: Callable[..., Terminal]) -> None:
    """It sees the processes of the container that it targets, runs once, and does not count for the pod."""
    node.create("debugged", busybox("main", "exec sleep 1234"))
    debug = ("debug", "debugged", "-it", "--image=busybox", "--target=main", "--container=d", "--quiet", "--", "sh")
    screen = terminal("websocket", 24, 80, *debug)
    screen.write("tr '\\000' + < /proc/1/cmdline; echo; exit\n")
    screen.until(b"sleep+1234")
    assert screen.process.wait(60) == 0
    ended = "{.status.ephemeralContainerStatuses[0].state.terminated.exitCode}"
    node.kubectl("wait", "pod/debugged", f"--for=jsonpath={ended}=0", "--timeout=50s")
    assert node.kubectl("get", "pod", "debugged", "-o=jsonpath={.status.phase}").stdout == b"Running"
    assert b"sleep+1234" in node.kubectl("logs", "debugged", "-c", "d").stdout


@contextlib.contextmanager
def served(handler: Callable[[socket.socket], None]) -> Iterator[int]:
    """The port of a server on this machine: pods use its network."""
    server = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                handler(connection)

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        yield server.getsockname()[1]
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join()


def receive(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size and (more := connection.recv(1 << 16)):
        data += more
    return bytes(data)


def exchange(connection: socket.socket, payload: bytes = PAYLOAD) -> None:
    """Read the payload, answer its digest, send the payload."""
    data = receive(connection, len(payload))
    connection.sendall(hashlib.sha256(data).hexdigest().encode() + payload)


@contextlib.contextmanager
def forwarding(node: StreamNode, protocol: str, port: int) -> Iterator[tuple[int, Any]]:
    """The local port of a kubectl port-forward, and its process."""
    with subprocess.Popen(
        node.argv("port-forward", "pod/p", f":{port}"),
        env=node.env(protocol), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        line = process.stdout.readline().decode()
        match = re.search(r"127\.0\.0\.1:(\d+)", line)
        try:
            assert match, line
            yield int(match[1]), process
        finally:
            process.kill()


def test_port_forward_carries_both_directions(node: StreamNode, protocol: str) -> None:
    with served(exchange) as port, forwarding(node, protocol, port) as (local, _):
        for _ in range(2):  # connections of one port-forward
            with socket.create_connection(("127.0.0.1", local), 60) as client:
                client.sendall(PAYLOAD)
                answer = receive(client, 64 + len(PAYLOAD))
            assert answer[:64].decode() == DIGEST
            assert answer[64:] == PAYLOAD


def test_a_refused_port_is_reported(node: StreamNode, protocol: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with forwarding(node, protocol, port) as (local, process):
        with socket.create_connection(("127.0.0.1", local), 60) as client:
            assert client.recv(1) == b""
        text = b""
        while b"onnection refused" not in text:
            line = process.stdout.readline()
            assert line, text
            text += line


def test_errors_are_reported(node: StreamNode) -> None:
    node.kubectl("run", "pending", "--image=busybox")
    on_node = '--overrides={"spec":{"nodeName":"streams"}}'
    node.kubectl("run", "ended", "--image=busybox", "--restart=Never", on_node, "--", "true")
    node.kubectl("wait", "pod/ended", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=50s")
    for protocol, name, container, command, message in (
        ("websocket", "p", "none", "true", "container none is not valid for pod p"),
        ("spdy", "p", "none", "true", "container none is not valid for pod p"),
        ("websocket", "none", "", "true", 'pods "none" not found'),
        ("websocket", "p", "main", "/no/such", "no such file or directory"),
        ("spdy", "p", "main", "/no/such", "no such file or directory"),
        ("websocket", "pending", "", "true", "pod pending does not have a host assigned"),
        ("websocket", "ended", "", "true", "completed pod"),
    ):
        done = node.kubectl("exec", name, "-c", container, "--", command, protocol=protocol, status=1)
        assert message in done.stderr.decode()


def test_the_python_client(node: StreamNode) -> None:
    """Over WebSocket: version 5 by default, version 4 if it is asked for, and port-forward by channels."""
    from kubernetes import client, config, stream

    api = client.CoreV1Api(config.new_client_from_config(str(node.kubeconfig)))
    arguments = ("p", "default")
    for command, stdin, headers, expected in (
        (["echo", "hello"], "", {}, ("hello\n", "", 0)),
        (SCRIPT, "line\n", {}, ("line\n", "line\n", 5)),
        (SCRIPT, "line\n", {"sec-websocket-protocol": "v4.channel.k8s.io"}, ("line\n", "line\n", 5)),
    ):
        session = stream.stream(
            api.connect_get_namespaced_pod_exec, *arguments, command=command, stdin=bool(stdin), container="main",
            stderr=True, stdout=True, tty=False, _preload_content=False, **({"_headers": headers} if headers else {}),
        )  # fmt: skip
        if stdin:
            session.write_stdin(stdin)
        session.run_forever(timeout=60)
        assert (session.read_stdout(), session.read_stderr(), session.returncode) == expected
        session.sock.shutdown()  # the client's own `close` leaves a connection open that the server has closed
    part = PAYLOAD[:MIB]
    with served(lambda connection: exchange(connection, part)) as port:
        forward = stream.portforward(api.connect_get_namespaced_pod_portforward, *arguments, ports=str(port))
        connection = forward.socket(port)
        connection.setblocking(True)
        connection.sendall(part)
        answer = receive(connection, 64 + len(part))
        connection.close()
        for thread in threading.enumerate():
            if thread.name.startswith("Kubernetes port forward"):
                thread.join(60)
        forward.websocket.shutdown()
    assert answer == hashlib.sha256(part).hexdigest().encode() + part


@pytest.mark.parametrize("connected", [forwarded, proxied])
async def test_koordctl_reads_a_page_of_a_pod(node: StreamNode, connected: Any) -> None:
    """As `kubectl koord` reaches koordlet: this API server has no pods/proxy, so the port is forwarded."""

    def page(connection: socket.socket) -> None:
        connection.recv(4096)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\npage")

    with served(page) as port:
        settings = ClientConfig.load(str(node.kubeconfig), context=None, user_agent="test", timeout=60)
        async with connected(settings, PodPort("default", "p", port, False)) as (path, forwarder):
            connector = aiohttp.UnixConnector(path=path)
            async with aiohttp.ClientSession(connector=connector) as session, session.get("http://p/") as response:
                assert await response.text() == "page", forwarder.problem


def test_rights_are_those_of_kubernetes(node: StreamNode) -> None:
    """`create` on the subresource, also over WebSocket; the right in one namespace is none in another."""
    node.kubectl("create", "role", "reader", "--verb=get", "--resource=pods,pods/exec")
    node.kubectl("create", "role", "runner", "--verb=get,create", "--resource=pods,pods/exec")
    for name in ("reader", "runner"):
        node.kubectl("create", "serviceaccount", name)
        node.kubectl("create", "rolebinding", name, f"--role={name}", f"--serviceaccount=default:{name}")

    def run(account: str, namespace: str, protocol: str) -> subprocess.CompletedProcess[bytes]:
        user = f"--as=system:serviceaccount:default:{account}"
        return node.kubectl(
            "exec", "-n", namespace, "p", "-c", "main", user, "--", "true", protocol=protocol, status=None
        )

    for protocol in BOTH_PROTOCOLS:
        assert run("runner", "default", protocol).returncode == 0
        refused = run("reader", "default", protocol)
        assert refused.returncode == 1
        assert b'cannot create resource "pods/exec" in API group "" in the namespace "default"' in refused.stderr
        assert run("runner", "kube-system", protocol).returncode == 1

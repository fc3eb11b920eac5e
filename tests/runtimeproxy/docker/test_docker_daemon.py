"""koord-runtime-proxy in Docker mode as a process, in front of Debian's dockerd, with koordlet's hook server. The
`docker` command shows the same through the proxy and without; pods as dockershim creates them have the settings of
koordlet's plugins from their first instruction on."""

from __future__ import annotations

import hashlib
import io
import os
import re
import signal
import socket
import subprocess
import tarfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from koordlet.runtimehooks.stages import HookStage
from tests.runtimeproxy.docker.conftest import UID
from tests.runtimeproxy.docker.livedocker import (
    CPUS,
    MEMORY,
    PATIENCE,
    QUOTA,
    SHARES,
    Cli,
    Proxy,
    Shim,
    koordlet,
    name_of,
)
from tests.runtimes.daemons import Dockerd
from tests.waiting import wait_until

pytestmark = pytest.mark.runtime

MIB = 1 << 20


@pytest.fixture
def proxy(dockerd: Dockerd) -> Iterator[Proxy]:
    proxy = Proxy(dockerd.socket)
    try:
        proxy.start()
        yield proxy
        assert proxy.finish() == 0
        assert "Traceback" not in proxy.log.read_text()
    finally:
        proxy.kill()
        proxy.close()


# Transparency

PROGRAM = "mkfifo /go; echo ready; cat /go; echo last"
RUN = ("run", "--network=none")


def session(docker: Cli, folder: Path, own: str) -> Iterator[object]:
    """A terminal session; yields each step's result. `own`: a name for created objects."""
    big = bytes(range(256)) * 8192
    (folder / "big").write_bytes(big)
    os.utime(folder / "big", (1_700_000_000, 1_700_000_000))
    yield docker("version", "--format={{.Server.Version}} {{.Server.APIVersion}} {{.Client.APIVersion}}")
    yield docker(*RUN, "--rm", "busybox", "sh", "-c", "echo out; echo err >&2; exit 3")
    yield docker(*RUN, "--rm", "-i", "busybox", "sh", "-c", "wc -c; echo done", stdin=big)  # attach, half closed
    yield docker("run", "--rm", "no such image")
    yield docker(*RUN, "-d", f"--name={own}", "--memory=32m", "busybox", "sh", "-c", PROGRAM)
    yield docker("inspect", "--format={{.Name}} {{.HostConfig.Memory}} {{.State.Running}}", own)
    yield docker("exec", "-i", own, "cat", stdin=big)
    yield docker("exec", "-t", own, "sh", "-c", "test -t 0 && echo a terminal; exit 7")
    yield docker("exec", own, "no-such-program")
    yield docker("cp", str(folder / "big"), f"{own}:/big")
    yield members(docker("cp", f"{own}:/big", "-"))
    yield docker("stats", "--no-stream", "--format={{.Name}}", own)
    yield docker("update", "--memory=48m", "--memory-swap=96m", own)
    logs = docker.begin("logs", "-f", own)
    events = docker.begin(
        "events", f"--filter=container={own}", "--filter=event=die", "--format={{.Action}}", "--since=1"
    )
    yield first_line(logs)
    yield docker("exec", own, "sh", "-c", "echo released > /go")
    yield logs.communicate(timeout=PATIENCE), logs.returncode  # ends with the container
    yield first_line(events)
    events.send_signal(signal.SIGKILL)  # the stream itself does not end
    events.communicate()
    yield docker("logs", "--tail=1", own)
    yield docker("ps", "-a", f"--filter=name={own}", "--format={{.Names}} {{.Status}}")[:1]
    yield docker("rm", own)
    yield docker("rm", own)
    status, image, err = docker("save", "busybox")
    yield status, err, len(image)
    yield docker("load", stdin=image)
    yield docker("import", "-", f"imported:{own}", stdin=archive(big))[::2]
    yield docker("rmi", f"imported:{own}")[0]


def first_line(process: subprocess.Popen[bytes]) -> bytes:
    """The incomplete line at the end of PATIENCE, if no complete one arrives."""
    limit = threading.Timer(PATIENCE, process.kill)
    limit.start()
    try:
        assert process.stdout is not None
        return process.stdout.readline()
    finally:
        limit.cancel()


def members(done: tuple[int, bytes, bytes]) -> object:
    """A tar stream's content."""
    with tarfile.open(fileobj=io.BytesIO(done[1])) as tar:
        return done[0], done[2], [(member.name, member.size, member.mtime, member.mode) for member in tar]


def archive(content: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        member = tarfile.TarInfo("file")
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def plain(step: object, own: str) -> str:
    """Without values that differ per session: ids and the name; long ones as a digest."""
    text = re.sub(rf"\b(?:[0-9a-f]{{64}}|[0-9a-f]{{12}}|{own})\b", "ID", repr(step))
    return text if len(text) < 2000 else f"{len(text)} characters, {hashlib.sha256(text.encode()).hexdigest()}"


def test_a_cli_session_is_the_same_with_and_without_the_proxy(dockerd: Dockerd, proxy: Proxy, tmp_path: Path) -> None:
    def steps(host: Path, own: str) -> list[str]:
        folder = tmp_path / own
        folder.mkdir()
        return [plain(step, own) for step in session(Cli(dockerd, host), folder, own)]

    with ThreadPoolExecutor(2) as both:
        direct, proxied = both.map(steps, (dockerd.socket, proxy.socket), ("alfa", "beta"))
    assert proxied == direct
    assert direct[1] == "(3, b'out\\n', b'err\\n')" and "b'ready\\n'" in direct  # it is a session


TALK = (
    b"GET /_ping HTTP/1.1\r\nHost: docker\r\n\r\n"
    b"HEAD /_ping HTTP/1.1\r\nHost: docker\r\n\r\n"
    b"GET /version HTTP/1.1\r\nHost: docker\r\n\r\n"
    b"GET /v1.30/images/busybox/json HTTP/1.1\r\nHost: docker\r\n\r\n"
    b"GET /nothing HTTP/1.1\r\nHost: docker\r\n\r\n"
    b"POST /containers/create?name=plain HTTP/1.1\r\nHost: docker\r\nContent-Type: application/json\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n8\r\n{\"Image\"\r\n10\r\n: \"no such one\"}\r\n0\r\n\r\n"
    b"POST /containers/nobody/start HTTP/1.1\r\nHost: docker\r\nContent-Length: 0\r\n\r\n"
    b"POST /containers/nobody/stop HTTP/1.1\r\nHost: docker\r\n\r\n"
    b"POST /containers/nobody/update HTTP/1.1\r\nHost: docker\r\nContent-Type: application/json\r\n"
    b"Content-Length: 2\r\n\r\n{}"
    b"DELETE /containers/nobody HTTP/1.1\r\nHost: docker\r\n\r\n"
    b"POST /containers/create HTTP/1.1\r\nHost: docker\r\nContent-Type: application/json\r\n"
    b"Expect: 100-continue\r\nContent-Length: 9\r\n\r\n{\"Image\":"
    b"GET /info HTTP/1.1\r\nHost: docker\r\nTransfer-Encoding: nonsense\r\nConnection: close\r\n\r\n"
)  # fmt: skip
"""Pipelined, and with an invalid end."""


def answers(path: Path, pieces: Sequence[bytes]) -> bytes:
    """All bytes up to the end of the connection; without the time."""
    body = b""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(PATIENCE)
        client.connect(str(path))
        for piece in pieces:
            client.sendall(piece)
        while data := client.recv(1 << 16):
            body += data
    return re.sub(rb"\r\nDate: [^\r]*", b"", body)


def test_pipelined_requests_get_the_same_bytes(dockerd: Dockerd, proxy: Proxy) -> None:
    direct = answers(dockerd.socket, [TALK])
    assert direct.count(b"HTTP/1.1 ") == 13  # twelve answers and a continue
    assert answers(proxy.socket, [TALK]) == direct
    assert answers(proxy.socket, [TALK[at : at + 7] for at in range(0, len(TALK), 7)]) == direct


# Hooks


BATCH = {
    "containers": {
        "app": {"limits": {"kubernetes.io/batch-cpu": 500, "kubernetes.io/batch-memory": 64 * MIB},
                "requests": {"kubernetes.io/batch-cpu": 500, "kubernetes.io/batch-memory": 64 * MIB}},
        "side": {"limits": {"kubernetes.io/batch-cpu": 250}, "requests": {"kubernetes.io/batch-cpu": 250}},
    }
}  # fmt: skip
EXTENDED, STATUS = "node.koordinator.sh/extended-resource-spec", "scheduling.koordinator.sh/resource-status"
LAST = str(max(os.sched_getaffinity(0)))
UNBOUND = 1 << 62
"""From here on the kernel means no limit."""


def test_pods_have_koordlets_settings_from_their_first_instruction(
    dockerd: Dockerd, proxy: Proxy, tmp_path: Path
) -> None:
    docker = Cli(dockerd, proxy.socket)
    with koordlet(tmp_path / "k.sock") as recorder:
        proxy.register(tmp_path / "k.sock", "Fail")
        batch = Shim(docker, dockerd.cgroup_parent("be"), "be-0", "BE", **{EXTENDED: BATCH})  # type: ignore[arg-type]
        app, side = batch.create("app", "--cpu-shares=2"), batch.create("side", "--cpu-shares=2")
        first_values = batch.first_look(app)
        assert (first_values[SHARES], first_values[QUOTA], first_values[MEMORY]) == ("512", "50000", str(64 * MIB))
        first_values = batch.first_look(side)  # unlimited memory is -1 for hooks and an error for dockerd
        assert (first_values[SHARES], first_values[QUOTA]) == ("256", "25000") and int(first_values[MEMORY]) > UNBOUND

        docker.said("update", "--cpu-shares=100", name_of("app", "be-0"))
        assert (batch.now(app, SHARES), batch.now(app, QUOTA)) == ("512", "50000")

        pinned = Shim(docker, dockerd.cgroup_parent("lsr"), "lsr-0", "LSR", **{STATUS: {"cpuset": LAST}})  # type: ignore[arg-type]
        own = pinned.create("app", "--cpu-shares=1024", "--cpu-period=100000", "--cpu-quota=200000", "--memory=64m")
        first_values = pinned.first_look(own)
        assert first_values == {SHARES: "1024", QUOTA: "-1", CPUS: LAST, MEMORY: str(64 * MIB)}
        inspected = dockerd.inspect(own)
        assert {"A=2", "B=1"} < set(inspected["Config"]["Env"]) and inspected["HostConfig"]["CpusetCpus"] == LAST

        recorder.calls.clear()
        docker.said("stop", "-t", "0", app)
        docker.said("stop", "-t", "0", batch.sandbox)
        # calls do not wait for post hooks
        wait_until(lambda: len(recorder.calls) == 2, "both stops are told")
        assert proxy.metric('koord_runtime_proxy_calls_total{method="docker create",result="rewritten"}') == 5
        assert recorder.calls == [
            (HookStage.POST_STOP_CONTAINER, "shop/be-0", UID, "app"),
            (HookStage.POST_STOP_POD_SANDBOX, "shop/be-0", UID, ""),
        ]  # fmt: skip


def test_a_proxy_killed_between_create_and_start_knows_the_pod_again(
    dockerd: Dockerd, proxy: Proxy, tmp_path: Path
) -> None:
    docker = Cli(dockerd, proxy.socket)
    with koordlet(tmp_path / "k.sock") as recorder:
        proxy.register(tmp_path / "k.sock", "Fail")
        pod = Shim(docker, dockerd.cgroup_parent("pod"), "web-0", "LS")
        container = pod.create("app", "--cpu-shares=300")
        proxy.kill()
        proxy.start()  # at the left-over socket
        recorder.calls.clear()
        assert pod.first_look(container)[SHARES] == "300"
        wait_until(lambda: len(recorder.calls) == 2, "before and after")
        identity = ("shop/web-0", UID, "app")
        assert recorder.calls == [
            (HookStage.PRE_START_CONTAINER, *identity),
            (HookStage.POST_START_CONTAINER, *identity),
        ]
        docker.said("update", "--cpu-shares=400", container)
        assert pod.now(container, SHARES) == "400"
        assert recorder.stages_called()[2:] == [HookStage.PRE_UPDATE_CONTAINER_RESOURCES]


def test_hooks_run_for_a_pod_created_beside_the_proxy(dockerd: Dockerd, proxy: Proxy, tmp_path: Path) -> None:
    """Like one that dockerd created for a killed proxy, after the next proxy had read its list."""
    with koordlet(tmp_path / "k.sock") as recorder:
        proxy.register(tmp_path / "k.sock", "Fail")
        pod = Shim(Cli(dockerd, dockerd.socket), dockerd.cgroup_parent("pod"), "web-0", "LS")
        containers = pod.create("app", "--cpu-shares=300"), pod.create("side")
        assert recorder.calls == []
        docker = pod.docker = Cli(dockerd, proxy.socket)
        docker.said("update", "--cpu-shares=400", name_of("app", "web-0"))
        pod.first_look(containers[1])
        assert pod.first_look(containers[0])[SHARES] == "400"
        wait_until(lambda: len(recorder.calls) == 5, "after hooks")
        before, after = HookStage.PRE_START_CONTAINER, HookStage.POST_START_CONTAINER
        assert [(stage, name) for stage, *_, name in recorder.calls if stage is not after] == [
            (HookStage.PRE_UPDATE_CONTAINER_RESOURCES, "app"), (before, "side"), (before, "app")
        ]  # fmt: skip
        assert {(pod, uid) for _, pod, uid, _ in recorder.calls} == {("shop/web-0", UID)}


def test_without_a_hook_server_pods_start_or_fail_by_the_policy(dockerd: Dockerd, proxy: Proxy, tmp_path: Path) -> None:
    """The slowest kind of server failure (test_hook_dispatch): a server that never sends a byte."""
    assert proxy.finish() == 0
    proxy.flags = (*proxy.flags, "--hook-timeout=0.2s")
    proxy.start()
    docker = Cli(dockerd, proxy.socket)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "k.sock"))
        silent.listen()
        proxy.register(tmp_path / "k.sock", "Fail")
        sandbox = ("--network=none", "--label=io.kubernetes.docker.type=podsandbox", "busybox", "true")
        status, _, err = docker("create", "--name", name_of("POD", "web-0"), *sandbox)
        assert status != 0 and b"Error response from daemon: hook server err: " in err
        assert docker.said("ps", "-aq") == ""
        plain = docker.said("create", "--network=none", "busybox", "true")  # no pod, no hook
        skipped = docker.said(
            "create",
            "--name",
            name_of("POD", "skip-0"),
            "--label=runtimeproxy.koordinator.sh/skip-hookserver=true",
            *sandbox,
        )
        proxy.register(tmp_path / "k.sock", "Ignore")
        created = docker.said("create", "--name", name_of("POD", "web-0", 1), *sandbox)
        assert len({plain, skipped, created}) == 3
        assert proxy.metric('koord_runtime_proxy_calls_total{method="docker create",result="refused"}') == 1
        assert proxy.metric('koord_runtime_proxy_unhooked_total{reason="skip-label"}') == 1
        failures = 'koord_runtime_proxy_hook_failures_total{hook="PreRunPodSandbox",policy="Ignore"}'
        assert proxy.metric(failures) == 1
        inspected = dockerd.inspect(created)
        assert inspected["Config"]["Labels"] == {"io.kubernetes.docker.type": "podsandbox"}

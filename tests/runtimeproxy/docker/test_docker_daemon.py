"""koord-runtime-proxy in Docker mode as a process, in front of Debian's dockerd, with koordlet's hook server beside it.

What a `docker` command shows through the proxy is what it shows without; pods as dockershim makes them have what
koordlet's plugins answer, from their first instruction on.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import os
import re
import signal
import socket
import subprocess
import tarfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from koordlet.metrics import Registries
from koordlet.runtimehooks.batchresource import BatchResource
from koordlet.runtimehooks.calls import HookCalls
from koordlet.runtimehooks.cpuset import CPUSetAllocator
from koordlet.runtimehooks.hooks import NOTHING, Answer, FailurePolicy, HookContext, Hooks, Stage
from koordlet.runtimehooks.newborns import Newborns
from koordlet.runtimehooks.server import HookServer
from tests.koordlet.qosmanager.conftest import make_view
from tests.runtimeproxy.docker.conftest import UID
from tests.runtimeproxy.proxyprocess import ProxyProcess
from tests.runtimes.daemons import CGROUPS, Dockerd, until

pytestmark = pytest.mark.runtime

PATIENCE = 60.0
MIB = 1 << 20
ALL_HOOKS = [str(stage) for stage in Stage]


class Proxy(ProxyProcess):
    """In Docker mode."""

    def __init__(self, backend: Path) -> None:
        super().__init__(backend, "--backend-runtime-mode=Docker", f"--hook-timeout={PATIENCE:g}s")

    def register(self, endpoint: Path, policy: str) -> None:
        document = {"remote-endpoint": str(endpoint), "failure-policy": policy, "runtime-hooks": ALL_HOOKS}
        self.hooks.mkdir(exist_ok=True)
        (self.hooks / "koordlet.json").write_text(json.dumps(document))

    def finish(self) -> int:
        """Ask it to end; its exit status."""
        os.kill(self.pid, signal.SIGTERM)
        return self.ended()


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


class Cli:
    """`docker` at one socket."""

    def __init__(self, dockerd: Dockerd, host: Path) -> None:
        self._command = ["/usr/bin/docker", "--host", f"unix://{host}"]
        self._environment = {**os.environ, "DOCKER_CONFIG": str(dockerd.root)}

    def begin(self, *args: str) -> subprocess.Popen[bytes]:
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen([*self._command, *args], env=self._environment, **pipes)

    def __call__(self, *args: str, stdin: bytes = b"") -> tuple[int, bytes, bytes]:
        """Exit status and what it wrote."""
        process = self.begin(*args)
        out, err = process.communicate(stdin, PATIENCE)
        return process.returncode, out, err

    def said(self, *args: str) -> str:
        status, out, err = self(*args)
        assert status == 0, f"docker {' '.join(args)}: {err.decode()}"
        return out.decode().strip()


# -- transparency

PROGRAM = "mkfifo /go; echo ready; cat /go; echo last"
RUN = ("run", "--network=none")


def session(docker: Cli, folder: Path, own: str) -> Iterator[object]:
    """What somebody at a terminal does; yields what came of each step. `own`: a name for what is made."""
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
    yield logs.communicate(timeout=PATIENCE), logs.returncode  # it ends with the container
    yield first_line(events)
    events.send_signal(signal.SIGKILL)  # the stream itself has no end
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
    """What it has of a line when PATIENCE ends, if no whole one comes."""
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
        return done[0], done[2], [(one.name, one.size, one.mtime, one.mode) for one in tar]


def archive(content: bytes) -> bytes:
    found = io.BytesIO()
    with tarfile.open(fileobj=found, mode="w") as tar:
        member = tarfile.TarInfo("file")
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))
    return found.getvalue()


def plain(step: object, own: str) -> str:
    """Without what differs from session to session: ids and the name; long ones as a digest."""
    text = re.sub(rf"\b(?:[0-9a-f]{{64}}|[0-9a-f]{{12}}|{own})\b", "ID", repr(step))
    return text if len(text) < 2000 else f"{len(text)} characters, {hashlib.sha256(text.encode()).hexdigest()}"


def test_a_cli_session_shows_what_it_shows_without_the_proxy(dockerd: Dockerd, proxy: Proxy, tmp_path: Path) -> None:
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
"""Pipelined, and with an end that is no good."""


def answers(path: Path, pieces: Sequence[bytes]) -> bytes:
    """All that comes, to the end of the connection; without the time."""
    found = b""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(PATIENCE)
        client.connect(str(path))
        for piece in pieces:
            client.sendall(piece)
        while data := client.recv(1 << 16):
            found += data
    return re.sub(rb"\r\nDate: [^\r]*", b"", found)


def test_pipelined_requests_get_the_same_bytes(dockerd: Dockerd, proxy: Proxy) -> None:
    direct = answers(dockerd.socket, [TALK])
    assert direct.count(b"HTTP/1.1 ") == 13  # twelve answers and a continue
    assert answers(proxy.socket, [TALK]) == direct
    assert answers(proxy.socket, [TALK[at : at + 7] for at in range(0, len(TALK), 7)]) == direct


# -- hooks


class Recorder:
    """A plugin that has nothing to say and remembers whom it was asked about."""

    hook, gate = "recorder", "none"
    stages = tuple(Stage)

    def __init__(self) -> None:
        self.seen: list[tuple[Stage, str, str, str]] = []

    def answer(self, stage: Stage, context: HookContext, view: Any) -> Answer:
        meta = context.pod.meta
        name = context.container.name if context.container is not None else ""
        self.seen.append((stage, f"{meta.namespace}/{meta.name}", meta.uid, name))
        return NOTHING

    def stages_seen(self) -> list[Stage]:
        return [stage for stage, *_ in self.seen]


@contextmanager
def koordlet(path: Path) -> Iterator[Recorder]:
    """koordlet's hook server with its plugins over a node of 8 CPUs, on a loop and thread of its own."""
    recorder = Recorder()
    registries = Registries()
    hooks = Hooks([BatchResource(), CPUSetAllocator(), recorder], registries, policy=FailurePolicy.FAIL)
    newborns = Newborns(dict, lambda: "kubepods", lambda: 0.0)
    calls = HookCalls(hooks, newborns, make_view, lambda: None, registries, patience=PATIENCE)
    serving, stop = threading.Event(), threading.Event()

    async def serve() -> None:
        server = HookServer(path, calls, "docker", grace=PATIENCE)
        await server.start()
        assert server.problem == ""
        serving.set()
        await asyncio.to_thread(stop.wait)
        await server.stop()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert serving.wait(PATIENCE)
        yield recorder
    finally:
        stop.set()
        thread.join(PATIENCE)


def name_of(container: str, pod: str, attempt: int = 0) -> str:
    return f"k8s_{container}_{pod}_shop_{UID}_{attempt}"


class Shim:
    """Creates pods as dockershim does: names, labels, cgroup parent."""

    def __init__(self, docker: Cli, parent: str, pod: str, qos: str, **annotations: Any) -> None:
        self.docker, self.parent, self.pod = docker, parent, pod
        labels = {
            "koordinator.sh/qosClass": qos, "io.kubernetes.docker.type": "podsandbox",
            **{f"annotation.{key}": json.dumps(value) for key, value in annotations.items()},
        }  # fmt: skip
        self.sandbox = self._create("POD", labels, ["sleep", "1000"], "--cpu-shares=2")
        docker.said("start", self.sandbox)

    def _create(self, name: str, labels: dict[str, str], command: Sequence[str], *flags: str) -> str:
        written = [f"--label={key}={value}" for key, value in labels.items()]
        named = ("--name", name_of(name, self.pod), "--network=none", f"--cgroup-parent={self.parent}")
        return self.docker.said("create", *named, *written, *flags, "busybox", *command)

    def create(self, name: str, *flags: str) -> str:
        """Its id; its program writes what it sees in its cgroup, and its variables."""
        labels = {"io.kubernetes.docker.type": "container", "io.kubernetes.sandbox.id": self.sandbox}
        files = " ".join(f"/sys/fs/cgroup/{file}" for file in FILES)
        return self._create(
            name, labels, ["sh", "-c", f"cat {files}; exec sleep 1000"], "-e", "B=1", "-e", "A=2", *flags
        )

    def first_look(self, container: str) -> dict[str, str]:
        """By file, as the container's first instructions read it."""
        self.docker.said("start", container)

        def lines() -> list[str]:
            found = self.docker.said("logs", container).splitlines()
            return found if len(found) == len(FILES) else []

        return dict(zip(FILES, until(lines, f"{container} has looked"), strict=True))

    def now(self, container: str, file: str) -> str:
        controller, name = file.split("/")
        return (CGROUPS / controller / self.parent.lstrip("/") / container / name).read_text().strip()


SHARES, QUOTA = "cpu/cpu.shares", "cpu/cpu.cfs_quota_us"
CPUS, MEMORY = "cpuset/cpuset.cpus", "memory/memory.limit_in_bytes"
FILES = (SHARES, QUOTA, CPUS, MEMORY)
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


def test_pods_have_what_koordlet_says_from_their_first_instruction(
    dockerd: Dockerd, proxy: Proxy, tmp_path: Path
) -> None:
    docker = Cli(dockerd, proxy.socket)
    with koordlet(tmp_path / "k.sock") as recorder:
        proxy.register(tmp_path / "k.sock", "Fail")
        batch = Shim(docker, dockerd.cgroup_parent("be"), "be-0", "BE", **{EXTENDED: BATCH})
        app, side = batch.create("app", "--cpu-shares=2"), batch.create("side", "--cpu-shares=2")
        seen = batch.first_look(app)
        assert (seen[SHARES], seen[QUOTA], seen[MEMORY]) == ("512", "50000", str(64 * MIB))
        seen = batch.first_look(side)  # unlimited memory is -1 for hooks and an error for dockerd
        assert (seen[SHARES], seen[QUOTA]) == ("256", "25000") and int(seen[MEMORY]) > UNBOUND

        docker.said("update", "--cpu-shares=100", name_of("app", "be-0"))
        assert (batch.now(app, SHARES), batch.now(app, QUOTA)) == ("512", "50000")

        pinned = Shim(docker, dockerd.cgroup_parent("lsr"), "lsr-0", "LSR", **{STATUS: {"cpuset": LAST}})
        own = pinned.create("app", "--cpu-shares=1024", "--cpu-period=100000", "--cpu-quota=200000", "--memory=64m")
        seen = pinned.first_look(own)
        assert seen == {SHARES: "1024", QUOTA: "-1", CPUS: LAST, MEMORY: str(64 * MIB)}
        made = dockerd.inspect(own)
        assert {"A=2", "B=1"} < set(made["Config"]["Env"]) and made["HostConfig"]["CpusetCpus"] == LAST

        recorder.seen.clear()
        docker.said("stop", "-t", "0", app)
        docker.said("stop", "-t", "0", batch.sandbox)
        # after hooks hold nobody up
        until(lambda: len(recorder.seen) == 2, "both stops are told")
        assert proxy.metric('koord_runtime_proxy_calls_total{method="docker create",result="rewritten"}') == 5
        assert recorder.seen == [
            (Stage.POST_STOP_CONTAINER, "shop/be-0", UID, "app"), (Stage.POST_STOP_POD_SANDBOX, "shop/be-0", UID, "")
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
        proxy.start()  # over the socket that is left
        recorder.seen.clear()
        assert pod.first_look(container)[SHARES] == "300"
        until(lambda: len(recorder.seen) == 2, "before and after")
        told = ("shop/web-0", UID, "app")
        assert recorder.seen == [(Stage.PRE_START_CONTAINER, *told), (Stage.POST_START_CONTAINER, *told)]
        docker.said("update", "--cpu-shares=400", container)
        assert pod.now(container, SHARES) == "400"
        assert recorder.stages_seen()[2:] == [Stage.PRE_UPDATE_CONTAINER_RESOURCES]


def test_without_a_hook_server_pods_start_or_fail_by_the_policy(dockerd: Dockerd, proxy: Proxy, tmp_path: Path) -> None:
    """Of the ways in which a server fails (test_hook_dispatch) the slowest: somebody who never says a word."""
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
        made = dockerd.inspect(created)
        assert made["Config"]["Labels"] == {"io.kubernetes.docker.type": "podsandbox"}

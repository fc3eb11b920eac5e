"""The environment of a real dockerd: the proxy's process in front of it, the `docker` command, koordlet's hook server,
pods as dockershim creates them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from koordlet.prometheus import Registries
from koordlet.runtimehooks.announcedpods import AnnouncedPods
from koordlet.runtimehooks.calls import HookCalls
from koordlet.runtimehooks.hooks.batchresource import BatchResource
from koordlet.runtimehooks.hooks.cpuset import CPUSetAllocator
from koordlet.runtimehooks.protocols.server import RuntimeHookServer
from koordlet.runtimehooks.stages import NO_CHANGE, FailurePolicy, HookAnswer, HookContext, Hooks, HookStage
from tests.koordlet.qosmanager.conftest import make_view
from tests.runtimeproxy.docker.conftest import UID
from tests.runtimeproxy.proxyprocess import ProxyProcess
from tests.runtimes.daemons import CGROUPS, Dockerd
from tests.waiting import wait_until

PATIENCE = 60.0
ALL_HOOKS = [str(stage) for stage in HookStage]
SHARES, QUOTA = "cpu/cpu.shares", "cpu/cpu.cfs_quota_us"
CPUS, MEMORY = "cpuset/cpuset.cpus", "memory/memory.limit_in_bytes"
FILES = (SHARES, QUOTA, CPUS, MEMORY)


class Proxy(ProxyProcess):
    """In Docker mode."""

    def __init__(self, backend: Path) -> None:
        super().__init__(backend, "--backend-runtime-mode=Docker", f"--hook-timeout={PATIENCE:g}s")

    def register(self, endpoint: Path, policy: str) -> None:
        document = {"remote-endpoint": str(endpoint), "failure-policy": policy, "runtime-hooks": ALL_HOOKS}
        self.hooks.mkdir(exist_ok=True)
        (self.hooks / "koordlet.json").write_text(json.dumps(document))

    def finish(self) -> int:
        """Stop it; returns its exit status."""
        os.kill(self.pid, signal.SIGTERM)
        return self.ended()


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


class Recorder:
    """A plugin that changes nothing and records its calls."""

    hook, gate = "recorder", "none"
    stages = tuple(HookStage)

    def __init__(self) -> None:
        self.calls: list[tuple[HookStage, str, str, str]] = []
        self.folders: list[str] = []
        """Existing pod cgroups, at each call."""

    def answer(self, stage: HookStage, context: HookContext, view: Any) -> HookAnswer:
        meta = context.pod.meta
        name = context.container.name if context.container is not None else ""
        self.calls.append((stage, f"{meta.namespace}/{meta.name}", meta.uid, name))
        self.folders.append(meta.cgroup_dir)
        return NO_CHANGE

    def stages_called(self) -> list[HookStage]:
        return [stage for stage, *_ in self.calls]


@contextmanager
def koordlet(path: Path) -> Iterator[Recorder]:
    """koordlet's hook server with its plugins for a node of 8 CPUs, on its own loop and thread."""
    recorder = Recorder()
    registries = Registries()
    hooks = Hooks([BatchResource(), CPUSetAllocator(), recorder], registries, policy=FailurePolicy.FAIL)
    announced = AnnouncedPods(dict, lambda: "kubepods", lambda: 0.0)
    calls = HookCalls(hooks, announced, make_view, lambda: None, registries, round_timeout=PATIENCE)
    serving, stop = threading.Event(), threading.Event()

    async def serve() -> None:
        server = RuntimeHookServer(path, calls, "docker", grace=PATIENCE)
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


def name_of(container: str, pod: str, attempt: int = 0, uid: str = UID) -> str:
    return f"k8s_{container}_{pod}_shop_{uid}_{attempt}"


class Shim:
    """Creates pods as dockershim does: names, labels, cgroup parent."""

    def __init__(
        self, docker: Cli, parent: str, pod: str, qos: str, *, flags: Sequence[str] = (), **annotations: Any
    ) -> None:
        """`flags`: of all its containers."""
        self.flags = flags
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
        return self.docker.said("create", *named, *written, *self.flags, *flags, "busybox", *command)

    def create(self, name: str, *flags: str) -> str:
        """Returns its id; its program writes its cgroup's values and its variables."""
        labels = {"io.kubernetes.docker.type": "container", "io.kubernetes.sandbox.id": self.sandbox}
        files = " ".join(f"/sys/fs/cgroup/{file}" for file in FILES)
        return self._create(
            name, labels, ["sh", "-c", f"cat {files}; exec sleep 1000"], "-e", "B=1", "-e", "A=2", *flags
        )

    def first_look(self, container: str) -> dict[str, str]:
        """Values by file, as read by the container's first instructions."""
        self.docker.said("start", container)

        def lines() -> list[str]:
            log_lines = self.docker.said("logs", container).splitlines()
            return log_lines if len(log_lines) == len(FILES) else []

        return dict(zip(FILES, wait_until(lines, f"{container} has looked"), strict=True))

    def now(self, container: str, file: str) -> str:
        controller, name = file.split("/")
        return (CGROUPS / controller / self.parent.lstrip("/") / container / name).read_text().strip()

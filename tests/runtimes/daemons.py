"""Debian's containerd and dockerd as processes of a test, each with its own root, state and socket.

`Containerd` and `Dockerd` can be stopped, killed and started again on their state, for fault tests. `close` removes
containers, shims, mounts and the cgroups below `cgroup_parent`s. No network is needed or configured: pods and
containers use the host's.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import grpc

from control.standalone.containerd import images
from control.standalone.containerd.config import Folder, configuration
from control.standalone.containerd.slices import write_wrapper
from control.standalone.containerd.wipe import mounts, wipe
from control.standalone.kubelet.cgroups.directories import CgroupTree
from koordlet.api.cri import api_pb2 as cri
from tests.ports import listens
from tests.waiting import wait_until

BUSYBOX = images.BUSYBOX
"""The image's full name; `busybox` is the short one. Its command is `sh`, its program /bin/busybox with links."""
PATIENCE = 60.0
CGROUPS = Path("/sys/fs/cgroup")
_serial = itertools.count()


def clear_after_the_dead(tree: CgroupTree) -> None:
    """Remove leftovers of killed test runs: folder names have the pid of their creator."""
    for root in Path("/tmp").glob("koord-???-*-*"):
        pid = root.name.split("-")[2]
        if pid.isdecimal() and not Path(f"/proc/{pid}").exists():
            wipe(Folder(root), tree)  # of a dockerd: its mounts
            shutil.rmtree(root, ignore_errors=True)


class Daemon:
    """A process with a log file and its own folder, whose name is short enough for socket paths."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.tree = CgroupTree.discover(CGROUPS)
        clear_after_the_dead(self.tree)
        self.root = Path(tempfile.mkdtemp(prefix=f"koord-{name}-{os.getpid()}-", dir="/tmp"))
        self.log = self.root / "log"
        self.process: subprocess.Popen[bytes] | None = None
        self._parents: list[str] = []

    @property
    def pid(self) -> int:
        assert self.process is not None, f"{self.name} does not run"
        return self.process.pid

    def argv(self) -> list[str]:
        raise NotImplementedError

    def ready(self) -> bool:
        raise NotImplementedError

    def start(self) -> None:
        """Start and wait until it serves."""
        assert self.process is None, f"{self.name} runs already"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(  # ends with this process
                ["setpriv", "--pdeathsig", "KILL", *self.argv()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_until(self._up, f"{self.name} serves")

    def _up(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, f"{self.name} ended: {self.log.read_text()[-2000:]}"
        return self.ready()

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Stop the daemon; its containers continue."""
        if self.process is None:
            return
        self.process.send_signal(number)
        try:
            self.process.wait(20.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None

    def kill(self) -> None:
        self.stop(signal.SIGKILL)

    def cgroup_parent(self, name: str = "", *, slices: bool = False) -> str:
        """A cgroup in every hierarchy, with a leading slash as in CRI; removed with the daemon. With `slices` it is a
        systemd slice path like `/koord.slice/koord-test.slice/…` (containerd only)."""
        base = f"koord-test-{os.getpid()}-{next(_serial)}"
        if slices:
            flat = base.replace("-", "_")
            path = f"{flat}.slice" + (f"/{flat}-{name}.slice" if name else "")
            self._parents.append(f"{flat}.slice")
        else:
            path = f"{base}{name and '/' + name}"
            self._parents.append(base)
        self.tree.create(path)
        return f"/{path}"

    def clear_parents(self) -> None:
        """Kill the processes in the groups of `cgroup_parent` and remove the groups."""
        for path in self._parents:
            wait_until(lambda path=path: self.tree.kill(path), f"no process is left in {path}")  # type: ignore[misc]
            wait_until(lambda path=path: self.tree.remove(path), f"{path} goes")  # type: ignore[misc]
        self._parents.clear()


class Containerd(Daemon):
    """containerd with the CRI plugin and imported busybox and pause images. `socket` serves CRI and `ctr`; with
    `wrapper=True` pods may have parents in slice style without a systemd."""

    def __init__(self, *, wrapper: bool = True) -> None:
        super().__init__("ctd")
        self.folder = Folder(self.root)
        self._cri = CriCalls(self.folder.socket)
        runc: Path | None = None
        if wrapper:
            runc = self.root / "runc.sh"
            write_wrapper(runc, str(shutil.which("runc")))
        self.folder.config.write_text(configuration(self.folder, runc))

    @property
    def socket(self) -> Path:
        return self.folder.socket

    def argv(self) -> list[str]:
        return ["containerd", "-c", str(self.folder.config)]

    def ready(self) -> bool:
        return listens(self.socket) and self._cri.ready()

    def import_images(self) -> None:
        """Once in the life of its root folder."""
        images.write_images(self.folder.images)
        self.ctr("images", "import", str(self.folder.images))
        for name in images.NAMES:  # CRI lists an import after an event
            wait_until(lambda name=name: self._cri.has_image(name), f"CRI knows {name}")  # type: ignore[misc]

    def remove_pods(self) -> None:
        """Every sandbox with its containers."""
        self._cri.remove_pods()

    def ctr(self, *args: str, ok: bool = True) -> subprocess.CompletedProcess[str]:
        """`ctr` in Kubernetes' namespace."""
        done = subprocess.run(
            ["ctr", "--address", str(self.socket), "--namespace", "k8s.io", *args],
            capture_output=True, text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
        assert not ok or done.returncode == 0, f"ctr {' '.join(args)}: {done.stderr}"
        return done

    def close(self) -> None:
        self.stop()
        wipe(self.folder, self.tree)
        self.clear_parents()
        assert not mounts(self.folder), mounts(self.folder)
        shutil.rmtree(self.root)


C = TypeVar("C", bound=Containerd)


@contextmanager
def running(daemon: C) -> Iterator[C]:
    """Started, with its images, and closed at the end."""
    try:
        daemon.start()
        daemon.import_images()
        yield daemon
    finally:
        daemon.close()


class Dockerd(Daemon):
    """dockerd with busybox loaded (as `busybox`) and its own containerd. No bridge, no iptables. With `live_restore`
    containers continue without it, also after a stop. `driver`: its cgroup driver from the next start on; with
    `systemd`, without a running systemd, it can create containers but not start them."""

    def __init__(self, *, live_restore: bool = True) -> None:
        super().__init__("dkd")
        self.driver = "cgroupfs"
        self._live_restore = live_restore
        self._own = f"koord-test-{os.getpid()}-{next(_serial)}"
        """Parent of containers without one; without it dockerd leaves a group /docker."""

    @property
    def socket(self) -> Path:
        return self.root / "docker.sock"

    def argv(self) -> list[str]:
        parent = f"/{self._own}" if self.driver == "cgroupfs" else f"{self._own}.slice"
        return [
            "dockerd", f"--data-root={self.root / 'data'}", f"--exec-root={self.root / 'exec'}",
            f"--pidfile={self.root / 'pid'}", f"--host=unix://{self.socket}", "--bridge=none", "--iptables=false",
            "--ip6tables=false", "--ip-forward=false", "--ip-masq=false",
            f"--live-restore={str(self._live_restore).lower()}",
            f"--exec-opt=native.cgroupdriver={self.driver}", f"--cgroup-parent={parent}",
        ]  # fmt: skip

    def ready(self) -> bool:
        return listens(self.socket) and self.docker("info", ok=False).returncode == 0

    def kill(self) -> None:
        """Stops its containerd, too, which ends a moment later: a dockerd started before would use it."""
        pid = self.root / "exec/containerd/containerd.pid"
        own = Path("/proc", pid.read_text().strip()) if pid.exists() else None
        super().kill()
        if own is not None:
            wait_until(lambda: not own.exists(), "dockerd's containerd ends")

    def load_images(self) -> None:
        """Once in the life of its root folder."""
        images.write_images(self.root / "images.tar")
        self.docker("load", "--input", str(self.root / "images.tar"))

    def docker(self, *args: str, host: Path | None = None, ok: bool = True) -> subprocess.CompletedProcess[str]:
        """The `docker` command, with this daemon or with another socket (`host`, a proxy's)."""
        done = subprocess.run(
            ["/usr/bin/docker", "--host", f"unix://{host or self.socket}", *args],
            env={**os.environ, "DOCKER_CONFIG": str(self.root)},
            capture_output=True, text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
        assert not ok or done.returncode == 0, f"docker {' '.join(args)}: {done.stderr}{done.stdout}"
        return done

    def inspect(self, name: str) -> dict[str, Any]:
        container: dict[str, Any] = json.loads(self.docker("inspect", name).stdout)[0]
        return container

    def close(self) -> None:
        if self.process is None:
            self.start()  # only it has its containers
        names = self.docker("ps", "--all", "--quiet").stdout.split()
        if names:
            self.docker("rm", "--force", *names)
        self.stop()
        self.tree.create(self._own)
        self._parents.append(self._own)
        self.clear_parents()
        left = mounts(Folder(self.root))
        for point in reversed(left):
            subprocess.run(["umount", "--lazy", point], check=True)
        shutil.rmtree(self.root)


class CriCalls:
    """Blocking CRI calls, with and without a running event loop."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def call(self, service: str, method: str, request: Any, answer: Any = None) -> Any:
        """Raises grpc.RpcError."""
        with grpc.insecure_channel(f"unix:{self._path}", [("grpc.use_local_subchannel_pool", 1)]) as channel:
            stub = channel.unary_unary(
                f"/runtime.v1.{service}/{method}",
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=answer.FromString if answer is not None else bytes,
            )
            return stub(request, timeout=PATIENCE)

    def ready(self) -> bool:
        try:
            answer = self.call("RuntimeService", "Status", cri.StatusRequest(), cri.StatusResponse)
        except grpc.RpcError:
            return False
        return any(condition.type == "RuntimeReady" and condition.status for condition in answer.status.conditions)

    def has_image(self, name: str) -> bool:
        request = cri.ImageStatusRequest(image=cri.ImageSpec(image=name))
        answer = self.call("ImageService", "ImageStatus", request, cri.ImageStatusResponse)
        return bool(answer.HasField("image"))

    def remove_pods(self) -> None:
        listed = self.call("RuntimeService", "ListPodSandbox", cri.ListPodSandboxRequest(), cri.ListPodSandboxResponse)
        for sandbox in listed.items:
            for method in ("StopPodSandbox", "RemovePodSandbox"):
                self.call("RuntimeService", method, cri.PodSandboxRequest(pod_sandbox_id=sandbox.id))

"""Settings and processes of a node, in <state-dir>/state.json, written atomically.

One koordctl at a time works on a state directory (`Lock`). The file is rewritten (fsync, rename) after every single
start and stop. Process records of an earlier boot are dropped.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Self

import msgspec

from control.ctl.errors import CtlError
from control.processid import ProcessId, boot_id
from koordlet.app import atomicfile

STATE_FILE = "state.json"
LOCK_FILE = "lock"


class NodeSettings(msgspec.Struct, frozen=True):
    """Settings of a node, stored so that the next `up` uses the same."""

    node_name: str
    cgroup_driver: str = "cgroupfs"
    apiserver_port: int = 6443
    kubelet_port: int = 10250
    koordlet_port: int = 9316
    manager_port: int = 9317
    webhook_port: int = 9876
    scheduler_port: int = 10251
    runtimeproxy_port: int = 9318
    bpf_pin_dir: str = "/sys/fs/bpf/koordlet"
    probes: str = "auto"
    report_interval: int = 60
    aggregate_duration: int = 300
    second_node: str = ""
    """Name of a second node on this machine, for the demo; empty: none."""
    second_kubelet_port: int = 0
    descheduler_port: int = 0
    runtime: str = "auto"
    """Container runtime: "containerd" or "process"; "auto" is not decided yet."""
    runtime_reason: str = ""
    """Why "auto" did not choose containerd."""
    bare: bool = False
    """Only the parts of a cluster before an installation: manager, scheduler and koordlet are installed as pods."""

    @property
    def koordlet_url(self) -> str:
        return f"http://127.0.0.1:{self.koordlet_port}"

    @property
    def scheduler_url(self) -> str:
        return f"http://127.0.0.1:{self.scheduler_port}"

    @property
    def descheduler_url(self) -> str:
        return f"http://127.0.0.1:{self.descheduler_port}"

    @property
    def manager_url(self) -> str:
        return f"http://127.0.0.1:{self.manager_port}"


class PartRecord(msgspec.Struct, frozen=True):
    """The last start of a part."""

    process: ProcessId
    argv: tuple[str, ...]
    log: str
    started_at: float


class UpState(msgspec.Struct):
    """The content of state.json."""

    settings: NodeSettings | None = None
    parts: dict[str, PartRecord] = {}
    starting: dict[str, tuple[str, ...]] = {}
    """Command lines of parts whose start was begun and not recorded yet."""
    boot_id: str = ""


def load(state_dir: Path) -> UpState:
    """The state, empty when the file does not exist. Raises CtlError for a damaged file."""
    path = state_dir / STATE_FILE
    try:
        state = msgspec.json.decode(path.read_bytes(), type=UpState)
    except FileNotFoundError:
        return UpState(boot_id=boot_id())
    except PermissionError as error:
        raise CtlError(f"{path}: {error.strerror}", "Run koordctl as the user who ran `koordctl up` (root).") from error
    except msgspec.DecodeError as error:
        raise CtlError(
            f"{path} is damaged: {error}",
            "Stop the processes by hand (they carry KOORDCTL_STATE_DIR in their environment) and remove the file.",
        ) from error
    if state.boot_id != boot_id():
        state.parts, state.starting, state.boot_id = {}, {}, boot_id()
    return state


def save(state_dir: Path, state: UpState) -> None:
    atomicfile.write(state_dir / STATE_FILE, msgspec.json.format(msgspec.json.encode(state), indent=2) + b"\n")


class Lock:
    """`with Lock(state_dir):` locks the state directory, or raises CtlError with the holder's pid."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / LOCK_FILE
        self._fd = -1

    def __enter__(self) -> Self:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise CtlError(f"{self._path}: {error.strerror}", "Choose another --state-dir.") from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(self._fd, 20, 0).decode(errors="replace").strip()
            os.close(self._fd)
            raise CtlError(
                f"{self._path.parent}: another koordctl{f' (pid {holder})' if holder else ''} is working on it",
                "Wait until it has finished, or choose another --state-dir.",
            ) from error
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

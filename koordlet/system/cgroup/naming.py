"""Kubernetes' cgroup directory names, both directions, for both cgroup drivers of the kubelet (spec 02 §2.1, 03 §1.2).

All directories here are relative to a hierarchy's root and have no leading or trailing slash; `""` is the root. The
driver follows from the tree once the kubelet has created its root there, before that from the kubelet's command line or
configuration file.
"""

from __future__ import annotations

import enum
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from koordlet.system.kernel import read_text
from koordlet.system.roots import Roots


class NamingError(ValueError):
    """A name that is not of a pod, of a container or of a known runtime; the message contains it."""


class CgroupDriver(enum.Enum):
    SYSTEMD = "systemd"
    CGROUPFS = "cgroupfs"


MAX_NAME_CHARS = 200
"""Of a pod UID or container id; the kernel's limit is 255 for the directory's name around it."""


class KubeQOS(enum.Enum):
    GUARANTEED = "Guaranteed"
    BURSTABLE = "Burstable"
    BESTEFFORT = "BestEffort"


@dataclass(frozen=True, slots=True)
class ContainerId:
    """`<runtime>://<hash>` of a container status."""

    runtime: str
    hash: str

    @classmethod
    def parse(cls, text: str) -> ContainerId:
        runtime, separator, digest = text.partition("://")
        if not separator or not digest or runtime not in _SCOPE_PREFIX:
            raise NamingError(
                f"container id {text[:MAX_NAME_CHARS]!r}: expected one of {sorted(_SCOPE_PREFIX)} then ://<hash>"
            )
        return cls(runtime, _component(digest, "container id"))

    def __str__(self) -> str:
        return f"{self.runtime}://{self.hash}"


_SCOPE_PREFIX = {"docker": "docker-", "containerd": "cri-containerd-", "pouch": "pouch-", "cri-o": "crio-"}
_READABLE_SCOPES = {prefix: runtime for runtime, prefix in _SCOPE_PREFIX.items() if runtime != "pouch"}
_QOS_DIR = {
    CgroupDriver.SYSTEMD: {
        KubeQOS.GUARANTEED: "",
        KubeQOS.BURSTABLE: "kubepods-burstable.slice",
        KubeQOS.BESTEFFORT: "kubepods-besteffort.slice",
    },
    CgroupDriver.CGROUPFS: {
        KubeQOS.GUARANTEED: "",
        KubeQOS.BURSTABLE: "burstable",
        KubeQOS.BESTEFFORT: "besteffort",
    },
}
_ROOT = {CgroupDriver.SYSTEMD: "kubepods.slice", CgroupDriver.CGROUPFS: "kubepods"}
_SYSTEMD_POD = re.compile(r"^kubepods(?:-burstable|-besteffort)?-pod(?P<uid>.+)\.slice$")


def is_slice(cgroup_dir: str) -> bool:
    """Whether systemd manages the group: it writes its own values into a slice, also when groups appear below it."""
    return cgroup_dir.endswith(".slice")


def kubepods_dir(driver: CgroupDriver) -> str:
    return _ROOT[driver]


def qos_dir(driver: CgroupDriver, qos: KubeQOS) -> str:
    """Directory of a Kubernetes QoS class; Guaranteed pods are directly in the kubepods root."""
    return _join(_ROOT[driver], _QOS_DIR[driver][qos])


def pod_dir(driver: CgroupDriver, qos: KubeQOS, uid: str) -> str:
    """Raises NamingError for a UID that cannot be part of a directory's name."""
    _component(uid, "pod UID")
    if driver is CgroupDriver.CGROUPFS:
        return _join(qos_dir(driver, qos), f"pod{uid}")
    level = "" if qos is KubeQOS.GUARANTEED else f"-{qos.value.lower()}"
    return _join(qos_dir(driver, qos), f"kubepods{level}-pod{uid.replace('-', '_')}.slice")


def _component(text: str, kind: str) -> str:
    """The text, if it can be the name of one directory. Pod UIDs and container ids come from the status of pods, so a
    name with a slash or `..` would lead to the cgroup of another pod."""
    if "/" in text or "\0" in text or text in (".", "..") or len(text) > MAX_NAME_CHARS:
        raise NamingError(f"{kind} {text[:MAX_NAME_CHARS]!r} cannot be the name of a directory")
    return text


def container_name(driver: CgroupDriver, container_id: str | ContainerId) -> str:
    """Base name of a container's directory; raises `NamingError`."""
    parsed = ContainerId.parse(container_id) if isinstance(container_id, str) else container_id
    if driver is CgroupDriver.CGROUPFS:
        return parsed.hash
    return f"{_SCOPE_PREFIX[parsed.runtime]}{parsed.hash}.scope"


def host_application_dir(
    driver: CgroupDriver,
    name: str,
    qos: str,
    *,
    base: str | None = None,
    parent_dir: str = "",
    relative_path: str = "",
) -> str:
    """Directory of a NodeSLO host application; `base` None means that it has no `cgroupPath`."""
    if base is None:
        if qos in ("LSE", "LSR", "LS"):
            return _join("host-latency-sensitive", name)
        return _join("host-best-effort", name) if qos == "BE" else name
    known = {
        "Kubepods": KubeQOS.GUARANTEED,
        "KubepodsBurstable": KubeQOS.BURSTABLE,
        "KubepodsBesteffort": KubeQOS.BESTEFFORT,
    }
    top = qos_dir(driver, known[base]) if base in known else ""
    return _join(top, parent_dir, relative_path)


def parse_pod_name(driver: CgroupDriver, name: str) -> str:
    """Pod UID of a directory's base name. With systemd `_` stays: the name does not show whether the UID had `-` (UIDs
    of static pods have none)."""
    if driver is CgroupDriver.CGROUPFS:
        if name.startswith("pod") and len(name) > 3:
            return name[3:]
    elif match := _SYSTEMD_POD.match(name):
        return match["uid"]
    raise NamingError(f"{name!r} is not a pod directory of the {driver.value} driver")


def parse_container_name(driver: CgroupDriver, name: str) -> ContainerId:
    """Identity of a container directory; the runtime is `""` with cgroupfs, where the name does not show it.

    A `crio-<id>` without `.scope` is accepted too; `pouch-` is not (spec 03 §1.2).
    """
    if driver is CgroupDriver.CGROUPFS:
        if name:
            return ContainerId("", name)
    else:
        for prefix, runtime in _READABLE_SCOPES.items():
            digest = name.removeprefix(prefix).removesuffix(".scope")
            if name.startswith(prefix) and digest and (name.endswith(".scope") or runtime == "cri-o"):
                return ContainerId(runtime, digest)
    raise NamingError(f"{name!r} is not a container directory of the {driver.value} driver")


def is_container_name(driver: CgroupDriver, name: str) -> bool:
    try:
        parse_container_name(driver, name)
    except NamingError:
        return False
    return True


def qos_of_dir(cgroup_dir: str) -> KubeQOS:
    """Kubernetes QoS class by the words in the path (spec 03 §0)."""
    if "besteffort" in cgroup_dir:
        return KubeQOS.BESTEFFORT
    return KubeQOS.BURSTABLE if "burstable" in cgroup_dir else KubeQOS.GUARANTEED


def sandbox_id(driver: CgroupDriver, names: Iterable[str], container_ids: Sequence[str]) -> ContainerId | None:
    """The pause container among the directory `names` of a pod's cgroup.

    `container_ids` are the ids of all containers and init containers in the pod's status; None when there are none yet.
    Exactly one directory must be left after the known ones and cri-o's `crio-*.scope` (its sandbox has no `.scope`),
    otherwise it raises `NamingError`.
    """
    if not container_ids:
        return None
    parsed = [ContainerId.parse(text) for text in container_ids]
    known = {container_name(driver, container) for container in parsed}
    left = [
        name
        for name in names
        if name not in known
        and not (name.startswith("crio-") and name.endswith(".scope"))
        and is_container_name(driver, name)
    ]
    if len(left) != 1:
        raise NamingError(f"expected one sandbox directory, got {sorted(left)}")
    return ContainerId(parsed[0].runtime, parse_container_name(driver, left[0]).hash)


def detect_driver(cpu_root: Path) -> CgroupDriver | None:
    """The driver by the tree below the cpu hierarchy's root, None before the kubelet has created its root there."""
    if (cpu_root / _ROOT[CgroupDriver.SYSTEMD]).is_dir():
        return CgroupDriver.SYSTEMD
    return CgroupDriver.CGROUPFS if (cpu_root / _ROOT[CgroupDriver.CGROUPFS]).is_dir() else None


def find_driver(cpu_root: Path, roots: Roots, kubelet_port: int) -> CgroupDriver:
    """The driver by the tree, else by the configuration of the kubelet that listens on `kubelet_port`. Raises
    `NamingError` while neither is known."""
    detected = detect_driver(cpu_root)
    if detected is not None:
        return detected
    pid = listening_pid(roots, kubelet_port)
    if pid is None:
        raise NamingError(f"no process listens on the kubelet's port {kubelet_port}")
    return driver_of_kubelet(roots, pid)


def driver_of_kubelet(roots: Roots, pid: int) -> CgroupDriver:
    """The driver that the kubelet process `pid` is configured for: by its flag, else its configuration file, else
    cgroupfs.

    A relative `--config` is resolved against the working directory of the process. The file is read through the root of
    the process, which is the host's. Raises `NamingError` when process or file cannot be read or the value is unknown.
    """
    process = roots.proc / str(pid)
    try:
        arguments = os.fsdecode((process / "cmdline").read_bytes()).split("\0")
    except OSError as error:
        raise NamingError(f"kubelet process {pid}: {error.strerror}") from error
    flags = _flags(arguments)
    if "cgroup-driver" in flags:
        return _driver(flags["cgroup-driver"], f"flag --cgroup-driver of process {pid}")
    if "config" not in flags:
        return CgroupDriver.CGROUPFS
    config = Path(flags["config"])
    if not config.is_absolute():
        try:
            config = (process / "cwd").readlink() / config
        except OSError as error:
            raise NamingError(f"working directory of kubelet process {pid}: {error.strerror}") from error
    text = read_text(process / "root" / config.relative_to("/"))
    if text is None:
        raise NamingError(f"configuration file {config} of kubelet process {pid} cannot be read")
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon and key.strip().strip("\"'") == "cgroupDriver":
            value = value.split("#", 1)[0].strip().strip(",\"'")
            return _driver(value, f"cgroupDriver in {config}")
    return CgroupDriver.CGROUPFS


def listening_pid(roots: Roots, port: int) -> int | None:
    """The process that listens on TCP `port` in the host's network namespace (that of pid 1), None if there is none.

    Reads the descriptors of every process, which takes milliseconds on a busy node, so callers keep the result.
    """
    inodes = set()
    for name in ("tcp", "tcp6"):
        for line in (read_text(roots.proc / "1/net" / name) or "").splitlines()[1:]:
            fields = line.split()
            if len(fields) > 9 and fields[3] == "0A" and fields[1].endswith(f":{port:04X}"):
                inodes.add(f"socket:[{fields[9]}]")
    if not inodes:
        return None
    for process in roots.proc.iterdir():
        if not process.name.isdigit():
            continue
        try:
            links = [str(entry.readlink()) for entry in (process / "fd").iterdir()]
        except OSError:  # the process ended, or a descriptor was closed, meanwhile
            continue
        if inodes.intersection(links):
            return int(process.name)
    return None


def _flags(arguments: Sequence[str]) -> Mapping[str, str]:
    flags: dict[str, str] = {}
    for index, argument in enumerate(arguments):
        if argument.startswith("-"):
            name, equals, value = argument.lstrip("-").partition("=")
            flags[name] = value if equals else (arguments[index + 1] if index + 1 < len(arguments) else "")
    return flags


def _driver(text: str, where: str) -> CgroupDriver:
    try:
        return CgroupDriver(text)
    except ValueError as error:
        raise NamingError(f"{where}: unknown cgroup driver {text!r}") from error


def _join(*parts: str) -> str:
    return "/".join(part.strip("/") for part in parts if part.strip("/"))

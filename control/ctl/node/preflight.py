"""Checks whether a node can run on this machine. `collect_facts` reads the machine; the rules over the facts are pure.

An error states what is missing, and what works without it.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import random
import socket
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from control.ctl.errors import CtlError
from control.standalone.kubelet.cgroups import ownermark
from control.standalone.kubelet.cgroups.directories import CgroupError, CgroupTree
from control.standalone.kubelet.cgroups.naming import CgroupNames, Driver
from control.standalone.kubelet.cgroups.ownermark import CgroupMark

CGROUP_MOUNT = Path("/sys/fs/cgroup")
SYS = Path("/sys")
FREE_PORT_RANGE = range(20_000, 32_000)
"""Free ports are chosen below net.ipv4.ip_local_port_range and above conventional daemon ports."""
NO_ROOT_HINT = (
    "Without root you can use `koordlet --standalone --probes=off` (the same metrics without eBPF, for cgroups that "
    "you may read) and `koordctl top`/`koordctl status` with any koordlet."
)


@dataclass(frozen=True, slots=True)
class PreflightFacts:
    """Facts about the machine for the rules."""

    uid: int
    cgroups_problem: str = ""
    cgroups_writable: bool = True
    kubepods: tuple[str, ...] = ()
    """Existing kubepods roots, in every driver's naming."""
    own_groups: frozenset[str] = frozenset()
    """Cgroups that the stand-in kubelet of this state directory has created."""
    others: Mapping[str, CgroupMark] = field(default_factory=dict)
    """Kubepods root -> the other node that owns it, by its mark."""
    busy_ports: Mapping[str, int] = field(default_factory=dict)
    """Part -> its port, which another process uses."""
    sys_is_private: bool = False
    """Whether the mount at /sys is private, so that containers with mount propagation cannot have it."""


def collect_facts(kubelet_root: Path, ports: Mapping[str, int], mount: Path = CGROUP_MOUNT) -> PreflightFacts:
    """Read the machine. `ports`: those of parts that do not run yet."""
    tree, problem = None, ""
    try:
        tree = CgroupTree.discover(mount)
    except CgroupError as error:
        problem = str(error.strerror or error)
    return PreflightFacts(
        uid=os.geteuid(),
        cgroups_problem=problem,
        cgroups_writable=tree is not None and all(os.access(root, os.W_OK) for root in tree.roots.values()),
        kubepods=tuple(name for name in kubepods_roots() if tree is not None and tree.exists(name)),
        own_groups=frozenset(made_by_kubelet(kubelet_root)),
        others=other_nodes(tree, kubelet_root.parent) if tree is not None else {},
        busy_ports={part: port for part, port in ports.items() if port_busy(port)},
        sys_is_private=is_private(Path("/proc/self/mountinfo").read_text(), SYS),
    )


def refuse(facts: PreflightFacts, part_names: Collection[str], *, bare: bool = False) -> None:
    """Raise CtlError unless these parts can be started. `bare`: koordlet will be installed as a pod."""
    needs_root = set(part_names) & {"kubelet", "koordlet"}
    if needs_root and facts.uid != 0:
        parts = " and ".join(sorted(needs_root))
        raise CtlError(
            f"not root: {parts} must create cgroups, signal other users' processes and load BPF programs", NO_ROOT_HINT
        )
    if "kubelet" in part_names and facts.cgroups_problem:
        raise CtlError(
            f"no usable cgroups: {facts.cgroups_problem}",
            "Mount cgroup v2, or the v1 hierarchies cpu, cpuset and memory, at /sys/fs/cgroup; "
            "`koordctl up --without kubelet,koordlet` starts API server, manager and scheduler only.",
        )
    if "kubelet" in part_names and not facts.cgroups_writable:
        raise CtlError(
            "cgroups are read-only here (a container without --privileged?)",
            "Run on the host, or `koordctl up --without kubelet` for an API server and koordlet.",
        )
    for name, owner in facts.others.items():
        if "kubelet" in part_names:
            raise CtlError(
                f"cgroup /{name} exists already: it belongs to the node of {owner.state_dir} (kubelet pid {owner.pid})",
                f"Take that node down first: koordctl down --state-dir {owner.state_dir}",
            )
    foreign = [name for name in facts.kubepods if name not in facts.own_groups]
    if "kubelet" in part_names and foreign:
        raise CtlError(
            f"cgroup /{foreign[0]} exists already: a kubelet runs or has run on this machine",
            "On a node of a cluster, run koordlet against that kubelet (deploy/) and use `koordctl top`. For a node of "
            "another `koordctl up`, take it down first: koordctl down --state-dir <its directory>. A leftover without "
            f"processes goes with: find {CGROUP_MOUNT} -depth -type d -path '*/{foreign[0]}*' -exec rmdir {{}} +",
        )
    if bare and "kubelet" in part_names and facts.sys_is_private:
        raise CtlError(
            "the mount at /sys is private: koordlet's pod needs mount propagation there",
            "Run `mount --make-rshared /`, as systemd does at boot, or `make demo-install`, which has its own mounts.",
        )
    for part, port in facts.busy_ports.items():
        option = "--port" if part == "apiserver" else f"--{part}-port"
        raise CtlError(f"port {port} for {part} is in use", f"Choose another with {option} (0: a free one).")


def is_private(mountinfo: str, path: Path) -> bool:
    """Whether the mount that holds `path` neither shares nor receives later mounts; proc_pid_mountinfo(5)."""
    private, depth = False, 0
    for line in mountinfo.splitlines():
        fields = line.partition(" - ")[0].split(" ")
        point = Path(fields[4])
        if path.is_relative_to(point) and len(point.parts) >= depth:
            depth = len(point.parts)
            private = not any(field.startswith(("shared:", "master:")) for field in fields[6:])
    return private


def other_nodes(tree: CgroupTree, own: Path) -> dict[str, CgroupMark]:
    """Kubepods root -> owner, for roots that belong only to nodes of other state directories than `own`."""
    owners: dict[str, CgroupMark] = {}
    for names in map(CgroupNames, Driver):
        owner = ownermark.read(tree, names.root())
        if owner is None or owner.state_dir == str(own):
            continue
        if not ownermark.foreign_groups(tree, names, owner.state_dir):  # else a real kubelet has taken it over
            owners[names.root()] = owner
    return owners


def kubepods_roots() -> list[str]:
    return [CgroupNames(driver).root() for driver in Driver]


def made_by_kubelet(kubelet_root: Path) -> list[str]:
    """The cgroups that the stand-in kubelet has recorded before it created them; parents first."""
    try:
        paths = json.loads((kubelet_root / "cgroups.json").read_bytes()).get("made", [])
    except FileNotFoundError:
        return []
    return [str(path) for path in paths]


def port_busy(port: int) -> bool:
    """Whether a process listens on the port; 0 is never busy."""
    if port == 0:
        return False
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return True
            raise CtlError(f"port {port}: {error.strerror}") from error
    return False


def free_ports(count: int) -> list[int]:
    """`count` different free ports, outside the range from which the kernel assigns client ports: a client may get one
    of those before the server starts."""
    return list(
        itertools.islice(
            (port for port in random.sample(FREE_PORT_RANGE, len(FREE_PORT_RANGE)) if not port_busy(port)), count
        )
    )


def refuse_unknown_parts(names: Iterable[str], known: Collection[str]) -> None:
    """Raise CtlError for an unknown part."""
    for name in names:
        if name not in known:
            raise CtlError(f"unknown part {name!r}", f"Parts are: {', '.join(known)}.")

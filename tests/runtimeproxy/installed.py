"""Observations of a proxy that node.sh installs on a `SystemdNode`: installed, confined, restarted after a kill,
removed."""

from __future__ import annotations

import asyncio
import os
import re
import stat
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from control.standalone.kubelet.runtimes.criclient import CriClient, CriError
from tests.koordlet.process.patience import until
from tests.runtimeproxy.firstlook import uptime
from tests.runtimeproxy.slicenode import BINARY, DOCKER, FLAGS_FILE, LOG, PROXY, UNIT, Runtime, docker
from tests.runtimeproxy.systemdnode import SystemdNode

SEND = "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('{}', 9))"
AWAY = "192.0.2.1"
TRIES = {
    "a file in /etc": "touch /etc/koord-was-here",
    "a file in /var": "touch /var/koord-was-here",
    "a setting of the kernel": "echo 1 >/sys/kernel/mm/ksm/run",
    "a cgroup": "mkdir /sys/fs/cgroup/koord-was-here",
    "a socket of its own": "touch /run/koord-runtimeproxy/own && rm /run/koord-runtimeproxy/own",
    "a registration": "touch /etc/runtime/hookserver.d/own && rm /etc/runtime/hookserver.d/own",
    "homes": "ls -A /home/* /root",
    "files in /tmp": "ls -A /tmp",
    "the machine's memory": "cat /proc/meminfo",
    "devices": "ls /dev/kmsg",
}
REGISTRATION = "/etc/runtime/hookserver.d/koordlet.json"
LEFT = (f"/etc/systemd/system/{UNIT}", PROXY, "/var/lib/koord-runtimeproxy", "/usr/local/bin/koord-runtime-proxy")


@dataclass
class Observations:
    """In chronological order."""

    first_process: str = ""
    installed: str = ""
    active: list[str] = field(default_factory=list)
    enabled: str = ""
    endpoint: str = ""
    status: dict[str, str] = field(default_factory=dict)
    """/proc/PID/status"""
    tried: dict[str, str] = field(default_factory=dict)
    """Action -> exit status and output."""
    pids: tuple[int, int] = (0, 0)
    """Before and after the kill."""
    restarts: str = ""
    failed: str = ""
    """Units after a power cut and a boot; like all of `booted`."""
    booted: list[str] = field(default_factory=list)
    """For runtime, proxy and kubelet: whether active, and number of restarts."""
    moments: list[tuple[int, int]] = field(default_factory=list)
    """For the same: times of start and readiness in microseconds."""
    endpoint_booted: str = ""
    log: str = ""
    containers: list[str] = field(default_factory=list)
    """Docker's states of a container from before the power cut and of one from after it."""
    taken_out: str = ""
    left: list[str] = field(default_factory=list)
    """Files; then whether the unit is active, and known."""
    flags: str = ""
    endpoint_after: str = ""
    answers_after: bool = False


def log_step(what: str) -> None:
    """For the report: the time of this step."""
    print(f"{uptime():.0f} s after boot: {what}", flush=True)


def answers(node: SystemdNode, runtime: Runtime, endpoint: str) -> bool:
    """Connects to the runtime or the proxy there, and requests its version."""
    if runtime is DOCKER:
        return docker(node, endpoint, "version", ok=False).returncode == 0

    async def asked() -> bool:
        async with CriClient(str(node.path(endpoint))) as client:
            try:
                await client.version(30)
            except CriError:
                return False
            return True

    return asyncio.run(asked())


def kubelets_endpoint(node: SystemdNode, runtime: Runtime) -> str:
    """The endpoint flag of the running kubelet; the default's without one."""
    words = Path(f"/proc/{node.main_pid('kubelet.service')}/cmdline").read_text().split("\0")
    endpoints = [word.partition("unix://")[2] for word in words if word.startswith(f"--{runtime.flag}=")]
    return endpoints[0] if endpoints else runtime.socket


def node_sh(node: SystemdNode, command: str, *words: str) -> str:
    """Its output; the time for which it watches the kubelet is shortened."""
    quick = ("SETTLE_SECONDS=1", "START_SECONDS=200")
    return node.run("/opt/koord/install/node.sh", command, *words, environment=quick).stdout


def install(node: SystemdNode, runtime: Runtime, observed: Observations) -> None:
    observed.first_process = node.path("/proc/1/comm").read_text().strip()
    observed.installed = node_sh(node, "install", "--backend", runtime.name, "--binary", BINARY)
    observed.active = node.systemctl("is-active", *runtime.services).split()
    observed.enabled = node.systemctl("is-enabled", UNIT)
    observed.endpoint = kubelets_endpoint(node, runtime)
    lines = Path(f"/proc/{node.main_pid(UNIT)}/status").read_text().splitlines()
    observed.status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    log_step("installed")


def confinement(node: SystemdNode, observed: Observations) -> None:
    """What is refused to a process in the proxy's namespaces and cgroup. For a node with its own network."""
    pid = node.main_pid(UNIT)
    script = "\n".join(f"( {command} ) 2>&1; echo end $?" for command in TRIES.values())
    inside = ["nsenter", f"--target={pid}", "--mount", "--root", "--wd", "sh", "-c", script]
    output = subprocess.run(inside, stdout=subprocess.PIPE, text=True, check=True).stdout
    sections = re.findall(r"(.*?)^end (\d+)\n", output, re.DOTALL | re.MULTILINE)
    observed.tried = {name: f"{status} {words}".strip() for name, (words, status) in zip(TRIES, sections, strict=True)}
    node.run("ip", "address", "add", f"{AWAY}/32", "dev", "lo")
    group = node.group(f"system.slice/{UNIT}")
    for name, address in (("this host", "127.0.0.1"), ("others", AWAY)):
        enter = (
            f'echo 0 >{group}/cgroup.procs; exec nsenter --target={pid} --net python3 -IS -c "{SEND.format(address)}"'
        )
        done = subprocess.run(["sh", "-c", enter], capture_output=True, text=True, check=False)
        observed.tried[name] = f"{done.returncode} {done.stderr[-100:]}".strip()
    control = node.run("python3", "-IS", "-c", SEND.format(AWAY), ok=False)
    observed.tried["others, outside"] = f"{control.returncode} {control.stdout[-100:]}".strip()


def kill(node: SystemdNode, runtime: Runtime, observed: Observations) -> None:
    """And wait until it responds again."""
    before = node.main_pid(UNIT)
    node.systemctl("kill", "--signal=KILL", UNIT)
    until(lambda: set(node.pids(UNIT)) - {before}, "another proxy")
    until(lambda: answers(node, runtime, PROXY), "an answer of it")
    observed.pids, observed.restarts = (before, node.main_pid(UNIT)), node.show(UNIT, "NRestarts")
    log_step("the proxy is back")


def lose_power(node: SystemdNode, runtime: Runtime, observed: Observations) -> None:
    """Cut the power and boot, with a half-written registration and all sockets left over."""
    node.cut_power()
    node.on_disk(REGISTRATION).write_text('{"remote-endpoint": "/run/koordlet/ko')
    for socket in (PROXY, runtime.socket):
        os.mknod(node.on_disk(socket), stat.S_IFSOCK | 0o600)
    node.boot()
    until(node.path("/run/kubelet-is-up").exists, "the kubelet")
    observed.failed = node.systemctl("list-units", "--failed", "--plain", "--no-legend")
    for unit in runtime.services:
        observed.booted += [node.systemctl("is-active", unit, ok=False), node.show(unit, "NRestarts")]
        began, up = ("ExecMainStartTimestampMonotonic", "ActiveEnterTimestampMonotonic")
        observed.moments.append((int(node.show(unit, began)), int(node.show(unit, up))))
    observed.endpoint_booted = kubelets_endpoint(node, runtime)
    until(lambda: answers(node, runtime, PROXY), "an answer through the proxy")
    observed.log = node.path(LOG).read_text()
    log_step("booted after a power cut")


def roll_back(node: SystemdNode, runtime: Runtime, observed: Observations) -> None:
    observed.taken_out = node_sh(node, "rollback")
    observed.left = [place for place in LEFT if os.path.lexists(node.path(place))]
    observed.left += [node.systemctl("is-active", UNIT, ok=False), node.show(UNIT, "LoadState")]
    observed.flags = node.path(FLAGS_FILE).read_text()
    observed.endpoint_after = kubelets_endpoint(node, runtime)
    observed.answers_after = answers(node, runtime, observed.endpoint_after)
    log_step("rolled back")

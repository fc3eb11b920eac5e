"""A koordlet process shapes the network in a network namespace of its own, and the interface is as before when it was
killed and NodeSLO then switches it off, and at a stop.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from koordlet.system.cgroup.naming import KubeQOS
from tests.koordlet.process.cluster import NODE
from tests.koordlet.process.fleet import Fleet, PodSpec
from tests.koordlet.process.patience import until
from tests.koordlet.process.scene import Scene

pytestmark = [pytest.mark.kernel, pytest.mark.timing]

CLONE_NEWNET = 0x40000000
ADDRESS = "10.9.0.5"
TOTAL = {"totalNetworkBandwidth": "1G"}
ON = {
    "systemStrategy": TOTAL,
    "resourceQOSStrategy": {"beClass": {"networkQOS": {"enable": True, "egressLimit": "100M"}}},
}
OFF = {"resourceQOSStrategy": {"beClass": {"networkQOS": {"enable": False}}}}
_libc = ctypes.CDLL(None, use_errno=True)


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def namespace() -> Iterator[None]:
    """This thread, and every process and thread that it starts, are in a new one with a default route over `up0`."""
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    assert _libc.unshare(CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
    try:
        run("ip", "link", "set", "lo", "up")
        run("ip", "link", "add", "up0", "type", "veth", "peer", "name", "up1")
        for interface in ("up0", "up1"):
            run("ip", "link", "set", interface, "up")
        run("ip", "addr", "add", "10.9.0.1/24", "dev", "up0")
        run("ip", "route", "add", "default", "via", "10.9.0.2")
        yield
    finally:
        assert _libc.setns(own, CLONE_NEWNET) == 0
        os.close(own)


@pytest.fixture
def scene(namespace: None, trees: Any, views: Any, tmp_path: Path) -> Iterator[Scene]:
    fleet = Fleet(trees())
    scene = Scene(fleet, views(fleet.tree), tmp_path, gates="TCNetworkQoS=true")
    try:
        yield scene
    finally:
        scene.close()


def picture() -> tuple[str, ...]:
    """Everything that shaping changes."""
    return (
        run("tc", "qdisc", "show", "dev", "up0"),
        run("tc", "class", "show", "dev", "up0"),
        run("ipset", "list", "-name"),
        run("iptables", "-t", "mangle", "-S", "POSTROUTING"),
    )


def test_the_interface_is_shaped_and_itself_again(scene: Scene) -> None:
    before = picture()
    scene.fleet.add(PodSpec("batch", KubeQOS.BESTEFFORT, "BE"))
    scene.open(ON, cpus=2, memory_mib=4096)
    pods = scene.fleet.manifests(NODE)
    for pod in pods:
        pod["status"]["podIP"] = ADDRESS
    scene.kubelet.pods = pods

    def shaped() -> bool:
        _, classes, sets, rules = picture()
        return (
            "class htb 1:4 parent 1:1 prio 3 rate 8Kbit ceil 100Mbit" in classes
            and "be_class" in sets
            and ADDRESS in run("ipset", "list", "be_class")
            and "--match-set be_class src -j CLASSIFY --set-class 0001:0004" in rules
        )

    def alive() -> bool:
        """Fails with koordlet's log when it has ended."""
        return scene.koordlet.answer("/enforcement") is not None

    scene.start()
    until(lambda: alive() and shaped(), "classes, sets and rules")
    scene.koordlet.kill()
    assert shaped(), "a kill takes nothing back"
    scene.ask(OFF)
    scene.start()
    until(lambda: alive() and picture() == before, "what the killed one left to be removed")
    scene.ask(ON)
    until(shaped, "classes, sets and rules again")
    assert scene.stop() == 0
    assert picture() == before

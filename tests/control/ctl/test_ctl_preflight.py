"""Refusals: each states the problem and a hint."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from control.ctl.errors import CtlError
from control.ctl.node import preflight
from control.ctl.node.preflight import PreflightFacts
from control.standalone.kubelet.cgroups.ownermark import CgroupMark
from tests.ports import free_port

ALL = {"apiserver", "kubelet", "koordlet"}
GOOD = PreflightFacts(uid=0)
OTHER = {"kubepods": CgroupMark(7, 1, 1, "boot", "/other/node")}


@pytest.mark.parametrize(
    ("facts", "message", "hint"),
    [
        (PreflightFacts(uid=1000), "not root: koordlet and kubelet must", "koordlet --standalone --probes=off"),
        (
            PreflightFacts(uid=0, cgroups_problem="no cpu cgroup hierarchy"),
            "no usable cgroups: no cpu",
            "Mount cgroup v2",
        ),
        (PreflightFacts(uid=0, cgroups_writable=False), "cgroups are read-only", "--without kubelet"),
        (
            PreflightFacts(uid=0, kubepods=("kubepods",)),
            "cgroup /kubepods exists already: a kubelet runs",
            "koordctl top",
        ),
        (
            PreflightFacts(uid=0, kubepods=("kubepods.slice",), own_groups=frozenset({"kubepods"})),
            "/kubepods.slice exists",
            "down",
        ),
        (
            PreflightFacts(
                uid=0, kubepods=("kubepods",), own_groups=frozenset({"kubepods"}), others=OTHER
            ),  # formerly this node's, reclaimed
            "cgroup /kubepods exists already: it belongs to the node of /other/node (kubelet pid 7)",
            "koordctl down --state-dir /other/node",
        ),
        (PreflightFacts(uid=0, busy_ports={"apiserver": 6443}), "port 6443 for apiserver is in use", "--port"),
        (PreflightFacts(uid=0, busy_ports={"koordlet": 9316}), "port 9316 for koordlet is in use", "--koordlet-port"),
    ],
)
def test_refusals(facts: PreflightFacts, message: str, hint: str) -> None:
    with pytest.raises(CtlError) as caught:
        preflight.refuse(facts, ALL)
    assert message in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("facts", "parts"),
    [
        (GOOD, ALL),
        (PreflightFacts(uid=1000), {"apiserver"}),
        (PreflightFacts(uid=0, kubepods=("kubepods",), own_groups=frozenset({"kubepods"})), ALL),
        (PreflightFacts(uid=0, kubepods=("kubepods",), others=OTHER), {"apiserver", "koordlet"}),
        (PreflightFacts(uid=0, cgroups_problem="none", cgroups_writable=False), {"apiserver"}),
    ],
    ids=["all is well", "API server without root", "its own kubepods", "a real kubelet", "no cgroups needed"],
)
def test_what_can_be_started(facts: PreflightFacts, parts: set[str]) -> None:
    preflight.refuse(facts, parts)


def test_a_port_in_use_is_found() -> None:
    with socket.socket() as taken:
        port = free_port()
        taken.bind(("127.0.0.1", port))
        taken.listen()
        assert preflight.port_busy(port)
        facts = preflight.collect_facts(Path("/nonexistent"), {"apiserver": port, "kubelet": 0})
        assert facts.busy_ports == {"apiserver": port}
    assert not preflight.port_busy(port)


def test_free_ports_differ() -> None:
    ports = preflight.free_ports(5)
    assert len(set(ports)) == 5
    assert not any(map(preflight.port_busy, ports))


def test_a_machine_without_cgroups_is_detected(tmp_path: Path) -> None:
    facts = preflight.collect_facts(tmp_path, {}, mount=tmp_path)
    assert "hierarchy" in facts.cgroups_problem
    assert facts.kubepods == ()


def test_the_kubelets_record_of_cgroups_is_read(tmp_path: Path) -> None:
    assert preflight.made_by_kubelet(tmp_path) == []
    (tmp_path / "cgroups.json").write_text('{"made": ["kubepods", "kubepods/burstable"]}')
    assert preflight.made_by_kubelet(tmp_path) == ["kubepods", "kubepods/burstable"]


def test_unknown_parts_are_named() -> None:
    with pytest.raises(CtlError, match="unknown part 'scheduler'") as caught:
        preflight.refuse_unknown_parts(["kubelet", "scheduler"], ("apiserver", "kubelet"))
    assert "apiserver, kubelet" in caught.value.hint


MOUNTINFO = """\
20 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw
21 20 0:5 / /sys rw,nosuid {sys}- sysfs sysfs rw
22 21 0:6 / /sys/fs/cgroup rw shared:9 - cgroup2 cgroup rw
"""


@pytest.mark.parametrize(
    ("propagation", "private"), [("", True), ("shared:7 ", False), ("master:7 ", False), ("unbindable ", True)]
)
def test_the_mount_that_holds_a_path_decides(propagation: str, private: bool) -> None:
    mountinfo = MOUNTINFO.format(sys=propagation)
    assert preflight.is_private(mountinfo, Path("/sys")) is private
    assert not preflight.is_private(mountinfo, Path("/home"))


def test_a_bare_node_needs_mount_propagation() -> None:
    facts = PreflightFacts(uid=0, sys_is_private=True)
    with pytest.raises(CtlError, match="/sys is private") as caught:
        preflight.refuse(facts, ALL, bare=True)
    assert "mount --make-rshared /" in caught.value.hint
    preflight.refuse(facts, ALL)

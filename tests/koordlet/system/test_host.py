"""Probing the host: nothing that a host lacks may raise."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from koordlet.system import kernel
from koordlet.system.host import Host, probe
from koordlet.system.roots import Roots
from tests.koordlet.roots import roots_under
from tests.koordlet.system.conftest import Tree


def test_an_empty_host_has_a_reason_for_each_missing_feature(tmp_path: Path) -> None:
    facts = probe(roots_under(tmp_path))
    assert facts.cgroup_version == 1
    assert not facts.cgroupfs
    missing = facts.reasons()
    assert {"cgroup", "cgroup2", "psi", "btf", "bpffs", "kidled", "anolis", "resctrl", "cap_sys_admin"} <= set(missing)
    assert all(missing.values())
    assert not (facts.psi or facts.btf or facts.bpffs or facts.cgroup2 or facts.resctrl or facts.anolis)
    assert facts.online_cpus


def test_the_features_of_a_host_are_found(tree: Tree) -> None:
    tree.file("proc/pressure/cpu", "some ...")
    tree.file("sys/kernel/btf/vmlinux", "")
    tree.file("proc/cpuinfo", "vendor_id : GenuineIntel\nmodel name\t: Xeon\nflags : a cat_l3 mba\n")
    tree.file("sys/devices/system/cpu/online", "0-3,8\n")
    tree.file("proc/self/status", "Name:\tx\nCapEff:\t000001ffffffffff\n")
    for name in ("scan_period_in_seconds", "use_hierarchy"):
        tree.file(f"sys/kernel/mm/kidled/{name}", "5\n")
    tree.put("memory", "memory.wmark_ratio", "0\n", "first")
    facts = probe(tree.roots)
    assert facts.cgroup_version == tree.version
    for name in ("psi", "btf", "resctrl", "kidled", "anolis", "cap_sys_admin"):
        assert facts.has(name), facts.reasons()
    assert str(facts.online_cpus) == "0-3,8"
    assert "memory" in facts.controllers
    assert facts.cpu.model == "Xeon"
    assert facts.has("cgroup2") == (tree.version == 2)


def test_malformed_files_do_not_fail_the_probe(tree: Tree) -> None:
    tree.file("proc/self/mountinfo", "nonsense\n")
    tree.file("sys/devices/system/cpu/online", "nonsense\n")
    facts = probe(tree.roots)
    assert facts.online_cpus


def test_the_users_of_a_hierarchy_share_its_walk(tmp_path: Path) -> None:
    host = Host(Roots.host())
    assert host.repeated_walk(tmp_path) is host.repeated_walk(str(tmp_path))
    assert host.repeated_walk(tmp_path) is not host.repeated_walk(tmp_path / "other")


def test_facts_are_probed_once(tree: Tree) -> None:
    host = Host(tree.roots)
    before = host.facts
    tree.file("sys/kernel/btf/vmlinux", "")
    assert host.facts is before and not before.btf
    assert Host(tree.roots, before).facts is before


def test_the_boot_id_is_read_without_its_newline(make_tree: Callable[[int], Tree]) -> None:
    tree = make_tree(2)
    path = tree.roots.proc_sys / "kernel/random/boot_id"
    path.parent.mkdir(parents=True)
    path.write_text("6f1b\n")
    assert kernel.boot_id(tree.roots) == "6f1b"


@pytest.mark.parametrize(
    ("mode", "cgroup"), [("hostMode", "/sys/fs/cgroup"), ("dsMode", "/host-cgroup"), ("", "/host-cgroup")]
)
def test_the_agent_mode_selects_the_roots(mode: str, cgroup: str) -> None:
    assert str(Roots.from_env({"agent_mode": mode}).cgroup) == cgroup


@pytest.mark.kernel
def test_this_machine_has_the_expected_features(kernel_host: Host) -> None:
    facts = kernel_host.facts
    assert facts.cgroupfs
    assert {"cpu", "memory"} <= facts.controllers
    assert len(facts.online_cpus) == os.cpu_count()
    assert facts.clk_tck == os.sysconf("SC_CLK_TCK")
    assert facts.jiffy_ns == 1_000_000_000 // facts.clk_tck
    assert facts.btf, facts.reasons()
    assert facts.psi, facts.reasons()


@pytest.mark.kernel
def test_a_process_without_root_rights_is_probed(tmp_path: Path) -> None:
    code = (
        "import os, sys; os.setgid(65534); os.setuid(65534);"
        "from koordlet.system.host import probe; from koordlet.system.roots import Roots;"
        "facts = probe(Roots.host());"
        "print(facts.root, facts.has('cap_sys_admin'), facts.reasons()['root'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("False False running as uid 65534")

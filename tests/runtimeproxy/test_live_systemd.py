"""koord-runtime-proxy under a live systemd: installed by node.sh, confined by its unit, killed and back, taken out.

Without containers and without limits of its cgroup: those need controllers on cgroup v2 (`guest_systemd.py`).
"""

from __future__ import annotations

import pytest

from tests.runtimeproxy.installed import Seen, answers, confinement, install, kill, roll_back
from tests.runtimeproxy.slicenode import CONTAINERD, KUBEADM, PROXY, UNIT, open_node, start_containerd

pytestmark = pytest.mark.runtime

SERVICES = ("containerd.service", UNIT, "kubelet.service")


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    found = Seen()
    node = open_node(tmp_path_factory.mktemp("node"), own_network=True)
    try:
        start_containerd(node)
        install(node, found, SERVICES)
        confinement(node, found)
        kill(node, found)
        roll_back(node, found)
        assert answers(node.path(CONTAINERD))
    except BaseException:
        print(node.log.read_text()[-8000:])
        raise
    finally:
        node.close()
    return found


def test_systemd_runs_what_node_sh_installs(seen: Seen) -> None:
    assert seen.first_process == "systemd"
    assert seen.active == ["active"] * len(SERVICES), seen.installed
    assert seen.enabled == "enabled"
    assert seen.endpoint == PROXY


def test_it_has_no_rights(seen: Seen) -> None:
    assert (seen.status["NoNewPrivs"], seen.status["Seccomp"]) == ("1", "2")
    assert {seen.status[f"Cap{kind}"] for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {"0" * 16}


@pytest.mark.parametrize("what", ["a file in /etc", "a file in /var", "a setting of the kernel", "a cgroup"])
def test_it_can_change_nothing(seen: Seen, what: str) -> None:
    assert "Read-only file system" in seen.tried[what]


@pytest.mark.parametrize("what", ["the machine's memory", "devices"])
def test_it_sees_nothing_else(seen: Seen, what: str) -> None:
    assert "No such file" in seen.tried[what]


def test_homes_and_temporary_files_are_hidden(seen: Seen) -> None:
    assert "/home/*" in seen.tried["homes"]
    assert seen.tried["homes"].rpartition("/root:")[2].strip() == ""
    assert seen.tried["files in /tmp"] == "0"


def test_it_may_write_where_it_must(seen: Seen) -> None:
    assert seen.tried["a socket of its own"] == seen.tried["a registration"] == "0"


def test_it_may_speak_to_its_own_host_only(seen: Seen) -> None:
    assert seen.tried["this host"] == seen.tried["others, outside"] == "0"
    assert "Operation not permitted" in seen.tried["others"]


def test_systemd_brings_it_back_and_it_answers(seen: Seen) -> None:
    before, after = seen.pids
    assert before != after
    assert seen.restarts == "1"


def test_a_roll_back_leaves_nothing(seen: Seen) -> None:
    assert seen.left == ["inactive", "not-found"], seen.taken_out
    assert seen.flags == KUBEADM
    assert seen.endpoint_after == CONTAINERD

"""koord-runtime-proxy with a live systemd: installed by node.sh, confined by its unit, restarted after a kill, removed.
Without containers and without limits of its cgroup: those need controllers on cgroup v2 (`guest_systemd.py`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from control.standalone.containerd import images
from tests.runtimeproxy.installed import REGISTRATION, Seen, confinement, install, kill, lose_power, roll_back
from tests.runtimeproxy.slicenode import CONTAINERD, DOCKER, LOG, PROXY, Runtime, docker, open_node, start
from tests.runtimeproxy.systemdnode import SystemdNode

pytestmark = pytest.mark.runtime

RUNTIMES = {runtime.name: runtime for runtime in (CONTAINERD, DOCKER)}


@pytest.fixture(scope="module", params=RUNTIMES)
def runtime(request: pytest.FixtureRequest) -> Runtime:
    return RUNTIMES[request.param]


def containers_and_a_power_cut(node: SystemdNode, folder: Path, seen: Seen) -> None:
    """One from before, one from after."""
    run = ("run", "--detach", "--network=host", "busybox", "sleep", "1000000")
    images.write_images(folder / "images.tar")
    docker(node, PROXY, "load", "--input", str(folder / "images.tar"))
    before = docker(node, PROXY, *run).stdout.strip()
    lose_power(node, DOCKER, seen)
    after = docker(node, PROXY, *run).stdout.strip()
    seen.containers = docker(node, PROXY, "inspect", "--format={{.State.Status}}", before, after).stdout.split()


@pytest.fixture(scope="module")
def seen(runtime: Runtime, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    seen, folder = Seen(), tmp_path_factory.mktemp("node")
    node = open_node(folder, own_network=True)
    try:
        start(node, runtime)
        install(node, runtime, seen)
        confinement(node, seen)
        kill(node, runtime, seen)
        if runtime is DOCKER:  # without controllers containerd creates no pods
            containers_and_a_power_cut(node, folder, seen)
        else:
            lose_power(node, runtime, seen)
        roll_back(node, runtime, seen)
    except BaseException:
        print(node.log.read_text()[-8000:], node.path(LOG).read_text()[-8000:])
        raise
    finally:
        node.close()
    return seen


def test_systemd_runs_what_node_sh_installs(seen: Seen) -> None:
    assert seen.first_process == "systemd"
    assert seen.active == ["active"] * 3, seen.installed
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


def test_it_can_connect_to_its_own_host_only(seen: Seen) -> None:
    assert seen.tried["this host"] == seen.tried["others, outside"] == "0"
    assert "Operation not permitted" in seen.tried["others"]


def test_systemd_restarts_it_and_it_responds(seen: Seen) -> None:
    before, after = seen.pids
    assert before != after
    assert seen.restarts == "1"


def test_everything_starts_at_the_first_attempt_after_a_power_cut(seen: Seen) -> None:
    assert seen.failed == ""
    assert seen.booted == ["active", "0"] * 3
    assert seen.endpoint_booted == PROXY


def test_a_boot_starts_the_runtime_then_the_proxy_then_the_kubelet(seen: Seen) -> None:
    (_, runtime), (proxy_began, proxy), (kubelet_began, _) = seen.moments
    assert 0 < runtime <= proxy_began <= proxy <= kubelet_began


@pytest.mark.parametrize("runtime", ["docker"], indirect=True)
def test_containers_from_before_are_known_and_others_can_be_made(seen: Seen) -> None:
    assert seen.containers == ["exited", "running"]


def test_a_half_written_registration_is_logged(seen: Seen) -> None:
    [log_line] = [line for line in seen.log.splitlines() if REGISTRATION in line]
    assert "Invalid hook server registration" in log_line


def test_a_roll_back_leaves_nothing(runtime: Runtime, seen: Seen) -> None:
    assert seen.left == ["inactive", "not-found"], seen.taken_out
    assert seen.flags == runtime.kubelet_flags
    assert seen.endpoint_after == runtime.socket
    assert seen.answers_after

"""koord-runtime-proxy with a live systemd: installed by node.sh, confined by its unit, restarted after a kill, removed.
Without containers and without limits of its cgroup: those need controllers on cgroup v2 (`guest_systemd.py`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from control.standalone.containerd import images
from tests.runtimeproxy.installed import REGISTRATION, Observations, confinement, install, kill, lose_power, roll_back
from tests.runtimeproxy.slicenode import CONTAINERD, DOCKER, LOG, PROXY, Runtime, docker, open_node, start
from tests.runtimeproxy.systemdnode import SystemdNode

pytestmark = pytest.mark.runtime

RUNTIMES = {runtime.name: runtime for runtime in (CONTAINERD, DOCKER)}


@pytest.fixture(scope="module", params=RUNTIMES)
def runtime(request: pytest.FixtureRequest) -> Runtime:
    return RUNTIMES[request.param]


def containers_and_a_power_cut(node: SystemdNode, folder: Path, observed: Observations) -> None:
    """One from before, one from after."""
    run = ("run", "--detach", "--network=host", "busybox", "sleep", "1000000")
    images.write_images(folder / "images.tar")
    docker(node, PROXY, "load", "--input", str(folder / "images.tar"))
    before = docker(node, PROXY, *run).stdout.strip()
    lose_power(node, DOCKER, observed)
    after = docker(node, PROXY, *run).stdout.strip()
    observed.containers = docker(node, PROXY, "inspect", "--format={{.State.Status}}", before, after).stdout.split()


@pytest.fixture(scope="module")
def observed(runtime: Runtime, tmp_path_factory: pytest.TempPathFactory) -> Observations:
    observed, folder = Observations(), tmp_path_factory.mktemp("node")
    node = open_node(folder, own_network=True)
    try:
        start(node, runtime)
        install(node, runtime, observed)
        confinement(node, observed)
        kill(node, runtime, observed)
        if runtime is DOCKER:  # without controllers containerd creates no pods
            containers_and_a_power_cut(node, folder, observed)
        else:
            lose_power(node, runtime, observed)
        roll_back(node, runtime, observed)
    except BaseException:
        print(node.log.read_text()[-8000:], node.path(LOG).read_text()[-8000:])
        raise
    finally:
        node.close()
    return observed


def test_systemd_runs_what_node_sh_installs(observed: Observations) -> None:
    assert observed.first_process == "systemd"
    assert observed.active == ["active"] * 3, observed.installed
    assert observed.enabled == "enabled"
    assert observed.endpoint == PROXY


def test_it_has_no_rights(observed: Observations) -> None:
    assert (observed.status["NoNewPrivs"], observed.status["Seccomp"]) == ("1", "2")
    assert {observed.status[f"Cap{kind}"] for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {"0" * 16}


@pytest.mark.parametrize("what", ["a file in /etc", "a file in /var", "a setting of the kernel", "a cgroup"])
def test_it_can_change_nothing(observed: Observations, what: str) -> None:
    assert "Read-only file system" in observed.tried[what]


@pytest.mark.parametrize("what", ["the machine's memory", "devices"])
def test_it_sees_nothing_else(observed: Observations, what: str) -> None:
    assert "No such file" in observed.tried[what]


def test_homes_and_temporary_files_are_hidden(observed: Observations) -> None:
    assert "/home/*" in observed.tried["homes"]
    assert observed.tried["homes"].rpartition("/root:")[2].strip() == ""
    assert observed.tried["files in /tmp"] == "0"


def test_it_may_write_where_it_must(observed: Observations) -> None:
    assert observed.tried["a socket of its own"] == observed.tried["a registration"] == "0"


def test_it_can_connect_to_its_own_host_only(observed: Observations) -> None:
    assert observed.tried["this host"] == observed.tried["others, outside"] == "0"
    assert "Operation not permitted" in observed.tried["others"]


def test_systemd_restarts_it_and_it_responds(observed: Observations) -> None:
    before, after = observed.pids
    assert before != after
    assert observed.restarts == "1"


def test_everything_starts_at_the_first_attempt_after_a_power_cut(observed: Observations) -> None:
    assert observed.failed == ""
    assert observed.booted == ["active", "0"] * 3
    assert observed.endpoint_booted == PROXY


def test_a_boot_starts_the_runtime_then_the_proxy_then_the_kubelet(observed: Observations) -> None:
    (_, runtime), (proxy_began, proxy), (kubelet_began, _) = observed.moments
    assert 0 < runtime <= proxy_began <= proxy <= kubelet_began


@pytest.mark.parametrize("runtime", ["docker"], indirect=True)
def test_containers_from_before_are_known_and_others_can_be_made(observed: Observations) -> None:
    assert observed.containers == ["exited", "running"]


def test_a_half_written_registration_is_logged(observed: Observations) -> None:
    [log_line] = [line for line in observed.log.splitlines() if REGISTRATION in line]
    assert "Invalid hook server registration" in log_line


def test_a_roll_back_leaves_nothing(runtime: Runtime, observed: Observations) -> None:
    assert observed.left == ["inactive", "not-found"], observed.taken_out
    assert observed.flags == runtime.kubelet_flags
    assert observed.endpoint_after == runtime.socket
    assert observed.answers_after

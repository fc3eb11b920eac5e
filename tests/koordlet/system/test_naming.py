from collections.abc import Callable
from pathlib import Path
from subprocess import Popen
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.system.cgroup import naming
from koordlet.system.cgroup.naming import CgroupDriver, ContainerId, KubeQOS, NamingError
from koordlet.system.roots import Roots
from tests.koordlet.cgroupdirs import container_dir
from tests.koordlet.roots import roots_under

SYSTEMD, CGROUPFS = CgroupDriver.SYSTEMD, CgroupDriver.CGROUPFS
G, B, BE = KubeQOS.GUARANTEED, KubeQOS.BURSTABLE, KubeQOS.BESTEFFORT
UID = "7712555c-ce62-454a-9e18-9ff0217b8941"
ESCAPED_UID = UID.replace("-", "_")


@pytest.mark.parametrize(
    ("driver", "qos", "path"),
    [
        (SYSTEMD, G, f"kubepods.slice/kubepods-pod{ESCAPED_UID}.slice"),
        (SYSTEMD, B, f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{ESCAPED_UID}.slice"),
        (SYSTEMD, BE, f"kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{ESCAPED_UID}.slice"),
        (CGROUPFS, G, f"kubepods/pod{UID}"),
        (CGROUPFS, B, f"kubepods/burstable/pod{UID}"),
        (CGROUPFS, BE, f"kubepods/besteffort/pod{UID}"),
    ],
)
def test_a_pod_directory_is_formatted_and_parsed(driver: CgroupDriver, qos: KubeQOS, path: str) -> None:
    assert naming.pod_dir(driver, qos, UID) == path
    assert naming.parse_pod_name(driver, path.rpartition("/")[2]).replace("_", "-") == UID
    assert naming.qos_of_dir(path) is qos


@pytest.mark.parametrize(
    ("runtime", "systemd"),
    [
        ("docker", "docker-abc.scope"),
        ("containerd", "cri-containerd-abc.scope"),
        ("pouch", "pouch-abc.scope"),
        ("cri-o", "crio-abc.scope"),
    ],
)
def test_container_names_of_each_runtime(runtime: str, systemd: str) -> None:
    assert naming.container_name(SYSTEMD, f"{runtime}://abc") == systemd
    assert naming.container_name(CGROUPFS, f"{runtime}://abc") == "abc"
    assert container_dir(CGROUPFS, B, UID, f"{runtime}://abc") == f"kubepods/burstable/pod{UID}/abc"
    if runtime == "pouch":
        assert not naming.is_container_name(SYSTEMD, systemd)
    else:
        assert naming.parse_container_name(SYSTEMD, systemd) == ContainerId(runtime, "abc")


@pytest.mark.parametrize("text", ["abc", "://abc", "docker://", "rkt://abc", ""])
def test_malformed_container_ids_are_errors(text: str) -> None:
    with pytest.raises(NamingError):
        naming.container_name(SYSTEMD, text)


def test_a_crio_sandbox_has_no_scope() -> None:
    assert naming.parse_container_name(SYSTEMD, "crio-abc") == ContainerId("cri-o", "abc")


@pytest.mark.parametrize(("driver", "name"), [(SYSTEMD, "podabc"), (SYSTEMD, "kubepods.slice"), (CGROUPFS, "abc"),
                                              (CGROUPFS, "pod")])  # fmt: skip
def test_other_names_are_not_pods(driver: CgroupDriver, name: str) -> None:
    with pytest.raises(NamingError, match=name):
        naming.parse_pod_name(driver, name)


@pytest.mark.parametrize(
    ("names", "ids", "sandbox"),
    [
        pytest.param(["a", "b"], ["containerd://a"], "containerd://b", id="one-left"),
        pytest.param(["a"], [], None, id="no-statuses-yet"),
    ],
)
def test_the_sandbox_is_the_directory_without_a_status(names: list[str], ids: list[str], sandbox: str | None) -> None:
    assert (naming.sandbox_id(CGROUPFS, names, ids) or None) == (sandbox and ContainerId.parse(sandbox))


def test_leftover_scopes_of_crio_are_ignored() -> None:
    names = ["crio-app.scope", "crio-old.scope", "crio-pause", "init.scope"]
    assert str(naming.sandbox_id(SYSTEMD, names, ["cri-o://app"])) == "cri-o://pause"


@pytest.mark.parametrize("names", [["a", "b", "c"], ["a"]], ids=["two-left", "none-left"])
def test_an_ambiguous_sandbox_is_an_error(names: list[str]) -> None:
    with pytest.raises(NamingError, match="expected one sandbox"):
        naming.sandbox_id(CGROUPFS, names, ["docker://a"])


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        ({"qos": "LS"}, "host-latency-sensitive/nginx"),
        ({"qos": "LSE"}, "host-latency-sensitive/nginx"),
        ({"qos": "BE"}, "host-best-effort/nginx"),
        ({"qos": ""}, "nginx"),
        ({"qos": "BE", "base": "CgroupRoot", "parent_dir": "/a/", "relative_path": "b/"}, "a/b"),
        ({"qos": "BE", "base": "Kubepods", "relative_path": "b"}, "kubepods/b"),
        ({"qos": "BE", "base": "KubepodsBurstable", "relative_path": "b"}, "kubepods/burstable/b"),
        ({"qos": "BE", "base": "KubepodsBesteffort", "parent_dir": "x"}, "kubepods/besteffort/x"),
        ({"qos": "BE", "base": "Odd", "parent_dir": "x"}, "x"),
    ],
)
def test_directories_of_host_applications(arguments: dict[str, Any], path: str) -> None:
    assert naming.host_application_dir(CGROUPFS, "nginx", **arguments) == path


@pytest.mark.parametrize(
    ("dirs", "driver"),
    [(["kubepods.slice", "kubepods"], SYSTEMD), (["kubepods"], CGROUPFS), ([], None)],
)
def test_the_driver_is_detected_from_the_tree(tmp_path: Path, dirs: list[str], driver: CgroupDriver | None) -> None:
    for name in dirs:
        (tmp_path / name).mkdir()
    assert naming.detect_driver(tmp_path) is driver


def kubelet(tmp_path: Path, *arguments: str, config: str | None = None) -> CgroupDriver:
    roots = roots_under(tmp_path)
    process = roots.proc / "42"
    (process / "root/var/lib/kubelet").mkdir(parents=True)
    (process / "cwd").symlink_to("/var/lib/kubelet")
    (process / "cmdline").write_bytes("\0".join(["kubelet", *arguments, ""]).encode())
    if config is not None:
        (process / "root/var/lib/kubelet/config.yaml").write_text(config)
    return naming.driver_of_kubelet(roots, 42)


YAML = "kind: KubeletConfiguration\ncgroupDriver: systemd # why\n"


@pytest.mark.parametrize(
    ("arguments", "config", "driver"),
    [
        pytest.param(["--cgroup-driver=systemd"], None, SYSTEMD, id="flag"),
        pytest.param(["--cgroup-driver", "cgroupfs", "--config=config.yaml"], YAML, CGROUPFS, id="flag-wins"),
        pytest.param(["--config=/var/lib/kubelet/config.yaml"], YAML, SYSTEMD, id="absolute-config"),
        pytest.param(["--config", "config.yaml"], YAML, SYSTEMD, id="relative-config"),
        pytest.param(["--config=config.yaml"], "cgroupDriver: 'cgroupfs'\n", CGROUPFS, id="quoted"),
        pytest.param(["--config=config.yaml"], "a: b\n", CGROUPFS, id="config-without-driver"),
        pytest.param([], None, CGROUPFS, id="no-configuration"),
    ],
)
def test_the_driver_is_read_from_the_kubelets_configuration(
    tmp_path: Path, arguments: list[str], config: str | None, driver: CgroupDriver
) -> None:
    assert kubelet(tmp_path, *arguments, config=config) is driver


@pytest.mark.parametrize(
    ("arguments", "config", "message"),
    [
        (["--cgroup-driver=odd"], None, "unknown cgroup driver 'odd'"),
        (["--config=config.yaml"], None, "cannot be read"),
        (["--config=config.yaml"], "cgroupDriver: odd\n", "unknown cgroup driver 'odd'"),
    ],
)
def test_unusable_kubelet_settings_are_errors(
    tmp_path: Path, arguments: list[str], config: str | None, message: str
) -> None:
    with pytest.raises(NamingError, match=message):
        kubelet(tmp_path, *arguments, config=config)


def test_a_missing_kubelet_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NamingError, match="kubelet process 1"):
        naming.driver_of_kubelet(roots_under(tmp_path), 1)
    assert naming.listening_pid(roots_under(tmp_path / "none"), 1) is None


def test_the_tree_takes_precedence_over_the_kubelet(tmp_path: Path) -> None:
    roots = roots_under(tmp_path)
    (tmp_path / "cpu").mkdir()
    with pytest.raises(NamingError, match="port 10250"):
        naming.find_driver(tmp_path / "cpu", roots, 10250)
    process = roots.proc / "42"
    (process / "fd").mkdir(parents=True)
    (process / "fd/3").symlink_to("socket:[777]")
    (process / "cmdline").write_bytes(b"kubelet\0--cgroup-driver=cgroupfs\0")
    (roots.proc / "1/net").mkdir(parents=True)
    row = "   0: 00000000:280A 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 777 1 x\n"
    (roots.proc / "1/net/tcp6").write_text("  sl  local_address ...\n" + row)
    assert naming.find_driver(tmp_path / "cpu", roots, 10250) is CGROUPFS
    (tmp_path / "cpu/kubepods.slice").mkdir()
    assert naming.find_driver(tmp_path / "cpu", roots, 10250) is SYSTEMD


@pytest.mark.kernel
def test_the_listening_process_is_found(spawn: Callable[..., Popen[str]]) -> None:
    code = (
        "import socket,time; s=socket.socket(); s.bind(('127.0.0.1',0)); s.listen();"
        "print(s.getsockname()[1],flush=True); time.sleep(600)"
    )
    process = spawn(["python3", "-S", "-c", code])
    assert process.stdout is not None
    port = int(process.stdout.readline())
    assert naming.listening_pid(Roots.host(), port) == process.pid


@given(st.uuids(), st.sampled_from(KubeQOS), st.sampled_from(CgroupDriver))
def test_every_pod_directory_is_parsed_back(uid: UUID, qos: KubeQOS, driver: CgroupDriver) -> None:
    path = naming.pod_dir(driver, qos, str(uid))
    assert naming.parse_pod_name(driver, path.rpartition("/")[2]).replace("_", "-") == str(uid)
    assert naming.qos_of_dir(path) is qos


@pytest.mark.parametrize("name", ["../../burstable/podvictim", "a/b", "..", ".", "a\0b", "a" * 300])
def test_names_that_lead_to_other_directories_are_refused(name: str) -> None:
    with pytest.raises(NamingError):
        ContainerId.parse(f"containerd://{name}")
    with pytest.raises(NamingError):
        naming.pod_dir(CGROUPFS, KubeQOS.BURSTABLE, name)

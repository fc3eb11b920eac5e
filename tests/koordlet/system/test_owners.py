import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.system.cgroup.naming import CgroupDriver, KubeQOS, pod_dir
from koordlet.system.cgroup.owners import OwnerKind, classify
from tests.koordlet.cgroupdirs import container_dir

ID = "0123456789abcdef" * 4
SHORT = ID[:12]
UID = "7712555c-ce62-454a-9e18-9ff0217b8941"
ESCAPED_UID = UID.replace("-", "_")
C, S = OwnerKind.CONTAINER, OwnerKind.SERVICE


@pytest.mark.parametrize(
    ("path", "kind", "name", "runtime", "container_id"),
    [
        ("", OwnerKind.ROOT, "/", "", ""),
        (f"docker/{ID}", C, SHORT, "docker", ID),
        (f"system.slice/docker-{ID}.scope", C, SHORT, "docker", ID),
        (f"default/{ID}", C, SHORT, "containerd", ID),
        ("default/busy", C, "busy", "containerd", "busy"),
        (f"k8s.io/{ID}", C, SHORT, "containerd", ID),
        (f"system.slice:cri-containerd:{ID}", C, SHORT, "containerd", ID),
        (f"a/system.slice:docker:{ID}", C, SHORT, "docker", ID),
        (f"machine.slice/libpod-{ID}.scope", C, SHORT, "podman", ID),
        (f"machine.slice/libpod-{ID}.scope/container", C, SHORT, "podman", ID),
        (f"libpod_parent/libpod-{ID}", C, SHORT, "podman", ID),
        (f"user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope", C, SHORT, "podman", ID),
        ("lxc/web", C, "web", "lxc", "web"),
        ("lxc.payload.web", C, "web", "lxc", "web"),
        ("machine.slice/machine-deb.scope", C, "deb", "nspawn", "deb"),
        ("system.slice", OwnerKind.SLICE, "system.slice", "", ""),
        ("system.slice/sshd.service", S, "sshd.service", "", ""),
        (f"machine.slice/libpod-conmon-{ID}.scope", OwnerKind.SCOPE, f"libpod-conmon-{ID}.scope", "", ""),
        (f"crio-conmon-{ID}.scope", OwnerKind.SCOPE, f"crio-conmon-{ID}.scope", "", ""),
        ("init.scope", OwnerKind.SCOPE, "init.scope", "", ""),
        ("process_api/work", OwnerKind.OTHER, "process_api/work", "", ""),
        ("default", OwnerKind.OTHER, "default", "", ""),
        ("kubepods", OwnerKind.KUBE_QOS, "kubepods", "", ""),
        ("kubepods/besteffort", OwnerKind.KUBE_QOS, "kubepods/besteffort", "", ""),
    ],
)
def test_the_owner_follows_from_the_path(
    path: str, kind: OwnerKind, name: str, runtime: str, container_id: str
) -> None:
    owner = classify(path)
    assert (owner.kind, owner.name, owner.runtime, owner.container_id) == (kind, name, runtime, container_id)
    assert classify(f"/{path}/") == owner


@pytest.mark.parametrize(
    ("path", "name", "user"),
    [
        ("user.slice/user-1000.slice", "user-1000.slice", 1000),
        ("user.slice/user-1000.slice/session-3.scope", "session-3", 1000),
        ("user.slice/user-0.slice/user@0.service", "user@0.service", 0),
    ],
)
def test_user_sessions_have_a_user(path: str, name: str, user: int) -> None:
    owner = classify(path)
    assert (owner.kind, owner.name, owner.user) == (OwnerKind.USER_SESSION, name, user)


def test_units_of_a_user_keep_the_user() -> None:
    owner = classify("user.slice/user-7.slice/user@7.service/app.slice/x.service")
    assert (owner.kind, owner.name, owner.user) == (S, "x.service", 7)


@pytest.mark.parametrize("qos", KubeQOS)
@pytest.mark.parametrize("driver", CgroupDriver)
@pytest.mark.parametrize("prefix", ["", "kubelet.slice/", "docker-in-docker/"])
def test_pods_and_containers_have_the_pods_uid(qos: KubeQOS, driver: CgroupDriver, prefix: str) -> None:
    pod = classify(prefix + pod_dir(driver, qos, UID))
    assert (pod.kind, pod.pod_uid, pod.qos) == (OwnerKind.POD, UID, qos)
    container = classify(prefix + container_dir(driver, qos, UID, f"containerd://{ID}"))
    assert (container.kind, container.pod_uid, container.container_id) == (C, UID, ID)
    assert container.runtime == ("containerd" if driver is CgroupDriver.SYSTEMD else "")


def test_groups_inside_a_container_are_not_containers() -> None:
    owner = classify(f"kubepods/pod{UID}/{ID}/app.slice")
    assert (owner.kind, owner.pod_uid, owner.container_id) == (OwnerKind.OTHER, UID, ID)


def test_other_directories_below_kubepods_are_other() -> None:
    assert classify("kubepods/podman-thing.d/x").kind is OwnerKind.OTHER


@given(st.text(st.characters(codec="utf-8"), max_size=60))
def test_every_path_has_an_owner(path: str) -> None:
    assert classify(path).name

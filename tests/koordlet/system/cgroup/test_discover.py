import pytest

from koordlet.system.cgroup import container_dirs, discover, pod_dirs
from koordlet.system.cgroup.naming import CgroupDriver, KubeQOS, container_dir, pod_dir, same_uid
from koordlet.system.cgroup.owners import OwnerKind

UIDS = {
    KubeQOS.GUARANTEED: "00000000-0000-4000-8000-00000000000a",
    KubeQOS.BURSTABLE: "00000000-0000-4000-8000-00000000000b",
    KubeQOS.BESTEFFORT: "00000000-0000-4000-8000-00000000000c",
}
IDS = ["a" * 64, "b" * 64]


@pytest.mark.parametrize("driver", CgroupDriver)
def test_pods_and_containers_of_a_kubelet(tree, driver):
    for qos, uid in UIDS.items():
        for digest in IDS:
            tree.dir("cpu", container_dir(driver, qos, uid, f"containerd://{digest}")).mkdir(parents=True)
    fs = tree.fs()
    pods = pod_dirs(fs, driver)
    assert [pod.qos for pod in pods] == list(UIDS)
    assert [pod.dir for pod in pods] == [pod_dir(driver, qos, uid) for qos, uid in UIDS.items()]
    assert all(same_uid(pod.uid, UIDS[pod.qos]) for pod in pods)
    for pod in pods:
        containers = container_dirs(fs, driver, pod.dir)
        assert [container.id.hash for container in containers] == IDS
        assert all(container.dir.startswith(pod.dir + "/") for container in containers)


def test_no_kubelet(tree):
    assert pod_dirs(tree.fs(), CgroupDriver.SYSTEMD) == []
    assert container_dirs(tree.fs(), CgroupDriver.SYSTEMD, "none") == []


def test_any_host(tree):
    for path in ("system.slice/sshd.service", f"docker/{IDS[0]}", "a/b/c"):
        tree.dir("cpu", path).mkdir(parents=True)
    tree.dir("memory", "memory-only").mkdir()
    found = {one.dir: one.owner.kind for one in discover(tree.fs(), max_depth=2)}
    expected = {
        "": OwnerKind.ROOT, "a": OwnerKind.OTHER, "a/b": OwnerKind.OTHER, "docker": OwnerKind.OTHER,
        f"docker/{IDS[0]}": OwnerKind.CONTAINER, "memory-only": OwnerKind.OTHER,
        "system.slice": OwnerKind.SLICE, "system.slice/sshd.service": OwnerKind.SERVICE,
    }  # fmt: skip
    assert found == expected
    assert list(found) == sorted(found)


def test_a_host_with_too_many_cgroups_shows_the_shallow_ones(tree):
    for path in ("a/deep/x", "b", "c"):
        tree.dir("cpu", path).mkdir(parents=True)
    assert [one.dir for one in discover(tree.fs(), limit=4)] == ["", "a", "b", "c"]


@pytest.mark.kernel
def test_this_machine_has_our_group(kernel_fs, cgroup_child):
    child = cgroup_child()
    assert child.dir in [one.dir for one in discover(kernel_fs)]

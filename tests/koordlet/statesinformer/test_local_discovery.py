"""What a host runs, from its cgroup directories alone."""

import pytest

from koordlet.statesinformer.pods.local import MAX_GROUPS, discover
from koordlet.statesinformer.pods.model import SubjectKind
from koordlet.statesinformer.states import MAX_SKIPPED_WALKS, LocalStates

ID = "a" * 64
POD = "1f0c9a7e-0000-4000-8000-000000000001"
CGROUPFS = f"kubepods/besteffort/pod{POD}"
SYSTEMD = f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{POD.replace('-', '_')}.slice"

CASES = {
    "cgroupfs pod": (CGROUPFS, SubjectKind.POD, POD, "BE"),
    "systemd pod": (SYSTEMD, SubjectKind.POD, POD, "LS"),
    "docker": (f"system.slice/docker-{ID}.scope", SubjectKind.CONTAINER, f"docker://{ID}", ""),
    "docker cgroupfs": (f"docker/{ID}", SubjectKind.CONTAINER, f"docker://{ID}", ""),
    "containerd": ("default/web", SubjectKind.CONTAINER, "containerd://web", ""),
    "service": ("system.slice/ssh.service", SubjectKind.GROUP, "system.slice/ssh.service", ""),
    "own group": ("burners", SubjectKind.GROUP, "burners", ""),
}


@pytest.mark.parametrize(("path", "kind", "key", "qos"), CASES.values(), ids=CASES)
def test_each_kind_of_cgroup_becomes_a_subject(path: str, kind: SubjectKind, key: str, qos: str) -> None:
    subjects = discover([path], 1).subjects
    assert [(s.kind, s.key, s.qos, s.cgroup_dir) for s in subjects] == [(kind, key, qos, path)]


def test_containers_belong_to_their_pods() -> None:
    workloads = discover(
        ["", "kubepods", "kubepods/besteffort", CGROUPFS, f"{CGROUPFS}/{ID}", f"{CGROUPFS}/{ID}/own"], 7
    )
    assert workloads.version == 7
    assert [c.cgroup_dir for c in workloads.pods[POD].containers] == [f"{CGROUPFS}/{ID}"]
    assert [(s.kind, s.pod_uid, s.qos) for s in workloads.subjects] == [
        (SubjectKind.POD, POD, "BE"),
        (SubjectKind.CONTAINER, POD, "BE"),
    ]


def test_a_host_with_thousands_of_groups_stays_bounded() -> None:
    assert len(discover([f"system.slice/run-{n}.service" for n in range(5000)], 1).subjects) == MAX_GROUPS


def test_a_tree_that_another_component_saw_unchanged_is_not_walked() -> None:
    """Only if it was walked since the last refresh, and not indefinitely: renaming a cgroup changes no count."""
    walks: list[int] = []
    counts = [(0, 0)]

    def dirs() -> list[str]:
        walks.append(len(walks))
        return [f"s{len(walks)}.slice"]

    states = LocalStates(dirs, lambda: counts[-1])
    states.refresh()
    states.refresh()
    assert len(walks) == 2, "the other component has not walked it"
    counts.append((1, 0))
    states.refresh()
    assert len(walks) == 2
    states.expire()
    states.refresh()
    assert len(walks) == 3, "a pod was added"
    counts.append((2, 1))
    states.refresh()
    assert len(walks) == 4 and states.workloads.subjects[0].key == "s4.slice"
    for number in range(3, 4 + MAX_SKIPPED_WALKS):
        counts.append((number, 1))
        states.refresh()
    assert len(walks) == 5

"""Cgroup ids to names: nesting, vanished and reused ids, and how often the tree is walked."""

from koordlet.statesinformer.pods.cgroupindex import CgroupIndex
from koordlet.statesinformer.pods.local import discover
from koordlet.statesinformer.pods.model import Workloads

ID = "b" * 64
POD = "kubepods/burstable/pod1f0c9a7e"
CONTAINER = f"{POD}/{ID}"
TREE = {"": 1, "kubepods": 2, "kubepods/burstable": 3, POD: 4, CONTAINER: 5, f"{CONTAINER}/inner": 6,
        f"{POD}/{'c' * 64}": 7, "system.slice": 8, "system.slice/ssh.service": 9}  # fmt: skip


class Tree:
    def __init__(self, **extra: int) -> None:
        self.dirs, self.walks = dict(TREE) | extra, 0

    def walk(self) -> list[tuple[str, int]]:
        self.walks += 1
        return list(self.dirs.items())


def workloads(version: int = 1) -> Workloads:
    return discover([path for path in TREE if path != f"{POD}/{'c' * 64}"], version)


def index(tree: Tree, now: float = 0.0) -> CgroupIndex:
    index = CgroupIndex(tree.walk)
    index.refresh(workloads(), now)
    return index


def test_ids_resolve_to_the_closest_subject() -> None:
    cgroups = index(Tree())
    kinds = {i: (cgroups.owner(i).kind, cgroups.owner(i).name) for i in TREE.values()}
    assert kinds == {
        1: ("root", "/"),
        2: ("qos", "kubepods"),
        3: ("qos", "kubepods/burstable"),
        4: ("pod", ""),
        5: ("container", ID[:12]),
        6: ("container", ID[:12]),
        7: ("pod", ""),  # the sandbox: the pod's own
        8: ("system", "system.slice"),
        9: ("system", "ssh.service"),
    }
    assert cgroups.owner(5).pod_uid == "1f0c9a7e"


def test_a_removed_cgroup_keeps_its_name_until_its_id_is_reused() -> None:
    tree = Tree()
    cgroups = index(tree)
    del tree.dirs["system.slice/ssh.service"]
    cgroups.refresh(workloads(version=2), 1.0)
    assert cgroups.owner(9).name == "ssh.service"
    assert 9 not in cgroups.walk_ids()
    tree.dirs["system.slice/cron.service"] = 9
    cgroups.refresh(workloads(version=3), 2.0)
    assert cgroups.owner(9).name == "cron.service"


def test_an_id_without_a_known_cgroup_has_a_name() -> None:
    assert index(Tree()).owner(4711).label == "cgroup 4711"


def test_an_unknown_id_causes_one_delayed_walk() -> None:
    tree = Tree()
    cgroups = index(tree, now=0.0)
    for tick in range(1, 51):  # 0.1 s apart
        cgroups.refresh(workloads(), tick / 10, ids=[5, 4711])
    assert tree.walks == 2
    cgroups.refresh(workloads(), 100.0, ids=[5, 9, 4711])
    assert tree.walks == 2
    tree.dirs["system.slice/new.service"] = 4712
    cgroups.refresh(workloads(), 101.0, ids=[4712])
    assert tree.walks == 3
    assert cgroups.owner(4712).name == "new.service"

"""A koordlet process divides the cache among real threads through an emulated resctrl, with each CPU vendor's rules.
It leaves nothing behind when it was killed and NodeSLO then switches the feature off, nor when it stops.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from koordlet.system.cgroup.naming import KubeQOS
from koordlet.system.resctrl import Schemata, read_schemata
from tests.koordlet import resctrlfs
from tests.koordlet.process.fleet import Fleet, PodSpec
from tests.koordlet.process.patience import until
from tests.koordlet.process.scene import Scene

pytestmark = pytest.mark.kernel

Group = tuple[Schemata, set[int]]

CPUINFO = {
    "intel": "vendor_id\t: GenuineIntel\nmodel name\t: Xeon\nflags\t\t: cat_l3 mba\n",
    "amd": "vendor_id\t: AuthenticAMD\nmodel name\t: EPYC\nflags\t\t: cat_l3 mba\n",
}
"""What koordlet sees as /proc/cpuinfo."""
EXPECTED = {
    "intel": {"lower half": 0x3F, "upper half": 0x7C0, "all": 0x7FF, "35 %": 40, "100 %": 100},
    "amd": {"lower half": 0xFF, "upper half": 0xFF00, "all": 0xFFFF, "35 %": 56, "100 %": 2048},
}
ON = {"resourceQOSStrategy": {"beClass": {"resctrlQOS": {"enable": True, "catRangeEndPercent": 50, "mbaPercent": 35}}}}
OFF = {"resourceQOSStrategy": {"beClass": {"resctrlQOS": {"enable": False}}}}
OWN = {"node.koordinator.sh/resctrl": '{"llc":{"schemata":{"range":[50,100]}}}'}


class Cache:
    """The emulated resctrl as processes in the view see it."""

    def __init__(self, view: Any, vendor: str) -> None:
        self.root = view.from_outside(view.sys_fs) / "resctrl"
        command = [sys.executable, "-S", str(resctrlfs.__file__), str(view.sys_fs / "resctrl"), vendor, "closids=8"]
        self.process = subprocess.Popen(view.enter(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "mounted\n"

    def groups(self) -> dict[str, Group]:
        """Name -> schemata, tasks."""
        groups = {}
        for path in self.root.iterdir():
            try:
                schemata = read_schemata(path)
                tasks = set(map(int, (path / "tasks").read_text().split()))
            except (FileNotFoundError, NotADirectoryError):
                continue
            if schemata is not None:
                groups[path.name] = schemata, tasks
        return groups


@pytest.fixture
def scene(trees: Any, views: Any, tmp_path: Path, resctrl_vendor: str) -> Iterator[Scene]:
    fleet = Fleet(trees())
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(CPUINFO[resctrl_vendor])
    view = views(fleet.tree, also=(f"mount --bind {cpuinfo} /proc/cpuinfo",))
    (view.sys_fs / "resctrl").mkdir()
    scene = Scene(fleet, view, tmp_path, gates="Resctrl=true")
    try:
        yield scene
    finally:
        scene.close()


@pytest.fixture
def cache(scene: Scene, resctrl_vendor: str) -> Iterator[Cache]:
    cache = Cache(scene.view, resctrl_vendor)
    yield cache
    cache.process.communicate()


def schemata(mask: int, bandwidth: int) -> Schemata:
    """The same value for both cache domains."""
    return Schemata(dict.fromkeys((0, 1), mask), dict.fromkeys((0, 1), bandwidth))


def test_the_cache_is_divided_and_whole_again(scene: Scene, cache: Cache, resctrl_vendor: str) -> None:
    fleet = scene.fleet
    batch, service, own = fleet.add(
        PodSpec("batch", KubeQOS.BESTEFFORT, "BE"),
        PodSpec("web", KubeQOS.BURSTABLE, "LS"),
        PodSpec("own", KubeQOS.BURSTABLE, "LS", annotations=OWN),
    )
    root_schemata = (cache.root / "schemata").read_text()

    def threads(pod: Any) -> set[int]:
        ids: set[int] = set()
        for directory in pod.dirs:
            path = fleet.tree.path("cpu", directory) / ("cgroup.threads" if fleet.tree.v2 else "tasks")
            ids |= set(map(int, path.read_text().split()))
        return ids

    values = EXPECTED[resctrl_vendor]
    expected: dict[str, Group] = {
        "BE": (schemata(values["lower half"], values["35 %"]), threads(batch)),
        "LS": (schemata(values["all"], values["100 %"]), set()),
        "LSR": (schemata(values["all"], values["100 %"]), set()),
        f"koordlet-{own.uid}": (schemata(values["upper half"], values["100 %"]), threads(own)),
    }
    assert expected["BE"][1], "the pod has threads"
    scene.open(ON, cpus=2, memory_mib=4096)

    def alive() -> bool:
        """Whether koordlet answers; fails with its log when it has ended."""
        return scene.koordlet.answer("/enforcement") is not None

    scene.start()
    until(lambda: alive() and cache.groups() == expected, "groups, schemata and threads")
    assert threads(service), "in no group: resctrl is off for its class"
    scene.koordlet.kill()
    assert cache.groups() == expected
    scene.ask(OFF)
    fleet.remove(own.uid)
    scene.publish()
    scene.start()
    until(lambda: alive() and cache.groups() == {}, "removal of the groups that the killed process left")
    assert (cache.root / "schemata").read_text() == root_schemata
    scene.ask(ON)
    until(lambda: cache.groups().keys() == {"BE", "LS", "LSR"}, "groups again")
    assert scene.stop() == 0
    assert cache.groups() == {}

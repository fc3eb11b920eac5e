"""A koordlet process divides the cache among real threads through a mounted resctrl (a strict emulation: this machine
has none), and leaves nothing behind when it was killed and NodeSLO then switches it off, nor at a stop.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from koordlet.system.cgroup.naming import KubeQOS
from tests.koordlet.process.fleet import Fleet, PodSpec
from tests.koordlet.process.scene import Scene

pytestmark = pytest.mark.kernel

EMULATION = Path(__file__).parents[1] / "resctrlfs.py"
ON = {"resourceQOSStrategy": {"beClass": {"resctrlQOS": {"enable": True, "catRangeEndPercent": 50, "mbaPercent": 35}}}}
OFF = {"resourceQOSStrategy": {"beClass": {"resctrlQOS": {"enable": False}}}}
OWN = {"node.koordinator.sh/resctrl": '{"llc":{"schemata":{"range":[50,100]}}}'}


class Cache:
    """The mounted resctrl as processes in the view see it."""

    def __init__(self, view: Any) -> None:
        self.root = view.seen(view.sys_fs) / "resctrl"
        command = [sys.executable, "-S", str(EMULATION), str(view.sys_fs / "resctrl"), "closids=8"]
        self.process = subprocess.Popen(view.enter(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "mounted\n"

    def groups(self) -> dict[str, tuple[list[str], set[int]]]:
        """Name -> schemata lines, tasks."""
        found = {}
        for path in self.root.iterdir():
            try:
                lines = [line.strip().replace("= ", "=") for line in (path / "schemata").read_text().splitlines()]
                found[path.name] = lines, set(map(int, (path / "tasks").read_text().split()))
            except (FileNotFoundError, NotADirectoryError):
                continue
        return found


@pytest.fixture
def scene(tools: Any, trees: Any, views: Any, tmp_path: Path) -> Iterator[Scene]:
    fleet = Fleet(trees())
    view = views(fleet.tree)
    (view.sys_fs / "resctrl").mkdir()
    made = Scene(tools, fleet, view, tmp_path, gates="Resctrl=true")
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def cache(scene: Scene) -> Iterator[Cache]:
    made = Cache(scene.view)
    yield made
    made.process.communicate()


def test_the_cache_is_divided_and_whole_again(scene: Scene, cache: Cache) -> None:
    fleet, tools = scene.fleet, scene.tools
    batch, service, own = fleet.add(
        PodSpec("batch", KubeQOS.BESTEFFORT, "BE"),
        PodSpec("web", KubeQOS.BURSTABLE, "LS"),
        PodSpec("own", KubeQOS.BURSTABLE, "LS", annotations=OWN),
    )
    root_schemata = (cache.root / "schemata").read_text()

    def threads(pod: Any) -> set[int]:
        found: set[int] = set()
        for directory in pod.dirs:
            path = fleet.tree.path("cpu", directory) / ("cgroup.threads" if fleet.tree.v2 else "tasks")
            found |= set(map(int, path.read_text().split()))
        return found

    expected = {
        "BE": (["MB:0=40;1=40", "L3:0=3f;1=3f"], threads(batch)),
        "LS": (["MB:0=100;1=100", "L3:0=7ff;1=7ff"], set()),
        "LSR": (["MB:0=100;1=100", "L3:0=7ff;1=7ff"], set()),
        f"koordlet-{own.uid}": (["MB:0=100;1=100", "L3:0=7c0;1=7c0"], threads(own)),
    }
    assert expected["BE"][1], "the pod has threads"
    scene.open(ON, cpus=2, memory_mib=4096)

    def alive() -> bool:
        """Fails with koordlet's log when it has ended."""
        return scene.koordlet.answer("/enforcement") is not None

    scene.start()
    tools.until(lambda: alive() and _lined(cache.groups()) == _lined(expected), "groups, schemata and threads")
    assert threads(service), "nobody's group: its class is off"
    scene.koordlet.kill()
    assert _lined(cache.groups()) == _lined(expected)
    scene.ask(OFF)
    fleet.remove(own.uid)
    scene.publish()
    scene.start()
    tools.until(lambda: alive() and cache.groups() == {}, "what the killed one left to be removed")
    assert (cache.root / "schemata").read_text() == root_schemata
    scene.ask(ON)
    tools.until(lambda: cache.groups().keys() == {"BE", "LS", "LSR"}, "groups once more")
    assert scene.stop() == 0
    assert cache.groups() == {}


def _lined(groups: dict[str, tuple[list[str], set[int]]]) -> dict[str, tuple[list[str], set[int]]]:
    return {name: (sorted(lines), tasks) for name, (lines, tasks) in groups.items()}

"""A real koordlet keeps pods of different groups off one core: policy `coreSched` on a kernel that has cookies. It is
killed and comes again, is told of another policy, and is stopped. Only in the guest of `make test-sched`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from koordlet.system.cgroup.naming import KubeQOS
from koordlet.system.cpu import coresched
from tests.koordlet.process.fleet import Fleet, Need, Pod, PodSpec
from tests.koordlet.process.patience import until
from tests.koordlet.process.scene import Scene

pytestmark = [pytest.mark.kernel, pytest.mark.timing]

CPUS, MEMORY_MIB = 4, 2048
ONE = Need(cpu=(500, 500), memory=(64, 64))
SPECS = (
    PodSpec("web", KubeQOS.BURSTABLE, "LS", (ONE, ONE)),
    PodSpec("plain", KubeQOS.BURSTABLE, "", (ONE,)),
    PodSpec("job", KubeQOS.BESTEFFORT, "BE"),
    PodSpec("system", KubeQOS.BURSTABLE, "SYSTEM", (ONE,)),
)
CLASSES = {
    "lsClass": {"cpuQOS": {"enable": True, "coreExpeller": True}},
    "beClass": {"cpuQOS": {"enable": True, "schedIdle": 1}},
}
METRIC = "koordlet_container_core_sched_cookie"


def policy(name: str) -> dict[str, Any]:
    return {"resourceQOSStrategy": {"policies": {"cpuPolicy": name}, **CLASSES}}


Cookies = dict[str, set[int]]
"""Pod -> cookies of its containers' and its sandbox's processes."""


@dataclass
class History:
    """Cookies by moment."""

    on: Cookies = field(default_factory=dict)
    families: dict[str, Any] = field(default_factory=dict)
    killed: Cookies = field(default_factory=dict)
    again: Cookies = field(default_factory=dict)
    off: Cookies = field(default_factory=dict)
    third: Cookies = field(default_factory=dict)
    stopped: Cookies = field(default_factory=dict)


@pytest.fixture(scope="module")
def scene(trees: Any, views: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    fleet = Fleet(trees())
    fleet.add(*SPECS)
    gates = "CoreSched=true,BECPUSuppress=false"
    scene = Scene(fleet, views(fleet.tree), tmp_path_factory.mktemp("cluster"), gates=gates)
    try:
        scene.open(policy("coreSched"), cpus=CPUS, memory_mib=MEMORY_MIB)
        yield scene
    finally:
        scene.close()


def pids(scene: Scene, pod: Pod) -> list[int]:
    files = [scene.fleet.tree.path("cpu", directory) / "cgroup.procs" for directory in pod.dirs[1:]]
    return [int(pid) for file in files for pid in file.read_text().split()]


def cookies(scene: Scene) -> Cookies:
    pods = scene.fleet.pods.values()
    return {pod.spec.name: {coresched.get_cookie(pid) for pid in pids(scene, pod)} for pod in pods}


@pytest.fixture(scope="module")
def history(scene: Scene) -> History:
    history = History()

    def reaching(what: str, reached: Callable[[Cookies], bool]) -> Cookies:
        until(lambda: reached(cookies(scene)), what)
        return cookies(scene)

    def separated(now: Cookies) -> bool:
        return now["web"] == now["plain"] != now["job"] and 0 not in now["web"] | now["job"]

    def bare(now: Cookies) -> bool:
        return all(held == {0} for held in now.values())

    scene.start()
    history.on = reaching("cookies", separated)
    until(lambda: len(scene.koordlet.values(METRIC)) == 4, "the cookies of four containers")
    history.families = scene.koordlet.families(start="koordlet_co")
    scene.koordlet.kill()
    history.killed = cookies(scene)
    scene.start()
    scene.settle()
    history.again = cookies(scene)
    scene.ask(policy("groupIdentity"))
    history.off = reaching("no cookies with another policy", bare)
    scene.ask(policy("coreSched"))
    history.third = reaching("cookies again", separated)
    assert scene.stop() == 0
    history.stopped = cookies(scene)
    return history


def test_groups_have_cookies_of_their_own(history: History) -> None:
    assert history.on["web"] == history.on["plain"]
    assert len(history.on["web"]) == len(history.on["job"]) == 1
    assert history.on["web"] != history.on["job"]
    assert history.on["system"] == {0}


def test_the_metric_names_the_cookies_that_the_processes_have(history: History) -> None:
    samples = [sample.labels for sample in history.families[METRIC].samples]
    shown = {(labels["pod_name"], labels["core_sched_group"], labels["core_sched_cookie"]) for labels in samples}
    groups = {"web": "-expeller", "plain": "-expeller", "job": ""}
    assert shown == {(name, group, str(next(iter(history.on[name])))) for name, group in groups.items()}
    manage = history.families["koordlet_core_sched_cookie_manage_status"].samples
    assert {sample.labels["status"] for sample in manage} == {"succeeded"}


def test_a_killed_koordlet_leaves_them_and_the_next_one_finds_them(history: History) -> None:
    assert history.on == history.killed == history.again


def test_another_policy_and_a_stop_restore_the_processes(history: History) -> None:
    assert set().union(*history.off.values()) == set().union(*history.stopped.values()) == {0}

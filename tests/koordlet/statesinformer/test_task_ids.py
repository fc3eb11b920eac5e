"""Threads of a pod's containers, and which directory is its sandbox."""

from collections.abc import Callable
from typing import Any

import pytest

from koordlet.api.core import Pod
from koordlet.api.encoding.wire import decode
from koordlet.statesinformer.pods.informer import PodsInformer, describe
from koordlet.statesinformer.pods.taskids import task_ids
from koordlet.system.cgroup.naming import CgroupDriver
from koordlet.system.errors import CgroupGone

POD = b"""{"metadata": {"name": "p", "uid": "u1"},
  "spec": {"containers": [{"name": "main"}, {"name": "side"}, {"name": "waiting"}],
    "initContainers": [{"name": "setup"}]},
  "status": {"phase": "Running", "qosClass": "Burstable",
    "initContainerStatuses": [{"name": "setup", "containerID": "RT://s", "state": {"terminated": {"exitCode": 0}}}],
    "containerStatuses": [{"name": "main", "containerID": "RT://m", "state": {"running": {}}},
      {"name": "side", "containerID": "RT://x", "state": {"running": {}}},
      {"name": "foreign", "containerID": "RT://f", "state": {"running": {}}},
      {"name": "waiting", "state": {"waiting": {}}}]}}"""
SYSTEMD, CGROUPFS = CgroupDriver.SYSTEMD, CgroupDriver.CGROUPFS
THREADS = {"m": (10, 11), "x": (20,), "f": (30,), "pause": (1,), "left": (99,)}


def pod(runtime: str, phase: str = "Running") -> Pod:
    return decode(POD.replace(b"RT", runtime.encode()).replace(b"Running", phase.encode()), Pod)


CASES = {
    "systemd": (SYSTEMD, "containerd", "cri-containerd-{}.scope", "cri-containerd-pause.scope"),
    "cgroupfs": (CGROUPFS, "containerd", "{}", "pause"),
    "cri-o": (SYSTEMD, "cri-o", "crio-{}.scope", "crio-pause"),
}


def tree(pattern: str, *further: str) -> dict[str, tuple[int, ...]]:
    """Threads by directory name: the three containers that run, and others."""
    running = {pattern.format(name): THREADS[name] for name in ("m", "x", "f")}
    return running | dict.fromkeys(further, THREADS["pause"])


def read_in(threads: dict[str, tuple[int, ...]]) -> Callable[..., Any]:
    """None where the file is not there."""
    return lambda directory: threads.get(directory.rpartition("/")[2])


@pytest.mark.parametrize(("driver", "runtime", "pattern", "sandbox"), CASES.values(), ids=CASES)
def test_containers_of_the_spec_and_the_sandbox(driver: CgroupDriver, runtime: str, pattern: str, sandbox: str) -> None:
    threads = tree(pattern, sandbox, *(["crio-left.scope"] if runtime == "cri-o" else []))
    ids = task_ids(describe(pod(runtime), driver), driver, lambda _: list(threads), read_in(threads))
    assert ids == {f"{runtime}://m": (10, 11), f"{runtime}://x": (20,), f"{runtime}://pause": (1,)}


@pytest.mark.parametrize("further", [[], ["pause", "odd"]], ids=["none", "two"])
def test_a_sandbox_that_is_not_the_only_candidate_is_left_out(further: list[str]) -> None:
    threads = tree("{}", *further)
    ids = task_ids(describe(pod("containerd"), CGROUPFS), CGROUPFS, lambda _: list(threads), read_in(threads))
    assert ids.keys() == {"containerd://m", "containerd://x"}


def test_a_container_that_has_ended_is_left_out() -> None:
    def gone(directory: str) -> tuple[int, ...] | None:
        if directory.endswith("/m"):
            raise CgroupGone(directory)
        return None if directory.endswith("/x") else (1,)

    ids = task_ids(describe(pod("containerd"), CGROUPFS), CGROUPFS, lambda _: ["pause"], gone)
    assert ids == {"containerd://pause": (1,)}


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_terminated_pod_has_none(phase: str) -> None:
    assert task_ids(describe(pod("containerd", phase), CGROUPFS), CGROUPFS, lambda _: ["pause"], lambda _: (1,)) == {}


async def test_the_informer_keeps_them() -> None:
    informer = PodsInformer(None, lambda: CGROUPFS, task_ids=lambda meta, driver: {"containerd://m": (7,)})  # type: ignore[arg-type]
    informer.replace([pod("containerd")])
    assert informer.pods["u1"].task_ids == {"containerd://m": (7,)}

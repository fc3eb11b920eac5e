"""Pods and containers seen by their directories: on an ordinary file system, and on the kernel's cgroups."""

import asyncio
import errno
import itertools
import os
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from koordlet.statesinformer.pods import pleg as pleg_module
from koordlet.statesinformer.pods.pleg import Pleg, PodEvent, PodEventKind
from koordlet.system.cgroup.naming import CgroupDriver, KubeQOS, container_name, kubepods_dir, pod_dir, qos_dir
from koordlet.system.inotify import DirEvent, Inotify

ADDED, DELETED = PodEventKind.POD_ADDED, PodEventKind.POD_DELETED
CONTAINER, CONTAINER_GONE = PodEventKind.CONTAINER_ADDED, PodEventKind.CONTAINER_DELETED
UID = "1f0c9a7e-0000-4000-8000-000000000001"
DRIVERS = tuple(CgroupDriver)
_serial = itertools.count()


def remove_tree(root: Path) -> None:
    """Directories only: the files of a cgroup go with it."""
    for directory, _, _ in os.walk(root, topdown=False):
        for _ in range(250):
            try:
                Path(directory).rmdir()
                break
            except FileNotFoundError:
                break
            except OSError:
                time.sleep(0.02)


@pytest.fixture(params=["plain", pytest.param("cgroup", marks=pytest.mark.kernel)])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """An empty cpu hierarchy."""
    if request.param == "plain":
        yield tmp_path
        return
    mount = request.getfixturevalue("kernel_host").facts.cgroup_mounts.hierarchy("cpu")
    directory = mount / f"koord-test-{os.getpid()}-pleg-{next(_serial)}"
    directory.mkdir()
    yield directory
    remove_tree(directory)


class Watched:
    """A running Pleg and what it told."""

    def __init__(self, pleg: Pleg) -> None:
        self.pleg = pleg
        self.told: list[Any] = []
        pleg.add_handler(self.told.append)

    async def until(self, done: Callable[[], object], what: str = "events") -> None:
        end = time.monotonic() + 60
        while not done():
            assert time.monotonic() < end, f"{what} did not come: {self.told}"
            await asyncio.sleep(0.005)

    async def tells(self, *expected: tuple[str, ...]) -> None:
        """Exactly these, in this order, since the last call."""
        await self.until(lambda: len(self.told) >= len(expected))
        assert self.told == [PodEvent(PodEventKind(kind), *names) for kind, *names in expected]
        self.told.clear()


@pytest.fixture
async def watch(root: Path) -> AsyncIterator[Callable[..., object]]:
    plegs: list[Pleg] = []

    async def start(**how: Any) -> Watched:
        plegs.append(Pleg(root, **how))
        watched = Watched(plegs[-1])
        await plegs[-1].start()
        return watched

    yield start
    for pleg in plegs:
        await pleg.stop()


def make_kubepods(root: Path, driver: CgroupDriver) -> None:
    (root / kubepods_dir(driver)).mkdir()
    for qos in (KubeQOS.BURSTABLE, KubeQOS.BESTEFFORT):
        (root / qos_dir(driver, qos)).mkdir()


NAMES = [(driver, qos) for driver in DRIVERS for qos in KubeQOS]


@pytest.mark.parametrize(("driver", "qos"), NAMES, ids=[f"{d.value}-{q.value}" for d, q in NAMES])
async def test_events_of_added_and_deleted_pods_and_containers(
    root: Path, watch: Callable[..., object], driver: CgroupDriver, qos: KubeQOS
) -> None:
    make_kubepods(root, driver)
    watched = await watch()  # type: ignore[misc]
    assert (watched.pleg.watched, watched.pleg.unwatched) == (4, 0)
    pod = root / pod_dir(driver, qos, UID)
    container = pod / container_name(driver, "containerd://abc")
    pod.mkdir()
    await watched.tells((ADDED, UID))
    container.mkdir()
    await watched.tells((CONTAINER, UID, "abc"))
    (container / "inner").mkdir()  # a container's own affair
    (container / "inner").rmdir()
    container.rmdir()
    await watched.tells((CONTAINER_GONE, UID, "abc"))
    pod.rmdir()
    await watched.tells((DELETED, UID))
    assert watched.pleg.watched == 4
    assert dict(watched.pleg.counts) == dict.fromkeys(PodEventKind, 1)


async def test_entries_created_before_the_watch_are_found(root: Path, watch: Callable[..., object]) -> None:
    watched = await watch()  # type: ignore[misc]
    container = root / pod_dir(CgroupDriver.CGROUPFS, KubeQOS.BURSTABLE, UID) / "abc"
    container.mkdir(parents=True)  # kubepods, QoS class, pod and container before the loop turns once
    await watched.tells((ADDED, UID), (CONTAINER, UID, "abc"))


async def test_existing_pods_are_reported_and_watched_at_start(root: Path, watch: Callable[..., object]) -> None:
    pod = root / pod_dir(CgroupDriver.SYSTEMD, KubeQOS.BESTEFFORT, UID)
    (pod / "cri-containerd-abc.scope").mkdir(parents=True)
    watched = await watch()  # type: ignore[misc]
    await watched.tells((ADDED, UID), (CONTAINER, UID, "abc"))
    (pod / "cri-containerd-def.scope").mkdir()
    await watched.tells((CONTAINER, UID, "def"))
    (pod / "cri-containerd-abc.scope").rmdir()
    await watched.tells((CONTAINER_GONE, UID, "abc"))


async def test_a_recreated_kubepods_is_watched_again(root: Path, watch: Callable[..., object]) -> None:
    make_kubepods(root, CgroupDriver.CGROUPFS)
    watched = await watch()  # type: ignore[misc]
    remove_tree(root / "kubepods")
    await watched.until(lambda: watched.pleg.watched == 1)
    (root / pod_dir(CgroupDriver.CGROUPFS, KubeQOS.BURSTABLE, UID)).mkdir(parents=True)
    await watched.tells((ADDED, UID))


OTHERS = ["12345", "kubepods", "kubepods-pod12345", "kubepods-pod.slice", "burst", "pod12345.slice"]


async def test_other_directory_names_are_ignored(root: Path, watch: Callable[..., object]) -> None:
    make_kubepods(root, CgroupDriver.SYSTEMD)
    watched = await watch()  # type: ignore[misc]
    for name in OTHERS:
        (root / "kubepods.slice" / name).mkdir()
    (root / "system.slice").mkdir()
    (root / "kubepods.slice/kubepods-pod12345.slice").mkdir()
    (root / "kubepods.slice/kubepods-pod12345.slice/init.scope").mkdir()
    await watched.tells((ADDED, "12345"))
    assert watched.pleg.watched == 5


async def test_a_recreated_pod_directory_is_watched_again(root: Path, watch: Callable[..., object]) -> None:
    make_kubepods(root, CgroupDriver.CGROUPFS)
    watched = await watch()  # type: ignore[misc]
    pod = root / pod_dir(CgroupDriver.CGROUPFS, KubeQOS.GUARANTEED, UID)
    pod.mkdir()
    await watched.tells((ADDED, UID))
    pod.rmdir()
    pod.mkdir()  # both before the loop turns
    await watched.tells((DELETED, UID), (ADDED, UID))
    (pod / "abc").mkdir()
    await watched.tells((CONTAINER, UID, "abc"))


async def test_a_failing_handler_does_not_affect_others(root: Path, watch: Callable[..., object]) -> None:
    watched = await watch()  # type: ignore[misc]

    def bad(_: PodEvent) -> None:
        raise RuntimeError("no")

    late: list[PodEvent] = []
    watched.pleg.add_handler(bad)
    watched.pleg.add_handler(late.append)
    pod = root / pod_dir(CgroupDriver.CGROUPFS, KubeQOS.BESTEFFORT, UID)
    pod.mkdir(parents=True)
    await watched.tells((ADDED, UID))
    assert len(late) == 1
    assert watched.pleg.handler_failures == 1


def here(root: Path) -> dict[str, frozenset[str]]:
    """Pods with the directory names of their containers, as the tree says."""
    pods = {}
    for driver in DRIVERS:
        for qos in KubeQOS:
            top = root / qos_dir(driver, qos)
            for pod in top.glob("*pod*") if top.exists() else []:
                if pod.name not in ("kubepods.slice", "kubepods") and "-pod" in f"-{pod.name}":
                    uid = pod.name.removesuffix(".slice").rpartition("pod")[2].replace("_", "-")
                    pods[uid] = frozenset(entry.name for entry in pod.iterdir() if entry.is_dir())
    return pods


@pytest.mark.parametrize("driver", DRIVERS, ids=lambda operation: operation.value)
async def test_the_final_state_is_right_after_many_concurrent_changes(
    root: Path, watch: Callable[..., object], driver: CgroupDriver
) -> None:
    """200 pods come, and go, and come again while the loop turns now and then."""
    watched = await watch()  # type: ignore[misc]
    make_kubepods(root, driver)
    dice = random.Random(7)
    pods = [root / pod_dir(driver, dice.choice(list(KubeQOS)), f"uid-{number}") for number in range(200)]
    for turn in range(600):
        pod = dice.choice(pods) if turn >= len(pods) else pods[turn]
        container = pod / container_name(driver, f"containerd://{dice.randrange(3)}")
        if not pod.exists():
            pod.mkdir()
        elif container.exists():
            container.rmdir()
        elif dice.random() < 0.6:
            container.mkdir()
        elif not here_of(pod):
            pod.rmdir()
        if dice.random() < 0.1:
            await asyncio.sleep(0)
    expected = here(root)
    await watched.until(lambda: watched.pleg.containers == expected, "the final state")
    containers: dict[str, set[str]] = {}
    for event in watched.told:  # what the handlers heard adds up to the same, and alternates
        match event.kind:
            case PodEventKind.POD_ADDED:
                assert containers.setdefault(event.pod_uid, set()) == set()
            case PodEventKind.POD_DELETED:
                assert containers.pop(event.pod_uid) == set()
            case PodEventKind.CONTAINER_ADDED:
                assert event.container_id not in containers[event.pod_uid]
                containers[event.pod_uid].add(event.container_id)
            case PodEventKind.CONTAINER_DELETED:
                containers[event.pod_uid].remove(event.container_id)
    assert {uid: len(ids) for uid, ids in containers.items()} == {uid: len(names) for uid, names in expected.items()}
    assert watched.pleg.unwatched == 0


def here_of(pod: Path) -> list[Path]:
    return [entry for entry in pod.iterdir() if entry.is_dir()]


# --- when the kernel does not help


class Deaf(Inotify):
    """Loses what comes while `deaf` is set, and says so once after."""

    def __init__(self) -> None:
        super().__init__()
        self.deaf = False

    def read(self) -> list[DirEvent]:
        events = super().read()
        if self.deaf:
            self.deaf = False
            return [DirEvent(-1, overflow=True)]
        return events


async def test_after_an_overflow_all_directories_are_read_again(root: Path, watch: Callable[..., object]) -> None:
    make_kubepods(root, CgroupDriver.CGROUPFS)
    kept, gone, recreated = (root / pod_dir(CgroupDriver.CGROUPFS, KubeQOS.BURSTABLE, uid) for uid in ("k", "g", "a"))
    for pod in (kept, gone, recreated):
        (pod / "c1").mkdir(parents=True)
    instance = Deaf()
    watched = await watch(open_inotify=lambda: instance)  # type: ignore[misc]
    watched.told.clear()
    instance.deaf = True
    for path in (gone / "c1", gone, recreated / "c1", recreated):
        path.rmdir()
    recreated.mkdir()  # another directory than the one that is watched
    (kept / "c2").mkdir()
    await watched.until(lambda: watched.pleg.overflows == 1)
    await watched.until(lambda: watched.pleg.containers == {"k": {"c1", "c2"}, "a": set()})
    watched.told.clear()
    (recreated / "c9").mkdir()
    await watched.tells((CONTAINER, "a", "c9"))
    assert watched.pleg.unwatched == 0


class Full(Inotify):
    """Refuses new watches while `limit` is reached."""

    limit = 0

    def __init__(self) -> None:
        super().__init__()
        self.used: set[int] = set()

    def add(self, directory: Path | str) -> int:
        if len(self.used) >= self.limit:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(directory))
        watch = super().add(directory)
        self.used.add(watch)
        return watch


@pytest.mark.parametrize("limit", [0, 2, 5])
async def test_without_enough_watches_directories_are_polled(
    root: Path, watch: Callable[..., object], monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(pleg_module, "POLL_PERIOD_S", 0.02)
    monkeypatch.setattr(Full, "limit", limit)
    watched = await watch(open_inotify=Full)  # type: ignore[misc]
    pod = root / pod_dir(CgroupDriver.SYSTEMD, KubeQOS.BURSTABLE, UID)
    (pod / "cri-containerd-abc.scope").mkdir(parents=True)
    await watched.until(lambda: watched.pleg.containers == {UID: {"cri-containerd-abc.scope"}})
    monkeypatch.setattr(Full, "limit", 100)
    await watched.until(lambda: watched.pleg.unwatched == 0, "watches once there is room")
    remove_tree(root / "kubepods.slice")
    await watched.until(lambda: not watched.pleg.containers)


async def test_without_inotify_directories_are_polled(
    root: Path, watch: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pleg_module, "POLL_PERIOD_S", 0.02)

    def refused() -> Inotify:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    watched = await watch(open_inotify=refused)  # type: ignore[misc]
    pod = root / pod_dir(CgroupDriver.CGROUPFS, KubeQOS.GUARANTEED, UID)
    pod.mkdir(parents=True)
    await watched.tells((ADDED, UID))
    pod.rmdir()
    await watched.tells((DELETED, UID))
    assert (watched.pleg.watched, watched.pleg.unwatched) == (0, 2)


async def test_the_root_directory_may_be_created_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pleg_module, "POLL_PERIOD_S", 0.02)
    pleg = Pleg(tmp_path / "later")
    watched = Watched(pleg)
    await pleg.start()
    (tmp_path / "later" / pod_dir(CgroupDriver.CGROUPFS, KubeQOS.BURSTABLE, UID)).mkdir(parents=True)
    await watched.tells((ADDED, UID))
    await watched.until(lambda: pleg.unwatched == 0)
    await pleg.stop()
    await pleg.stop()

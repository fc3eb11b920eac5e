"""Pods and containers as they appear and vanish, told by the kernel (spec 02 §3.5).

    Pleg(cpu_root).add_handler(lambda event: …)

The directories of the cgroup tree where pods live are watched by inotify: the root (so that a kubepods that is made
later is seen), kubepods and its QoS directories in both drivers' naming, and every pod. A directory is read after its
watch was added, so nothing between the two is missed, and what is known already is not told twice. When the kernel's
queue overflows everything is read anew. A directory that cannot be watched (no inotify instance, too many watches) is
said once, counted, and read every POLL_SECONDS together with all others; watching is tried again each time.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from koordlet.app.logging import get_logger
from koordlet.prometheus import Registries
from koordlet.system.cgroup import tree
from koordlet.system.cgroup.naming import (
    CgroupDriver,
    KubeQOS,
    NamingError,
    kubepods_dir,
    parse_container_name,
    parse_pod_name,
    qos_dir,
)
from koordlet.system.inotify import DirEvent, Inotify

log = get_logger(__name__)

POLL_SECONDS = 1.0


class PodEventKind(enum.StrEnum):
    """What happened."""

    POD_ADDED = "pod-added"
    POD_DELETED = "pod-deleted"
    CONTAINER_ADDED = "container-added"
    CONTAINER_DELETED = "container-deleted"


@dataclass(frozen=True, slots=True)
class PodEvent:
    """A pod's or container's cgroup was made or removed."""

    kind: PodEventKind
    pod_uid: str
    """With dashes, also where systemd's directory names have none."""
    container_id: str = ""
    """The hash, without a runtime."""


@dataclass(slots=True)
class _Dir:
    """A directory whose entries matter. `driver` is None for the root, `pod_uid` is set for pods only."""

    driver: CgroupDriver | None = None
    pod_uid: str = ""
    watch: int | None = None
    containers: set[str] = field(default_factory=set)
    """Directory names, of a pod's."""


class Pleg:
    """Tells handlers, serially, in the loop. A service for `Runner`; what exists at start is told as added."""

    def __init__(self, cpu_root: Path, *, open_inotify: Callable[[], Inotify] = Inotify) -> None:
        self.name = "pleg"
        self._root, self._open_inotify = cpu_root, open_inotify
        self._inotify: Inotify | None = None
        self._dirs: dict[str, _Dir] = {}
        self._by_watch: dict[int, str] = {}
        self._handlers: dict[int, Callable[[PodEvent], object]] = {}
        self._next_handler = 0
        self._polling: asyncio.Task[None] | None = None
        self.counts = dict.fromkeys(PodEventKind, 0)
        """Events told, by kind."""
        self.overflows = 0
        self.handler_failures = 0

    @property
    def watched(self) -> int:
        """Directories watched."""
        return len(self._by_watch)

    @property
    def unwatched(self) -> int:
        """Directories that are polled because they cannot be watched."""
        return len(self._dirs) - len(self._by_watch)

    @property
    def containers(self) -> dict[str, frozenset[str]]:
        """Directory names of the containers of each pod known, by pod UID."""
        return {known.pod_uid: frozenset(known.containers) for known in self._dirs.values() if known.pod_uid}

    def attach(self, registries: Registries) -> None:
        """Export the counts."""
        registries.view("pleg_events_total", lambda: [((kind.value,), count) for kind, count in self.counts.items()])
        registries.view("pleg_overflows_total", lambda: [((), self.overflows)])
        registries.view("pleg_directories", lambda: [(("watched",), self.watched), (("polled",), self.unwatched)])

    def add_handler(self, handler: Callable[[PodEvent], object]) -> int:
        """Call `handler` for every event from now on; a number for `remove_handler`."""
        self._next_handler += 1
        self._handlers[self._next_handler] = handler
        return self._next_handler

    def remove_handler(self, number: int) -> None:
        """Call it no more."""
        self._handlers.pop(number, None)

    async def start(self) -> None:
        """Watch, tell what exists, and go on by events."""
        self.rescan()
        self._polling = asyncio.create_task(self._poll(), name="pleg")

    async def stop(self) -> None:
        """Close everything; handlers hear no more."""
        task, self._polling = self._polling, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if self._inotify is not None:
            asyncio.get_running_loop().remove_reader(self._inotify.fd)
            self._inotify.close()
            self._inotify = None
        self._dirs.clear()
        self._by_watch.clear()

    def rescan(self) -> None:
        """Read every directory that matters, whatever events said; watch what is not watched."""
        if self._inotify is None:
            self._connect()
        root = self._dirs.setdefault("", _Dir())
        self._watch("", root)
        self._reconcile("")

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            if self.unwatched:
                self.rescan()

    def _connect(self) -> None:
        try:
            self._inotify = self._open_inotify()
        except OSError as error:
            log.once(f"inotify:{error.errno}", "No inotify: pods are found by polling", error=str(error))
            return
        asyncio.get_running_loop().add_reader(self._inotify.fd, self._readable)

    def _readable(self) -> None:
        assert self._inotify is not None
        events = self._inotify.read()
        if any(event.overflow for event in events):
            self.overflows += 1
            log.warning("inotify queue overflowed, reading all pod directories", overflows=self.overflows)
        for event in events:
            self._on_event(event)
        if any(event.overflow for event in events):
            self.rescan()

    def _on_event(self, event: DirEvent) -> None:
        parent = self._by_watch.get(event.watch)
        if parent is None:
            return
        if event.ended:
            del self._by_watch[event.watch]
            self._dirs[parent].watch = None
        elif event.is_dir and event.created:
            self._appeared(parent, event.name)
        elif event.is_dir and event.deleted:
            self._vanished(parent, event.name)

    # --- the directories that matter

    def _appeared(self, parent: str, name: str) -> None:
        """An entry of a directory that matters; nothing happens when it is known."""
        above = self._dirs[parent]
        path = f"{parent}/{name}" if parent else name
        if above.pod_uid:
            self._container_appeared(above, name)
        elif path in self._dirs:
            return
        elif above.driver is None:
            driver = next((one for one in CgroupDriver if kubepods_dir(one) == name), None)
            if driver is not None:
                self._enter(path, _Dir(driver))
        elif path in (qos_dir(above.driver, KubeQOS.BURSTABLE), qos_dir(above.driver, KubeQOS.BESTEFFORT)):
            self._enter(path, _Dir(above.driver))
        else:
            try:
                uid = parse_pod_name(above.driver, name)
            except NamingError:
                return
            uid = uid.replace("_", "-") if above.driver is CgroupDriver.SYSTEMD else uid
            self._tell(PodEventKind.POD_ADDED, uid)
            self._enter(path, _Dir(above.driver, uid))

    def _container_appeared(self, pod: _Dir, name: str) -> None:
        digest = _container_id(pod, name)
        if digest and name not in pod.containers:
            pod.containers.add(name)
            self._tell(PodEventKind.CONTAINER_ADDED, pod.pod_uid, digest)

    def _vanished(self, parent: str, name: str) -> None:
        above = self._dirs[parent]
        path = f"{parent}/{name}" if parent else name
        if path in self._dirs:
            self._leave(path)
        elif name in above.containers:
            above.containers.discard(name)
            self._tell(PodEventKind.CONTAINER_DELETED, above.pod_uid, _container_id(above, name))

    def _enter(self, path: str, found: _Dir) -> None:
        self._dirs[path] = found
        self._watch(path, found)
        self._reconcile(path)

    def _leave(self, path: str) -> None:
        """Forget a directory and what is below it, innermost first."""
        for below in [one for one in self._dirs if one.startswith(f"{path}/")] if path else []:
            if below in self._dirs:
                self._leave(below)
        gone = self._dirs.pop(path)
        if gone.watch is not None and self._inotify is not None:
            self._by_watch.pop(gone.watch, None)
            self._inotify.remove(gone.watch)
        for name in sorted(gone.containers):
            self._tell(PodEventKind.CONTAINER_DELETED, gone.pod_uid, _container_id(gone, name))
        if gone.pod_uid:
            self._tell(PodEventKind.POD_DELETED, gone.pod_uid)

    def _reconcile(self, path: str) -> None:
        """Make what is known of a directory and of those below equal to what is there."""
        here = self._dirs[path]
        try:
            names = tree.children(self._root, path)
        except OSError as error:
            log.once(f"list:{error.errno}", "Cannot list a cgroup directory", path=path, error=str(error))
            return
        prefix = f"{path}/" if path else ""
        known = set(here.containers)
        if not here.pod_uid:
            rests = (one.removeprefix(prefix) for one in self._dirs if one.startswith(prefix) and one != path)
            known = {rest for rest in rests if "/" not in rest}
        for name in sorted(known.difference(names)):
            self._vanished(path, name)
        for name in names:
            below = f"{prefix}{name}"
            if below in self._dirs:
                self._watch(below, self._dirs[below])
                self._reconcile(below)
            else:
                self._appeared(path, name)

    def _watch(self, path: str, found: _Dir) -> None:
        """Watch what the path names now, which may be another directory than the one watched so far."""
        if self._inotify is None:
            return
        try:
            watch = self._inotify.add(self._root / path)
        except FileNotFoundError:
            return  # it went again; its parent will say so
        except OSError as error:
            log.once(f"watch:{error.errno}", "Cannot watch a cgroup directory, polling instead", error=str(error))
            return
        if found.watch is not None and found.watch != watch:
            self._by_watch.pop(found.watch, None)
            self._inotify.remove(found.watch)
        found.watch, self._by_watch[watch] = watch, path

    # --- handlers

    def _tell(self, kind: PodEventKind, pod_uid: str, container_id: str = "") -> None:
        self.counts[kind] += 1
        event = PodEvent(kind, pod_uid, container_id)
        for handler in list(self._handlers.values()):
            try:
                handler(event)
            except Exception as error:  # a consumer's fault must not blind the others; counted and logged
                self.handler_failures += 1
                log.exception("Pod event handler failed", kind=kind.value, pod=pod_uid, err=error)


def _container_id(pod: _Dir, name: str) -> str:
    """The hash of a container directory's name; empty when it is none."""
    assert pod.driver is not None
    try:
        return parse_container_name(pod.driver, name).hash
    except NamingError:
        return ""

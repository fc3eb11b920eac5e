"""Pod lifecycle event generator: events when cgroups of pods and containers are created or removed (spec 02 §3.5).

    Pleg(cpu_root).add_handler(lambda event: …)

inotify watches the directories of the cgroup tree that contain pods: the root (to see a kubepods that is created
later), kubepods and its QoS directories in both drivers' naming, and each pod. A directory is read after its watch was
added, so nothing in between is missed, and known entries are not reported twice. When the kernel's queue overflows, all
directories are read again. A directory that cannot be watched (no inotify instance, too many watches) is logged once
and counted; while there is one, all directories are read every `POLL_PERIOD_S`, and watching is retried each time.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from koordlet.app.logging import get_logger
from koordlet.app.tasks import end_tasks
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

POLL_PERIOD_S = 1.0


class PodEventKind(enum.StrEnum):
    """The kind of a change."""

    POD_ADDED = "pod-added"
    POD_DELETED = "pod-deleted"
    CONTAINER_ADDED = "container-added"
    CONTAINER_DELETED = "container-deleted"


@dataclass(frozen=True, slots=True)
class PodEvent:
    """A pod's or container's cgroup was created or removed."""

    kind: PodEventKind
    pod_uid: str
    """With dashes, which systemd's directory names do not have."""
    container_id: str = ""
    """The hash, without a runtime."""


@dataclass(slots=True)
class _Dir:
    """A tracked directory. `driver` is None for the root, `pod_uid` is set for pods only."""

    driver: CgroupDriver | None = None
    pod_uid: str = ""
    watch: int | None = None
    containers: set[str] = field(default_factory=set)
    """Names of the containers' directories in a pod's."""


class Pleg:
    """Calls handlers one after another in the event loop. A service for `Runner`; pods and containers that exist at
    start are reported as added."""

    def __init__(self, cpu_root: Path, *, open_inotify: Callable[[], Inotify] = Inotify) -> None:
        self.name = "pleg"
        self._root = cpu_root
        self._open_inotify = open_inotify
        self._inotify: Inotify | None = None
        self._dirs: dict[str, _Dir] = {}
        self._by_watch: dict[int, str] = {}
        self._handlers: list[Callable[[PodEvent], object]] = []
        self._polling: asyncio.Task[None] | None = None
        self.counts = dict.fromkeys(PodEventKind, 0)
        """Events by kind."""
        self.overflows = 0
        self.handler_failures = 0

    @property
    def watched(self) -> int:
        """Number of watched directories."""
        return len(self._by_watch)

    @property
    def unwatched(self) -> int:
        """Number of directories that are polled because they cannot be watched."""
        return len(self._dirs) - len(self._by_watch)

    @property
    def containers(self) -> dict[str, frozenset[str]]:
        """Pod UID -> names of its containers' directories."""
        return {entry.pod_uid: frozenset(entry.containers) for entry in self._dirs.values() if entry.pod_uid}

    def attach(self, registries: Registries) -> None:
        """Export the counts."""
        registries.view("pleg_events_total", lambda: [((kind.value,), count) for kind, count in self.counts.items()])
        registries.view("pleg_overflows_total", lambda: [((), self.overflows)])
        registries.view("pleg_handler_failures_total", lambda: [((), self.handler_failures)])
        registries.view("pleg_directories", lambda: [(("watched",), self.watched), (("polled",), self.unwatched)])

    def add_handler(self, handler: Callable[[PodEvent], object]) -> None:
        """Call `handler` for each event from now on."""
        self._handlers.append(handler)

    async def start(self) -> None:
        """Watch, report what exists, then report events."""
        self.rescan()
        self._polling = asyncio.create_task(self._poll(), name="pleg")

    async def stop(self) -> None:
        """Close inotify; handlers are no longer called."""
        task = self._polling
        self._polling = None
        await end_tasks(task)
        if self._inotify is not None:
            asyncio.get_running_loop().remove_reader(self._inotify.fd)
            self._inotify.close()
            self._inotify = None
        self._dirs.clear()
        self._by_watch.clear()

    def rescan(self) -> None:
        """Read all tracked directories and watch those that are not watched."""
        if self._inotify is None:
            self._connect()
        root = self._dirs.setdefault("", _Dir())
        self._watch("", root)
        self._reconcile("")

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(POLL_PERIOD_S)
            if self.unwatched:
                self.rescan()

    def _connect(self) -> None:
        try:
            self._inotify = self._open_inotify()
        except OSError as error:
            log.once(f"inotify:{error.errno}", "inotify is unavailable, polling for pods", error=str(error))
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
            self._on_created(parent, event.name)
        elif event.is_dir and event.deleted:
            self._on_deleted(parent, event.name)

    def _on_created(self, parent_path: str, name: str) -> None:
        """Handle an entry of a tracked directory; known entries are ignored."""
        parent = self._dirs[parent_path]
        path = f"{parent_path}/{name}" if parent_path else name
        if parent.pod_uid:
            self._on_container_created(parent, name)
        elif path in self._dirs:
            return
        elif parent.driver is None:
            driver = next((driver for driver in CgroupDriver if kubepods_dir(driver) == name), None)
            if driver is not None:
                self._track(path, _Dir(driver))
        elif path in (qos_dir(parent.driver, KubeQOS.BURSTABLE), qos_dir(parent.driver, KubeQOS.BESTEFFORT)):
            self._track(path, _Dir(parent.driver))
        else:
            try:
                uid = parse_pod_name(parent.driver, name)
            except NamingError:
                return
            uid = uid.replace("_", "-") if parent.driver is CgroupDriver.SYSTEMD else uid
            self._notify(PodEventKind.POD_ADDED, uid)
            self._track(path, _Dir(parent.driver, uid))

    def _on_container_created(self, pod: _Dir, name: str) -> None:
        container_id = _container_id(pod, name)
        if container_id and name not in pod.containers:
            pod.containers.add(name)
            self._notify(PodEventKind.CONTAINER_ADDED, pod.pod_uid, container_id)

    def _on_deleted(self, parent_path: str, name: str) -> None:
        parent = self._dirs[parent_path]
        path = f"{parent_path}/{name}" if parent_path else name
        if path in self._dirs:
            self._untrack(path)
        elif name in parent.containers:
            parent.containers.discard(name)
            self._notify(PodEventKind.CONTAINER_DELETED, parent.pod_uid, _container_id(parent, name))

    def _track(self, path: str, entry: _Dir) -> None:
        self._dirs[path] = entry
        self._watch(path, entry)
        self._reconcile(path)

    def _untrack(self, path: str) -> None:
        """Remove a directory and its descendants, innermost first."""
        for descendant in [tracked for tracked in self._dirs if tracked.startswith(f"{path}/")] if path else []:
            if descendant in self._dirs:
                self._untrack(descendant)
        entry = self._dirs.pop(path)
        if entry.watch is not None and self._inotify is not None:
            self._by_watch.pop(entry.watch, None)
            self._inotify.remove(entry.watch)
        for name in sorted(entry.containers):
            self._notify(PodEventKind.CONTAINER_DELETED, entry.pod_uid, _container_id(entry, name))
        if entry.pod_uid:
            self._notify(PodEventKind.POD_DELETED, entry.pod_uid)

    def _reconcile(self, path: str) -> None:
        """Read a directory and its tracked descendants, and report the differences to what is tracked."""
        entry = self._dirs[path]
        try:
            names = tree.children(self._root, path)
        except OSError as error:
            log.once(f"list:{error.errno}", "Cannot list a cgroup directory", path=path, error=str(error))
            return
        prefix = f"{path}/" if path else ""
        known = set(entry.containers)
        if not entry.pod_uid:
            relative = (t.removeprefix(prefix) for t in self._dirs if t.startswith(prefix) and t != path)
            known = {name for name in relative if "/" not in name}
        for name in sorted(known.difference(names)):
            self._on_deleted(path, name)
        for name in names:
            child = f"{prefix}{name}"
            if child in self._dirs:
                self._watch(child, self._dirs[child])
                self._reconcile(child)
            else:
                self._on_created(path, name)

    def _watch(self, path: str, entry: _Dir) -> None:
        """Watch the directory that is at this path now. It may be a new one, which replaces the watched one."""
        if self._inotify is None:
            return
        try:
            watch = self._inotify.add(self._root / path)
        except FileNotFoundError:
            return  # already removed; an event of its parent will follow
        except OSError as error:
            log.once(f"watch:{error.errno}", "Cannot watch a cgroup directory, polling instead", error=str(error))
            return
        if entry.watch is not None and entry.watch != watch:
            self._by_watch.pop(entry.watch, None)
            self._inotify.remove(entry.watch)
        entry.watch = watch
        self._by_watch[watch] = path

    def _notify(self, kind: PodEventKind, pod_uid: str, container_id: str = "") -> None:
        self.counts[kind] += 1
        event = PodEvent(kind, pod_uid, container_id)
        for handler in self._handlers:
            try:
                handler(event)
            except Exception as error:  # the other handlers must be called; counted and logged
                self.handler_failures += 1
                log.exception("Pod event handler failed", kind=kind.value, pod=pod_uid, err=error)


def _container_id(pod: _Dir, name: str) -> str:
    """The hash in the name of a container's directory; empty for other directories."""
    assert pod.driver is not None
    try:
        return parse_container_name(pod.driver, name).hash
    except NamingError:
        return ""

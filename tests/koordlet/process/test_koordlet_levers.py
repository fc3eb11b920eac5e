"""A koordlet process and neighbours that take memory, the disk and the network from services: each neighbour is named
and throttled by the lever of its resource, to its floor at most, released in steps, and evicted where that did not
help. A neighbour of the services' own class is named and never touched. (The CPU's lever: test_koordlet_acts.py.)

One history for all tests. Limits are read from the kernel's files ten times a second; how services and neighbours get
on is the kernel's word (packets, bytes read) or the service's own (rounds), never koordlet's.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from koordlet.system.cgroup.naming import KubeQOS
from tests.koordlet.process import neighbours
from tests.koordlet.process.cluster import NODE
from tests.koordlet.process.fleet import Fleet, PodSpec
from tests.koordlet.process.patience import until
from tests.koordlet.process.podtree import Container
from tests.koordlet.process.scene import Scene
from tests.koordlet.process.witness import Witness, boot_time

pytestmark = [pytest.mark.kernel, pytest.mark.timing]

MIB = 1 << 20
PAGE = os.sysconf("SC_PAGE_SIZE")
ALL_PODS, PIECE, DISK = 128, 8, 64
"""MiB that all pods may have together while memory is short, that the service takes at a time, of the file on disk."""
STEP = {"memory": 25, "io": 20, "network": 45}
FLOOR = {"memory": 50, "io": 60, "network": 10}
RELEASE, PATIENT = 3, 4
"""Seconds between steps up; at the disk's floor before an eviction."""
CLASS_BITS = 100_000_000
"""A second, of best effort: less than its pod wants to send."""
KEEN = {"lostPercent": 4, "minLostPercent": 2}
"""Services count as delayed early, so that other work of the machine does not decide the result."""
BETTER = 1.5
"""Factor of rounds compared with the time while it was delayed."""


def _action(resource: str, interval: int, **more: int) -> dict[str, Any]:
    return {"enable": True, "stepPercent": STEP[resource], "floorPercent": FLOOR[resource], "intervalSeconds": interval,
            "releaseSeconds": RELEASE, **more}  # fmt: skip


ACTIONS = {
    "memory": _action("memory", 3), "network": _action("network", 3), "io": _action("io", 1, evictAfterSeconds=PATIENT)
}  # fmt: skip
STRATEGY = {"minDurationSeconds": 2, "windowSeconds": 2, **dict.fromkeys(ACTIONS, KEEN), "actions": ACTIONS}
SPEC = {
    "systemStrategy": {"totalNetworkBandwidth": "1G"},
    "resourceQOSStrategy": {"beClass": {"networkQOS": {"enable": True, "egressLimit": str(CLASS_BITS)}}},
    "extensions": {"interferenceStrategy": STRATEGY},
}
FLAGS = (
    "--probes=auto", "--runtime-hooks-reconcile-interval=10s", "--mem-stall-window=3s", "--block-io-interval=1s",
    "--block-io-window=3s", "--net-stall-interval=1s", "--net-stall-window=3s",
)  # fmt: skip
CULPRIT = {"memory": "fill", "io": "read", "network": "send"}
VICTIM = {"memory": "shop", "io": "store", "network": "gate"}
Expected = Callable[[int, int], float]
"""What 100 % is, percent left -> the kernel's limit."""
PODS = {**dict.fromkeys((*VICTIM.values(), "index"), "LS"), **dict.fromkeys((*CULPRIT.values(), "idle"), "BE")}
"""`index` is a neighbour of the services' class, `idle` best effort that does nothing."""


@dataclass
class History:
    """What happened, by resource unless said otherwise."""

    named: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The service's verdict."""
    held: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The line of /enforcement when enough was taken."""
    limit: dict[str, float] = field(default_factory=dict)
    """The kernel's then: bytes, bytes a second, bits a second."""
    lowest: dict[str, float] = field(default_factory=dict)
    freed: dict[str, float] = field(default_factory=dict)
    """The kernel's in the end."""
    hurt: dict[str, float] = field(default_factory=dict)
    """A second, before anything was taken: the service's rounds; of the network the neighbour's packets."""
    better: dict[str, float] = field(default_factory=dict)
    read: float = 0.0
    """Bytes a second that the disk's neighbour had at its floor."""
    untouched: dict[str, float] = field(default_factory=dict)
    """The lowest limits of `index` and `idle` by pod and file."""
    page: dict[str, Any] = field(default_factory=dict)
    explained: dict[str, Any] = field(default_factory=dict)
    evicted: list[str] = field(default_factory=list)
    events: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    audit: list[dict[str, Any]] = field(default_factory=list)
    shaped: list[str] = field(default_factory=list)
    """The node's interface before koordlet, and after its stop."""


class Node:
    """The scene with what these tests ask of it, by name of pod."""

    def __init__(self, scene: Scene, network: neighbours.Network, scratch: Path) -> None:
        self.scene, self.tree, self.network = scene, scene.fleet.tree, network
        number = scratch.stat().st_dev
        self._disk = f"{os.major(number)}:{os.minor(number)}"
        assert Path("/sys/dev/block", self._disk).exists(), f"{scratch} is on no disk"
        self.pods: dict[str, Any] = {}
        self.boxes: dict[str, Any] = {}
        """Their containers, to run programs in."""

    def open(self) -> None:
        self.scene.open(SPEC, cpus=2, memory_mib=4096)
        for name, qos in PODS.items():
            kube = KubeQOS.BESTEFFORT if qos == "BE" else KubeQOS.BURSTABLE
            body = {"metadata": {"name": name, "labels": {"koordinator.sh/qosClass": qos}},
                    "spec": {"nodeName": NODE, "containers": [{"name": "c0", "image": "none"}]}}  # fmt: skip
            uid = self.scene.api.call("POST", "/api/v1/namespaces/default/pods", body)["metadata"]["uid"]
            (pod,) = self.scene.fleet.add(PodSpec(name, kube, qos, uid=uid))
            self.pods[name] = pod
            self.boxes[name] = Container(self.tree, uid, pod.hashes[0], pod.container_dirs[0])
        self.scene.fleet.vacate(self.pods[CULPRIT["network"]])  # who is there decides whose the network is
        manifests = self.scene.fleet.manifests(NODE)
        for manifest in manifests:
            if manifest["metadata"]["name"] == CULPRIT["network"]:
                manifest["status"]["podIP"] = neighbours.POD_ADDRESS
        self.scene.kubelet.pods = manifests

    def end(self, *names: str) -> None:
        for name in names:
            self.boxes[name].end()

    # --- the kernel's word

    def memory(self, name: str) -> float:
        """The pod's limit in bytes; infinity for none."""
        file = "memory.high" if self.tree.v2 else "memory.limit_in_bytes"
        text = (self.tree.path("memory", self.pods[name].dir) / file).read_text().strip()
        return math.inf if text == "max" or int(text) >= 1 << 62 else float(text)

    def disk(self, name: str) -> float:
        """Bytes a second that it may read; infinity for all."""
        directory = self.tree.path("blkio", self.pods[name].dir)
        if self.tree.v2:
            lines = [line.replace("rbps=", "").split()[:2] for line in (directory / "io.max").read_text().splitlines()]
        else:
            lines = [line.split() for line in (directory / "blkio.throttle.read_bps_device").read_text().splitlines()]
        return next((float(value.replace("max", "inf")) for disk, value in lines if disk == self._disk), math.inf)

    def bits(self) -> float:
        """A second that best effort may send; infinity where nothing is shaped."""
        ceil = next((line.split(" ceil ")[1].split()[0] for line in self.network.shaped().splitlines()
                     if " 1:4 " in line), "inf")  # fmt: skip
        digits = ceil.rstrip("GMKbit") or ceil
        return float(digits) * {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9}[ceil[len(digits) :].removesuffix("bit")]

    def read_bytes(self, name: str) -> float:
        """By all of its processes, of disks."""
        texts = [Path(f"/proc/{process.pid}/io").read_text() for process in self.boxes[name].processes]
        return float(sum(int(text.partition("\nread_bytes: ")[2].split()[0]) for text in texts))

    def short_of_memory(self, limited: bool) -> None:
        self.scene.fleet.write("kubepods", "memory.limit_in_bytes", ALL_PODS * MIB if limited else -1)

    # --- koordlet's word

    def page(self) -> dict[str, Any]:
        page: dict[str, Any] = json.loads(self.scene.koordlet.get("/enforcement"))
        return page

    def held(self, resource: str) -> dict[str, Any] | None:
        rows = [row for row in self.page().get("heldBack", []) if row["resource"] == resource]
        assert {row["pod"] for row in rows} <= {CULPRIT[resource]}, rows
        return rows[0] if rows else None

    def verdict(self, resource: str, culprit: str) -> dict[str, Any] | None:
        """The verdict of the service, once its neighbour is the first culprit."""
        page = json.loads(self.scene.koordlet.get(f"/interference?pod=default/{VICTIM[resource]}"))
        for candidate in (
            verdict for container in page.get("containers", []) for verdict in container.get("verdicts", [])
        ):
            kind = tuple(map(candidate.get, ("resource", "cause", "state")))
            first: dict[str, Any] = next(iter(candidate.get("culprits", [])), {})
            if kind == (resource, "neighbour", "interfered") and first.get("pod") == culprit:
                latest: dict[str, Any] = candidate
                return latest
        return None

    def events(self) -> dict[tuple[str, str], dict[str, Any]]:
        items = self.scene.api.call("GET", "/api/v1/namespaces/default/events")["items"]
        return {(item["involvedObject"]["name"], item["reason"]): item for item in items}

    def gone(self) -> list[str]:
        """Pods that were deleted or are being deleted at the API server."""
        items = {pod["metadata"]["name"]: pod["metadata"]
                 for pod in self.scene.api.call("GET", "/api/v1/namespaces/default/pods")["items"]}  # fmt: skip
        return [name for name in PODS if name not in items or items[name].get("deletionTimestamp")]

    def pace(self, read: Callable[[], float], seconds: float = 1.5) -> float:
        """A second, of a counter."""
        began, before = boot_time(), read()
        until(lambda: boot_time() >= began + seconds, "time to pass")
        return float((read() - before) / (boot_time() - began))

    def suffers(self, history: History, resource: str, read: Callable[[], float]) -> list[float]:
        """The neighbour has begun: until the service counts as delayed because of it, and a lever is used. The
        counter's pace from half second to half second."""
        paces: list[float] = []

        def named() -> dict[str, Any] | None:
            paces.append(self.pace(read, 0.5))
            return self.verdict(resource, CULPRIT[resource])

        history.named[resource] = until(named, f"{resource}: the verdict")
        until(lambda: self.held(resource), f"{resource}: a first step")
        return paces

    def settled(self, history: History, resource: str, limit: Callable[[], float], expected: Expected) -> None:
        """Until the kernel holds what koordlet says."""

        def agreed() -> bool:
            row, written = self.held(resource), limit()
            if row is None or written != expected(row["had"], row["percent"]):
                return False
            history.held[resource], history.limit[resource] = row, written
            return True

        until(agreed, f"{resource}: the kernel's limit to be the one that is said")


def _memory(node: Node, history: History, cpus: tuple[int, int], scratch: Path) -> None:
    """Page cache of the neighbour fills what all pods may have together."""
    shop = neighbours.Rounds.at(scratch / "shop")
    node.boxes["shop"].run(shop.code(neighbours.takes_memory(PIECE, 0.005)), cpus[0])
    node.short_of_memory(True)
    node.boxes["fill"].run(neighbours.writes(scratch / "dirt", 256), cpus[1])
    history.hurt["memory"] = hurt = max(min(node.suffers(history, "memory", shop.read)), 1.0)
    node.settled(history, "memory", lambda: node.memory("fill"), lambda had, left: had * left // 100 // PAGE * PAGE)

    def better() -> bool:
        history.better["memory"] = node.pace(shop.read)
        return history.better["memory"] >= BETTER * hurt

    until(better, f"memory: more than {hurt} rounds a second")
    node.end("fill", "shop")
    node.short_of_memory(False)


def _network(node: Node, history: History, cpus: tuple[int, int], scratch: Path) -> None:
    """What the neighbour sends comes back and is worked off on the service's CPU."""
    packets = node.network.packets
    with neighbours.echo(node.network.far, cpus[1], sys.executable):
        gate = neighbours.Rounds.at(scratch / "gate")
        node.boxes["gate"].run(gate.code(neighbours.COMPUTES), cpus[0])
        node.boxes["send"].run(neighbours.sends(node.network), cpus[1])
        history.hurt["network"] = many = max(node.suffers(history, "network", packets))
        node.settled(history, "network", node.bits, lambda had, left: CLASS_BITS * left // 100)
        history.explained = json.loads(node.scene.koordlet.get("/interference?pod=default/send"))
        history.page = node.page()

        def fewer() -> bool:
            history.better["network"] = node.pace(packets)
            return history.better["network"] <= many / BETTER

        until(fewer, f"network: fewer than {many} packets a second")
        node.end("send", "gate")


def _disk(node: Node, history: History, cpus: tuple[int, int], scratch: Path) -> None:
    """The neighbour's large reads are before the service's small ones; throttled to its floor, it still delays them."""
    file = scratch / "disk"
    with file.open("wb") as opened:
        opened.write(os.urandom(DISK * MIB))
        opened.flush()
        os.fsync(opened.fileno())
    store = neighbours.Rounds.at(scratch / "store")
    node.boxes["store"].run(store.code(neighbours.reads_blocks(file, 0.001)), cpus[0])
    for _ in range(3):
        node.boxes["read"].run(neighbours.reads_all(file), cpus[1])
    node.suffers(history, "io", store.read)
    until(lambda: (row := node.held("io")) and row.get("floor"), "io: the floor")
    node.settled(history, "io", lambda: node.disk("read"), lambda had, left: had * left // 100)
    history.read = node.pace(lambda: node.read_bytes("read"))
    until(node.gone, "io: the eviction")
    node.end("read")  # as the kubelet does
    node.scene.kubelet.pods = [pod for pod in node.scene.kubelet.pods if pod["metadata"]["name"] != "read"]
    for _ in range(3):
        node.boxes["index"].run(neighbours.reads_all(file), cpus[1])
    until(lambda: ("index", "InterferenceNotActedOn") in node.events(), "io: the Event about a service")
    node.end("index", "store")


@pytest.fixture(scope="module")
def history(trees: Any, views: Any, cpus: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[History]:
    scratch, history = tmp_path_factory.mktemp("levers"), History()
    fleet = Fleet(trees(disks=True))
    with ExitStack() as stack:
        network = stack.enter_context(neighbours.network(cpus[0]))
        scene = Scene(fleet, views(fleet.tree), scratch, gates="TCNetworkQoS=true,AuditEvents=true")
        stack.callback(scene.close)
        node = Node(scene, network, scratch)
        node.open()
        stack.callback(lambda: node.end(*node.boxes))
        history.shaped.append(network.shaped())
        scene.start(*FLAGS, f"--audit-log-dir={scratch / 'audit'}").wait()
        until(lambda: node.bits() == CLASS_BITS, "best effort's class")
        watched: dict[str, Callable[[], float]] = {
            "memory": lambda: node.memory("fill"), "io": lambda: node.disk("read"),
            **{f"{name} memory": partial(node.memory, name) for name in ("index", "idle")},
            **{f"{name} disk": partial(node.disk, name) for name in ("index", "idle")},
        }  # fmt: skip
        with Witness(watched) as witness:
            for act in (_memory, _network, _disk):
                act(node, history, cpus, scratch)
            until(lambda: not node.page().get("heldBack"), "all of them free")
            until(lambda: node.bits() == CLASS_BITS, "best effort's class as before")
        history.lowest = {resource: witness.lowest(resource) for resource in ("memory", "io")}
        history.untouched = {name: witness.lowest(name) for name in watched if " " in name}
        history.freed = {"memory": node.memory("fill"), "io": node.disk("read"), "network": node.bits()}
        until(lambda: ("send", "InterferenceFreed") in node.events(), "the last Event")
        history.events, history.evicted = node.events(), node.gone()
        assert scene.stop() == 0
        history.shaped.append(network.shaped())
        lines = (scratch / "audit").rglob("*")
        history.audit = [json.loads(line) for path in lines if path.is_file() for line in path.read_text().splitlines()]
        yield history


def _steps(history: History, resource: str) -> list[tuple[int, int]]:
    """Of the culprit: (percent before, after)."""
    steps, level = [], 100
    for entry in history.audit:
        details = entry.get("details", {})
        if details.get("resource") == resource and "level" in details:
            assert entry["name"] == CULPRIT[resource]
            steps.append((level, details["level"]))
            level = details["level"]
        elif entry["reason"] == "InterferenceFreed" and entry["name"] == CULPRIT[resource]:
            level = 100
    return steps


@pytest.mark.parametrize("resource", ACTIONS)
def test_the_neighbour_is_named(history: History, resource: str) -> None:
    verdict = history.named[resource]
    worst = verdict["culprits"][0]
    assert (worst["pod"], worst["qos"]) == (CULPRIT[resource], "BE")
    assert verdict["source"] == "bpf" and worst["share"] > 0.3


@pytest.mark.parametrize("resource", ACTIONS)
def test_it_is_held_back_and_let_go_step_by_step_and_keeps_its_floor(history: History, resource: str) -> None:
    steps, most, least = _steps(history, resource), STEP[resource], FLOOR[resource]
    assert steps[0] == (100, 100 - most)
    assert all(after == max(before - most, least) for before, after in steps if after < before)
    assert all(after == before + most for before, after in steps if after > before)


def test_the_kernel_never_has_less_than_the_floor(history: History) -> None:
    for resource, unit in (("memory", PAGE), ("io", 1)):
        assert history.lowest[resource] >= history.held[resource]["had"] * FLOOR[resource] // 100 // unit * unit
    assert history.held["io"]["percent"] == FLOOR["io"]
    assert history.limit["network"] >= CLASS_BITS * FLOOR["network"] // 100


def test_services_get_on_and_neighbours_have_what_they_are_left(history: History) -> None:
    assert history.better["memory"] >= BETTER * history.hurt["memory"]
    assert history.better["network"] <= history.hurt["network"] / BETTER
    assert history.read <= 1.5 * history.limit["io"], "the kernel's slices are coarse"


def test_everything_is_restored(history: History) -> None:
    assert history.freed == {"memory": math.inf, "io": math.inf, "network": CLASS_BITS}
    assert history.shaped[0] == history.shaped[1]
    assert {entry["name"] for entry in history.audit if entry["reason"] == "InterferenceFreed"} == set(CULPRIT.values())


def test_only_the_pod_at_its_floor_is_evicted(history: History) -> None:
    assert history.evicted == ["read"]
    assert {name for name, reason in history.events if reason == "evictPodSuccess"} == {"read"}
    assert [entry["name"] for entry in history.audit if entry["reason"] == "evicted"] == ["read"]


def test_a_service_that_delays_another_is_named_and_not_throttled(history: History) -> None:
    event = history.events["index", "InterferenceNotActedOn"]
    assert "delays container c0 of default/store in io" in event["message"]
    assert "index" not in {entry["name"] for entry in history.audit if entry["reason"] == "InterferenceTightened"}
    assert set(history.untouched.values()) == {math.inf}, "and no idle container was throttled"


def test_victim_and_culprit_are_explained(history: History) -> None:
    for resource, culprit in CULPRIT.items():
        on_culprit, on_victim = (history.events[name, "InterferenceTightened"] for name in (culprit, VICTIM[resource]))
        assert on_culprit["type"] == "Warning" and f"{resource} is throttled: container c0" in on_culprit["message"]
        assert f"default/{culprit}, which delays it, gets less {resource}" in on_victim["message"]
    assert [(entry["pod"], entry["resource"]) for entry in history.explained["heldBack"]] == [("send", "network")]
    assert "default/send network" in history.page["strategies"]["interferenceactions"]

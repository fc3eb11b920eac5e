"""PreEnqueue, Permit and the gang cache match the verified cases of spec 05 §9.1 to §9.6."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import pytest

from control.scheduler.config.args import CoschedulingArgs
from control.scheduler.framework.plugin import CycleState
from control.scheduler.framework.status import Code
from control.scheduler.plugins.coscheduling import Coscheduling, params
from control.scheduler.state.pods import PodInfo
from koordlet.api.core import Pod
from koordlet.api.crs.podgroup import PodGroup
from koordlet.api.encoding import wire
from koordlet.api.encoding.wire import Duration
from tests.control.scheduler.build import Cluster, node, pod

P = "gang.scheduling.koordinator.sh/"
LABEL = "pod-group.scheduling.sigs.k8s.io"


def member(name: str, gang: str = "ganga", minimum: int | str | None = None, namespace: str = "", **notes: str) -> Pod:
    annotations = {P + "name": gang} | ({} if minimum is None else {P + "min-available": str(minimum)})
    annotations |= {P + key.replace("_", "-"): value for key, value in notes.items()}
    return pod(name, namespace=namespace or f"{gang}_ns", annotations=annotations)


def placed(pod: Pod, where: str = "n") -> Pod:
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name=where))


def pod_group(name: str, minimum: int, namespace: str = "ns", **spec: Any) -> PodGroup:
    body = {"metadata": {"name": name, "namespace": namespace}, "spec": {"minMember": minimum, **spec}}
    return wire.convert(body, PodGroup)


class Parking:
    """Pods parked at Permit; strict about who is allowed and rejected."""

    def __init__(self) -> None:
        self.parked: dict[str, PodInfo] = {}
        self.allowed: list[str] = []
        self.rejected: dict[str, tuple[str, str]] = {}

    def waiting_pods(self) -> Iterable[PodInfo]:
        return list(self.parked.values())

    def waiting(self, uid: str) -> PodInfo | None:
        return self.parked.get(uid)

    def allow(self, uid: str, plugin: str) -> None:
        assert plugin == "Coscheduling"
        self.allowed.append(self.parked.pop(uid).name)

    def reject(self, uid: str, plugin: str, message: str) -> bool:
        pod = self.parked.pop(uid, None)
        if pod is not None:
            self.rejected[pod.name] = (plugin, message)
        return pod is not None


class World:
    def __init__(self, **args: Any) -> None:
        self.cluster = Cluster(node("n"))
        self.parking = Parking()
        self.cluster.use(waiting=self.parking)
        self.plugin = Coscheduling(CoschedulingArgs(**args), self.cluster.handle)

    def add(self, *pods: Pod) -> None:
        for member in pods:
            self.plugin.events.pod_added(member)

    def enqueued(self, pod: Pod) -> str:
        status = self.plugin.pre_enqueue(self.cluster.info(pod))
        assert status.ok or status.code is Code.UNRESOLVABLE
        return status.message

    def permit(self, pod: Pod) -> float | None:
        """None: permitted; else the seconds to wait."""
        info = self.cluster.info(pod)
        status = self.plugin.permit(CycleState(), info, 0)
        if status.code is Code.WAIT:
            self.parking.parked[info.uid] = info
            return status.timeout
        assert status.ok
        return None


def test_a_pod_without_a_gang_passes() -> None:
    world = World()
    candidate = pod("x")
    info = world.cluster.info(candidate)
    assert world.plugin.pre_enqueue(info).ok
    assert world.plugin.before_pre_filter(CycleState(), info).ok
    assert world.plugin.permit(CycleState(), info, 0).ok
    assert world.plugin.next_pod() is None


def test_the_verified_messages_of_pre_enqueue() -> None:
    world = World()
    pods = [member(f"pod{number}", minimum=4) for number in range(4)]
    assert world.enqueued(pods[0]) == "can't find gang, gangName: ganga_ns/ganga, podName: ganga_ns/pod0"
    raw = member("raw", "gangr")
    world.add(raw)
    assert world.enqueued(raw) == "gang has not init, gangName: gangr_ns/gangr, podName: gangr_ns/raw"
    world.add(*pods[1:])
    assert world.enqueued(pods[3]) == (
        "gangGroup [ganga_ns/ganga] basic check: memberGangs [ganga_ns/ganga] child pod not collect enough, "
        "current gang: ganga_ns/ganga, podName: ganga_ns/pod3"
    )
    world.add(pods[0])
    assert world.enqueued(pods[2]) == ""
    assert world.enqueued(pods[2]) == ""
    assert world.enqueued(pods[1]) == ("representative pod ganga_ns/pod2 of gangGroupID ganga_ns/ganga already exists")
    world.plugin.events.pod_deleted(pods[3])
    assert "child pod not collect enough" in world.enqueued(pods[2])
    assert world.plugin.gangs.groups["ganga_ns/ganga"].representative == ""


def test_the_message_of_a_group_names_missing_gangs() -> None:
    world = World()
    both = '["a_ns/a","b_ns/b","c_ns/c"]'
    candidate = member("p", "a", 1, groups=both)
    world.add(candidate, member("q", "b"))
    assert world.enqueued(candidate) == (
        "gangGroup [a_ns/a b_ns/b c_ns/c] basic check: memberGangs [c_ns/c] doesn't exists, "
        "memberGangs [b_ns/b] has not init, current gang: a_ns/a, podName: a_ns/p"
    )


def test_members_stay_out_of_the_queue_during_their_round() -> None:
    world = World()
    a, b = member("a", minimum=2), member("b", minimum=2)
    world.add(a, b)
    assert world.enqueued(a) == ""
    state = CycleState()
    assert world.plugin.before_pre_filter(state, world.cluster.info(a)).ok
    assert state.data["questionedKey"] == "ganga_ns/ganga"
    assert world.enqueued(b) == "gangGroup ganga_ns/ganga is scheduling and this pod has not been attempted"
    assert world.enqueued(a) == ""  # attempted, and may represent the group again


def test_a_pod_that_is_not_pending_can_t_represent() -> None:
    world = World()
    a, b = member("a", minimum=2), member("b", minimum=2)
    world.add(a, b)
    world.permit(a)
    assert world.enqueued(a) == "pod ganga_ns/a is not exists in gangCache"


@pytest.mark.parametrize(
    ("policy", "before", "expected"),
    [
        ("once-satisfied", 0, 10.0),
        ("once-satisfied", 1, None),
        ("only-waiting", 1, 10.0),
        ("waiting-and-running", 1, None),
        ("waiting-and-running", 0, 10.0),
    ],
)
def test_the_second_of_three_at_permit(policy: str, before: int, expected: float | None) -> None:
    world = World()
    make = {"minimum": 3, "match_policy": policy, "waiting_time": "10s"}
    a, b = member("a", **make), member("b", **make)  # type: ignore[arg-type]
    world.add(a, b, *(placed(member(f"r{n}", **make)) for n in range(before)))  # type: ignore[arg-type]
    first = world.permit(a)
    assert first == (None if policy == "once-satisfied" and before else 10.0)
    assert world.permit(b) == expected


def test_a_group_is_satisfied_when_every_gang_is() -> None:
    world = World()
    both = '["c_ns/c","d_ns/d"]'
    c, d = member("c1", "c", 1, groups=both), member("d1", "d", 1, groups=both)
    world.add(c, d)
    assert world.permit(c) == 600.0
    assert world.permit(d) is None
    assert world.parking.allowed == ["c1"]
    group = world.plugin.gangs.groups["c_ns/c,d_ns/d"]
    assert group.binding_members == {c.metadata.uid, d.metadata.uid}


def test_an_uninitialized_gang_does_not_wait_at_all() -> None:
    world = World()
    candidate = member("p")
    world.add(candidate)
    assert world.permit(candidate) == 0.0
    world.plugin.gangs.pod_deleted(candidate)
    status = world.plugin.permit(CycleState(), world.cluster.info(candidate), 0)
    assert (status.code, status.message) == (Code.UNSCHEDULABLE, "Gang not found")


def test_members_that_were_rejected_do_not_count_as_waiting() -> None:
    world = World()
    pods = [member(name, minimum=3, match_policy="only-waiting") for name in "abc"]
    world.add(*pods)
    assert world.permit(pods[0]) == 600.0
    assert world.parking.reject(pods[0].metadata.uid, "", "deleted")  # its binding task has not noticed yet
    assert world.permit(pods[1]) == 600.0
    assert world.permit(pods[2]) == 600.0


@pytest.mark.parametrize(("mode", "rejected"), [("Strict", True), ("NonStrict", False)])
def test_unreserve_rejects_the_others_of_a_strict_gang(mode: str, rejected: bool) -> None:
    world = World()
    a, b, c = (member(name, minimum=3, mode=mode) for name in "abc")
    world.add(a, b, c)
    world.permit(a)
    world.permit(b)
    del world.parking.parked[a.metadata.uid]
    world.plugin.unreserve(CycleState(), world.cluster.info(a), 0)
    text = 'Gang "ganga_ns/ganga" gets rejected due to Pod "a" in Unreserve'
    assert world.parking.rejected == ({"b": ("Coscheduling", text)} if rejected else {})
    assert world.plugin.gangs.gangs["ganga_ns/ganga"].pending == {"ganga_ns/a", "ganga_ns/c"}


def test_pods_that_were_let_go_keep_binding() -> None:
    world = World()
    a, b = member("a", minimum=2), member("b", minimum=2)
    world.add(a, b)
    world.permit(a)
    world.permit(b)
    world.plugin.unreserve(CycleState(), world.cluster.info(b), 0)
    assert world.parking.rejected == {}


async def test_binding_annotations_go_again_when_a_pod_is_bound_alone() -> None:
    world = World()
    candidate = member("a", minimum=1)
    world.add(candidate)
    world.permit(candidate)
    keys = [
        f"{prefix}scheduling.koordinator.sh/bind-gang-{what}"
        for prefix in ("", "internal.")
        for what in ("group-id", "member-count")
    ]
    stale: Mapping[str, str] = dict.fromkeys(keys, "x")
    changed = pod("a", namespace="ganga_ns", annotations={**candidate.metadata.annotations, **stale})
    await world.plugin.pre_bind(CycleState(), world.cluster.info(candidate), 0, changed)
    assert changed.metadata.annotations == candidate.metadata.annotations


@pytest.mark.parametrize(
    ("labels", "annotations", "expected"),
    [
        ({}, {}, None),
        ({f"{LABEL}/min-available": "2"}, {P + "min-available": "3"}, 2),
        ({}, {P + "min-available": "3"}, 3),
        ({}, {P + "min-available": "-1"}, -1),
        ({}, {P + "min-available": "many"}, None),
        ({f"{LABEL}/min-available": "99999999999"}, {}, None),
    ],
    ids=["missing", "label first", "annotation", "not checked for range", "no number", "no int32"],
)
def test_minimum(labels: dict[str, str], annotations: dict[str, str], expected: int | None) -> None:
    gang = params.of_pod(pod(labels=labels, annotations={P + "name": "g", **annotations}), CoschedulingArgs())
    assert (gang.minimum if gang is not None else None) == expected


def test_parameters_of_a_pod() -> None:
    args = CoschedulingArgs(default_timeout=Duration("5m"), default_match_policy="only-waiting")
    plain = params.of_pod(member("p", minimum=3), args)
    assert plain is not None
    assert (plain.total, plain.mode, plain.policy, plain.wait.seconds) == (3, "Strict", "only-waiting", 300.0)
    assert plain.group == ("ganga_ns/ganga",)
    full = params.of_pod(
        member(
            "p",
            minimum=3,
            total_number="5",
            mode="NonStrict",
            match_policy="waiting-and-running",
            waiting_time="30s",
            groups='["z/z","a/a"]',
            network_topology_spec="[",
        ),
        args,
    )
    assert full is not None
    assert (full.total, full.mode, full.policy, full.wait.seconds) == (5, "NonStrict", "waiting-and-running", 30.0)
    assert (full.group, full.topology) == (("a/a", "ganga_ns/ganga", "z/z"), None), "with other namespaces: itself, too"


def crd_member(name: str) -> Pod:
    return pod(name, namespace="ns", labels={LABEL: "g"})


def test_a_pod_group_supplies_the_parameters() -> None:
    world = World()
    pods = [crd_member(name) for name in "ab"]
    world.add(*pods)
    gang = world.plugin.gangs.gangs["ns/g"]
    assert not gang.initialized
    assert world.plugin.gangs.pod_group_set(pod_group("g", 2, scheduleTimeoutSeconds=7)) == ["ns/a"]
    assert gang.parameters is not None
    assert (gang.parameters.minimum, gang.parameters.wait.seconds) == (2, 7.0)
    assert world.plugin.gangs.pod_group_set(pod_group("g", 3)) == []
    assert world.plugin.gangs.pod_group_set(pod_group("g", 1)) == ["ns/a"]
    assert gang.parameters.wait.seconds == 600.0


def test_a_pod_group_that_is_made_again_finds_its_pods() -> None:
    world = World()
    a, b = crd_member("a"), placed(crd_member("b"))
    world.add(a, b)
    world.plugin.events.pod_group_set(pod_group("g", 2))
    world.plugin.events.pod_group_deleted(pod_group("g", 2))
    assert world.plugin.gangs.gangs == {}
    assert "can't find gang" in world.enqueued(a)
    world.plugin.events.pod_group_set(pod_group("g", 2))
    gang = world.plugin.gangs.gangs["ns/g"]
    assert (sorted(gang.children), gang.pending, gang.bound) == (["ns/a", "ns/b"], {"ns/a"}, {"ns/b"})


def test_a_changed_group_is_followed() -> None:
    world = World()
    gangs = world.plugin.gangs
    first, second = pod_group("g", 1), pod_group("g", 1)
    first.metadata.annotations = {P + "groups": '["ns/g","ns/h"]'}
    world.plugin.events.pod_group_set(first)
    assert list(gangs.groups) == ["ns/g,ns/h"]
    world.plugin.events.pod_group_set(second)
    assert list(gangs.groups) == ["ns/g"]
    world.plugin.events.pod_group_deleted(second)
    assert gangs.groups == {}


def test_the_deletion_of_a_member_activates_another() -> None:
    world = World()
    pods = [member(name, minimum=2) for name in "abc"]
    world.add(*pods)
    assert world.plugin.gangs.pod_deleted(pods[0]) == ["ganga_ns/b"]
    assert world.plugin.gangs.pod_deleted(pods[1]) == []


def test_a_member_that_ended_stays_until_it_is_deleted() -> None:
    world = World()
    candidate = placed(member("a", minimum=1))
    world.add(candidate)
    ended = msgspec.structs.replace(candidate, status=wire.convert({"phase": "Succeeded"}, type(candidate.status)))
    world.plugin.events.pod_updated(candidate, ended)
    gang = world.plugin.gangs.gangs["ganga_ns/ganga"]
    assert gang.bound == {"ganga_ns/a"}
    assert gang.children["ganga_ns/a"].status.phase == "Succeeded"
    world.plugin.events.pod_deleted(ended)
    assert world.plugin.gangs.gangs == {}


def test_the_summary_of_the_verified_gang() -> None:
    world = World()
    candidate = member("pod1", minimum=2)
    world.add(candidate)
    page = world.plugin.gang_page("ganga_ns", "ganga")
    assert page["waitTime"] == 600_000_000_000
    assert (page["mode"], page["gangMatchPolicy"], page["gangFrom"]) == (
        "Strict",
        "once-satisfied",
        "GangFromPodAnnotation",
    )
    assert page["children"] == page["pendingChildren"] == {"ganga_ns/pod1": {}}
    assert page["gangGroupInfo"]["GangGroupId"] == "ganga_ns/ganga"
    assert list(world.plugin.gangs_page()) == ["ganga_ns/ganga"]
    with pytest.raises(LookupError, match="cannot find gang ganga_ns/other"):
        world.plugin.gang_page("ganga_ns", "other")

"""ElasticQuota in the scheduler: admission, preemption inside a quota, revocation, status, pages (spec 06 §5)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from control.quota.forest import ForestRules
from control.scheduler.config.args import ElasticQuotaArgs
from control.scheduler.cycle.failures import FitError
from control.scheduler.framework.plugin import CycleState
from control.scheduler.plugins.elasticquota import controllers
from control.scheduler.plugins.elasticquota.book import PodRules, QuotaBook
from control.scheduler.plugins.elasticquota.controllers import OveruseRevoker, QuotaStatusWriter, built_in
from control.scheduler.plugins.elasticquota.metrics import QuotaGauges, QuotaMetrics
from control.scheduler.plugins.elasticquota.revoke import OveruseClock, Revocable, to_revoke
from control.scheduler.plugins.elasticquota.status import LOWERING_DELAY_S, ChildRequests, QuotaOutput, patch
from control.scheduler.state.nominations import Nominations
from control.scheduler.state.pods import PodInfo
from koordlet.api import names
from koordlet.api.core import Pod
from koordlet.api.crs.quota import ElasticQuota
from koordlet.api.encoding.wire import Time
from koordlet.api.gates import SCHEDULER
from koordlet.app.gates import FeatureGates
from koordlet.kube import Conflict, TooManyRequests
from tests.control.scheduler.build import pod
from tests.control.scheduler.plugins.quotaworld import POINTS, QuotaWorld, quota_object
from tests.fakeclock import FakeClock

LABEL = names.LABEL_QUOTA_NAME


def member(quota: str, cpu: str, name: str = "", *, on: str = "", priority: int = 0, **labels: str) -> Pod:
    return pod(name, cpu=cpu, memory=None, on=on, priority=priority, labels={LABEL: quota, **labels})


def fixed(cpu: str, *, on: str = "") -> Pod:
    return pod(cpu=cpu, memory=None, on=on, labels={LABEL: "a", names.LABEL_QUOTA_PREEMPTIBLE: "false"})


def gates(*names_of_gates: str) -> FeatureGates:
    feature_gates = FeatureGates(SCHEDULER)
    feature_gates.set(dict.fromkeys(names_of_gates, True))
    return feature_gates


class Evictor:
    """Notes the victims."""

    def __init__(self) -> None:
        self.victims: list[str] = []
        self.message = ""

    def evict(self, victims: Any, *, by: PodInfo, message: str) -> None:
        self.victims += [victim.name for victim in victims]
        self.message = message

    def evicting_for(self, uid: str) -> bool:
        return False

    def clear_nominations(self, pods: Any) -> None:
        assert not list(pods)


def failure_of(world: QuotaWorld, info: PodInfo) -> FitError:
    with pytest.raises(FitError) as failure:
        world.cycle.place(info)
    return failure.value


# Admission


def test_a_pod_beyond_the_runtime_is_refused_with_numbers() -> None:
    world = QuotaWorld(quota_object("a", max="20"), cpus=("10",))
    world.add(member("a", "8", on="n0"))
    failure = failure_of(world, world.add(member("a", "3")))
    assert failure.text() == (
        "0/1 nodes are available: Insufficient quotas, quotaName: a, runtime: cpu:10, used: cpu:8, "
        "pod's request: cpu:3, exceedDimensions: [cpu]. preemption: 0/1 nodes are available: "
        "1 No victims found in quota a."
    )
    assert failure.plugins() == {"ElasticQuota"}


def test_what_is_placed_counts_until_it_is_released() -> None:
    world = QuotaWorld(quota_object("a", max="4"))
    first, second = world.add(member("a", "3")), world.add(member("a", "3"))
    placement = world.cycle.place(first)
    assert world.figure("a", "used") == {"cpu": "3"}
    failure_of(world, second)
    world.cycle.release(placement)
    assert world.figure("a", "used") == {}
    world.cycle.place(second)
    assert world.figure("a", "used") == {"cpu": "3"}
    assert world.figure("a", "request") == {"cpu": "6"}


def test_two_quotas_share_and_the_borrower_shrinks() -> None:
    """Spec 06 §8.1, scenario 7."""
    world = QuotaWorld(quota_object("A", min="50"), quota_object("B", min="50"))
    for _ in range(8):
        world.cycle.place(world.add(member("A", "10")))
    assert (world.runtime("A"), world.runtime("B")) == ("80", "0")
    waiting = world.add(member("B", "50"))
    assert (world.runtime("A"), world.runtime("B")) == ("50", "50")
    failure = failure_of(world, waiting)
    assert failure.pre_filter is None  # the quota admits the pod, the node has no room
    assert "Insufficient cpu" in failure.text()


def test_non_preemptible_pods_are_limited_by_min() -> None:
    """Spec 06 §8.1, scenario 8."""
    world = QuotaWorld(quota_object("a", min="10"))
    world.add(fixed("9", on="n0"))
    failure = failure_of(world, world.add(fixed("2")))
    assert "Insufficient non-preemptible quotas, quotaName: a, min: cpu:10, nonPreemptibleUsed: cpu:9" in failure.text()


def test_a_pod_without_quota_is_not_limited() -> None:
    world = QuotaWorld(quota_object(names.DEFAULT_QUOTA, max="1"), gates=gates("DisableDefaultQuota"))
    info = world.add(member("", "5"))
    assert world.plugin.pre_filter(CycleState(), info).status.skipped
    world.cycle.place(info)


def test_the_default_quota_is_enforced() -> None:
    world = QuotaWorld(quota_object(names.DEFAULT_QUOTA, max="1"))
    failure = failure_of(world, world.add(member("", "5")))
    assert f"quotaName: {names.DEFAULT_QUOTA}, runtime: cpu:1" in failure.text()


def test_a_quota_outside_the_tree_admits_nothing() -> None:
    world = QuotaWorld(quota_object("a", "gone"))
    failure = failure_of(world, world.add(member("a", "1")))
    assert "Could not find the parents of ElasticQuota a: parent gone does not exist" in failure.text()


def test_the_limit_can_be_max() -> None:
    world = QuotaWorld(
        quota_object("a", max="20"), cpus=("10", "10"), args=ElasticQuotaArgs(enable_runtime_quota=False)
    )
    world.add(member("a", "19", on="n0"))
    assert world.plugin.admits(world.add(member("a", "1"))).ok
    assert not world.plugin.admits(world.add(member("a", "2"))).ok


def test_a_deleted_quota_hands_its_pods_to_the_default_quota() -> None:
    quota = quota_object("a", max="20")
    world = QuotaWorld(quota, quota_object(names.DEFAULT_QUOTA, max="20"))
    world.add(member("a", "8", on="n0"))
    waiting = world.add(member("a", "13"))
    assert "quotaName: a" in failure_of(world, waiting).text()
    world.objects.informer(ElasticQuota).remove(quota)
    assert world.figure(names.DEFAULT_QUOTA, "used") == {"cpu": "8"}
    assert f"quotaName: {names.DEFAULT_QUOTA}" in failure_of(world, waiting).text()


def test_of_two_objects_of_one_name_the_first_counts() -> None:
    first = quota_object("a", max="5")
    world = QuotaWorld(first)
    second = quota_object("a", max="50")
    second.metadata.namespace = "other"
    world.put(second)
    assert world.figure("a", "max") == {"cpu": "5"}
    world.objects.informer(ElasticQuota).remove(second)
    assert world.figure("a", "max") == {"cpu": "5"}
    world.put(second)
    world.objects.informer(ElasticQuota).remove(first)
    assert world.figure("a", "max") == {"cpu": "50"}


@pytest.mark.parametrize(
    ("gate", "seconds", "counted"),
    [
        ("", 500, True),
        ("ElasticQuotaImmediateIgnoreTerminatingPod", 0, False),
        ("ElasticQuotaIgnoreTerminatingPod", 129, True),
        ("ElasticQuotaIgnoreTerminatingPod", 130, False),
    ],
)
async def test_terminating_pods(gate: str, seconds: int, counted: bool) -> None:
    clock = FakeClock()
    world = QuotaWorld(quota_object("a"), gates=gates(*filter(None, [gate])), clock=clock)
    candidate = member("a", "8", on="n0")
    world.add(candidate)
    meta = msgspec.structs.replace(
        candidate.metadata, deletion_timestamp=Time.from_unix(clock.now() + 100), deletion_grace_period_seconds=30
    )
    leaving = msgspec.structs.replace(candidate, metadata=meta)
    world.add(leaving)
    await clock.advance(seconds)
    world.plugin.catch_up()
    assert bool(world.figure("a", "used")) is counted
    assert bool(world.figure("a", "request")) is counted
    world.delete(leaving)
    assert world.figure("a", "used") == {}


def test_overhead_can_be_left_out() -> None:
    candidate = pod(cpu="1", memory=None, labels={LABEL: "a"}, spec={"overhead": {"cpu": "500m"}})
    world = QuotaWorld(quota_object("a"), gates=gates("ElasticQuotaIgnorePodOverhead"))
    world.add(candidate)
    assert world.figure("a", "request") == {"cpu": "1"}
    plain = QuotaWorld(quota_object("a"))
    plain.add(candidate)
    assert plain.figure("a", "request") == {"cpu": "1500m"}


# Preemption


def preempting(*pods: Pod, limit: str = "4", **args: Any) -> tuple[QuotaWorld, Evictor]:
    evictor = Evictor()
    world = QuotaWorld(
        quota_object("a", max=limit),
        quota_object("b"),
        quota_object(names.DEFAULT_QUOTA, max=limit),
        cpus=("8", "8"),
        evictor=evictor,
        args=ElasticQuotaArgs(**args),
    )
    for added in pods:
        world.add(added)
    return world, evictor


def test_preemption_frees_the_quota_with_the_least_important_pods_of_the_quota() -> None:
    world, evictor = preempting(
        member("a", "2", "low", on="n0", priority=1),
        member("a", "2", "mid", on="n1", priority=5),
        member("b", "2", "other", on="n0", priority=0),
    )
    failure = failure_of(world, world.add(member("a", "2", priority=9)))
    assert evictor.victims == ["low"]
    assert failure.nominated == "n0"
    assert evictor.message == "koord-scheduler: preempting to accommodate a higher priority pod of the same quota"
    assert world.figure("a", "used") == {"cpu": "4"}  # the trial is reverted


@pytest.mark.parametrize(
    "pods",
    [
        [member("b", "4", on="n0")],
        [member("a", "4", on="n0", priority=9)],
        [member("a", "4", on="n0", **{names.LABEL_QUOTA_PREEMPTIBLE: "false"})],  # type: ignore[arg-type]
        [member("a", "2", on="n0"), member("a", "3", on="n1")],
    ],
    ids=["another quota", "equal priority", "non-preemptible", "not enough on one node"],
)
def test_who_is_no_victim(pods: list[Pod]) -> None:
    world, evictor = preempting(*pods)
    failure_of(world, world.add(member("a", "4" if pods[0].metadata.labels[LABEL] == "a" else "5", priority=9)))
    assert evictor.victims == []


@pytest.mark.parametrize(("limit", "victims"), [("2", []), ("4", ["low", "high"])], ids=["refused", "admitted"])
@pytest.mark.parametrize("order", [("ElasticQuota", "DefaultPreemption"), ("DefaultPreemption", "ElasticQuota")])
def test_no_pod_is_preempted_for_one_that_its_quota_refuses(
    order: tuple[str, ...], limit: str, victims: list[str]
) -> None:
    evictor = Evictor()
    world = QuotaWorld(
        quota_object("a", max=limit, min=limit),
        quota_object("b", min="4"),
        cpus=("4",),
        evictor=evictor,
        points={**POINTS, "postFilter": order},
        args=ElasticQuotaArgs(enable_runtime_quota=False),
    )
    world.add(member("b", "2", "low", on="n0"))
    world.add(member("b", "2", "high", on="n0", priority=1))
    failure_of(world, world.add(member("a", "4", priority=9)))
    assert sorted(evictor.victims) == sorted(victims)


def test_a_pod_that_lacks_a_node_gets_no_message_about_its_quota() -> None:
    attempts: list[int] = []
    world = QuotaWorld(quota_object("a"), cpus=("1", "1"), observe_preemption=attempts.append)
    failure = failure_of(world, world.add(member("a", "2", priority=9)))
    assert failure.text() == "0/2 nodes are available: 2 Insufficient cpu."
    assert attempts == []


@pytest.mark.parametrize(("spare", "victims"), [(True, []), (False, ["low"])])
def test_pods_of_the_default_quota_may_be_spared(spare: bool, victims: list[str]) -> None:
    world, evictor = preempting(member("", "4", "low", on="n0"), disable_default_quota_preemption=spare)
    failure_of(world, world.add(member("", "4", priority=9)))
    assert evictor.victims == victims


# Over-use


def test_the_documented_revocation() -> None:
    figures = {"P1": (10, 20, 0), "P2": (9, 10, 1), "P3": (8, 20, 0), "P4": (7, 40, 0)}
    pods = [
        Revocable(name, priority, 0.0, {"cpu": cpu, "memory": memory})
        for name, (priority, cpu, memory) in figures.items()
    ]
    assert to_revoke({"cpu": 90, "memory": 1}, {"cpu": 50, "memory": 0}, pods) == ["P4", "P2"]


def test_everything_goes_if_that_is_not_enough() -> None:
    pods = [Revocable("old", 0, 1.0, {"cpu": 1}), Revocable("new", 0, 2.0, {"cpu": 1})]
    assert to_revoke({"cpu": 9}, {"cpu": 1}, pods) == ["new", "old"]
    assert to_revoke({"cpu": 1}, {"cpu": 1}, pods) == []


def test_over_use_must_last() -> None:
    clock = OveruseClock(120)
    assert clock.due({"a": True}, 0) == []
    assert clock.due({"a": True}, 120) == []
    assert clock.due({"a": True}, 121) == ["a"]
    assert clock.due({"a": True}, 200) == []  # the clock started again
    assert clock.due({"a": False}, 300) == []
    assert clock.due({"a": True}, 301) == []


class Api:
    """A client that notes requests; answers may be exceptions."""

    def __init__(self, *answers: Exception) -> None:
        self.clock = FakeClock()
        self.registry = CollectorRegistry()
        self.answers = list(answers)
        self.sent: list[tuple[Any, ...]] = []

    def _answer(self, *what: Any) -> None:
        self.sent.append(what)
        if self.answers:
            raise self.answers.pop(0)

    async def evict(self, name: str, namespace: str, *, uid: str) -> None:
        self._answer("evict", f"{namespace}/{name}")

    async def patch(self, kind: type, name: str, namespace: str, *, body: Any) -> None:
        self._answer("patch", name, body)

    async def create(self, created: Any) -> None:
        self._answer("create", created.metadata.name)


async def test_what_two_schedulers_place_beyond_max_admits_nothing_and_is_revoked() -> None:
    """Each admitted 6 of 10 before it knew the pods of the other."""
    world = QuotaWorld(quota_object("A", min="10", max="10"))
    for number in range(6):
        world.add(member("A", "2", f"p{number}", on=f"n{number % 2}", priority=number))
    refused = failure_of(world, world.add(member("A", "1", "late")))
    assert "runtime: cpu:10, used: cpu:12" in refused.text()
    api: Any = Api()
    clock = FakeClock()
    revoker = OveruseRevoker(api, world.plugin.book, ElasticQuotaArgs(), clock)
    await revoker.revoke()
    await clock.advance(121)
    await revoker.revoke()
    assert api.sent == [("evict", "default/p0")]


async def test_pods_of_an_overused_quota_are_evicted_after_the_delay() -> None:
    world = QuotaWorld(quota_object("A", min="50"), quota_object("B", min="50"))
    for number in range(8):
        world.add(member("A", "10", f"p{number}", on="n0", priority=number))
    world.add(member("B", "30"))
    api: Any = Api(TooManyRequests(429, "budget", "no"))
    clock = FakeClock()
    revoker = OveruseRevoker(api, world.plugin.book, ElasticQuotaArgs(), clock)
    await revoker.revoke()
    assert api.sent == []
    await clock.advance(121)
    await revoker.revoke()
    assert api.sent == [("evict", "default/p0")]  # used 80, runtime 70; refused, so tried again after the delay
    await clock.advance(121)
    await revoker.revoke()
    assert len(api.sent) == 2


async def test_pods_stay_while_the_parent_of_their_quota_is_missing() -> None:
    world = QuotaWorld(quota_object("a", "gone", min="50"))
    world.add(member("a", "10", on="n0"))
    api: Any = Api()
    clock = FakeClock()
    revoker = OveruseRevoker(api, world.plugin.book, ElasticQuotaArgs(), clock)
    await revoker.revoke()
    await clock.advance(121)
    await revoker.revoke()
    assert api.sent == []


# Status


def output(world: QuotaWorld, name: str) -> QuotaOutput:
    forest = world.plugin.book.forest
    figures = forest.get(name)
    assert figures is not None
    return QuotaOutput.of(forest.tree(figures), figures)


def test_the_status_states_what_differs() -> None:
    quota = quota_object("a", min="2")
    world = QuotaWorld(quota)
    world.add(member("a", "3", on="n0"))
    body = patch(quota, output(world, "a"))
    assert body == {
        "metadata": {
            "annotations": {
                names.ANNOTATION_QUOTA_RUNTIME: '{"cpu":"3"}',
                names.ANNOTATION_QUOTA_REQUEST: '{"cpu":"3"}',
                names.ANNOTATION_QUOTA_CHILD_REQUEST: '{"cpu":"3"}',
            },
            "resourceVersion": "1",
        },
        "status": {"used": {"cpu": "3"}},
    }
    written = msgspec.structs.replace(
        quota, metadata=msgspec.structs.replace(quota.metadata, annotations=body["metadata"]["annotations"])
    )
    written.status.used = world.add(member("a", "3")).pod.spec.containers[0].resources.requests
    assert set(patch(written, output(world, "a"))["metadata"]["annotations"]) == {
        names.ANNOTATION_QUOTA_RUNTIME,
        names.ANNOTATION_QUOTA_REQUEST,
        names.ANNOTATION_QUOTA_CHILD_REQUEST,
    }


def test_a_broken_annotation_is_overwritten() -> None:
    quota = quota_object("a")
    quota.metadata.annotations = {names.ANNOTATION_QUOTA_RUNTIME: "{"}
    world = QuotaWorld(quota)
    assert patch(quota, output(world, "a"))["metadata"]["annotations"] == {
        names.ANNOTATION_QUOTA_RUNTIME: '{"cpu":"0"}'
    }


def test_child_request_is_lowered_by_what_no_admission_explains() -> None:
    """In each of 60 seconds the manager admits 1 of cpu, which is counted here a second later, and an old pod ends."""
    requests = ChildRequests()
    stated, counted, admitted = 9, 9, 0
    for second in range(60):
        counted += admitted - 1  # the pod of the last second arrives, an old one is gone
        admitted = 1
        stated += admitted
        stated = requests.desired("a", {"cpu": counted}, {"cpu": stated}, float(second))["cpu"]
        requests.written("a", {"cpu": stated})
        assert stated >= counted + admitted  # the admitted pod is never forgotten
        assert stated <= counted + admitted + LOWERING_DELAY_S + 1  # and finished pods are, soon
    quiet = 60 + LOWERING_DELAY_S
    assert requests.desired("a", {"cpu": counted + 1}, {"cpu": stated}, quiet) == {"cpu": counted + 1}


def test_child_request_rises_at_once_and_waits_before_it_falls() -> None:
    requests = ChildRequests()
    assert requests.desired("a", {"cpu": 5}, {"cpu": 3}, 0.0) == {"cpu": 5}
    requests.written("a", {"cpu": 5})
    assert requests.desired("a", {"cpu": 5}, {"cpu": 7}, 1.0) == {"cpu": 7}  # admitted
    assert requests.desired("a", {"cpu": 2}, {"cpu": 7}, 2.0) == {"cpu": 4}  # three are gone, two may be on their way
    assert requests.desired("a", {"cpu": 2}, {"cpu": 7}, 1.0 + LOWERING_DELAY_S) == {"cpu": 2}
    requests.keep(())
    assert requests.desired("a", {}, {"cpu": 5}, 60.0) == {"cpu": 5}  # after a restart any excess may be new


async def test_the_writer_writes_each_difference_and_forgives_conflicts() -> None:
    world = QuotaWorld(quota_object("a"), quota_object("b"))
    world.add(member("a", "3", on="n0"))
    api: Any = Api(Conflict(409, "Conflict", "changed"))
    informer = world.objects.informer(ElasticQuota)
    writer = QuotaStatusWriter(api, informer, world.plugin.book, QuotaMetrics.of(api.registry))
    await writer.sync()
    await writer.sync()
    assert [sent[1] for sent in api.sent] == ["a", "a"]
    assert api.sent[1][2]["status"] == {"used": {"cpu": "3"}}


async def test_a_quota_whose_figures_and_object_are_the_same_is_not_compared_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = QuotaWorld(quota_object("a"), quota_object("b"))
    api: Any = Api()
    informer = world.objects.informer(ElasticQuota)
    writer = QuotaStatusWriter(api, informer, world.plugin.book, QuotaMetrics.of(api.registry))
    compared: list[str] = []

    def record(quota: ElasticQuota, figures: QuotaOutput, further: dict[str, str]) -> dict[str, Any]:
        compared.append(quota.metadata.name)
        return patch(quota, figures, further)

    monkeypatch.setattr(controllers, "patch", record)
    await writer.sync()
    assert sorted(compared) == ["a", "b"]
    await writer.sync()
    assert sorted(compared) == ["a", "b"]
    world.add(member("b", "3", on="n0"))
    await writer.sync()
    assert compared[2:] == ["b"]
    assert [sent[1] for sent in api.sent] == ["b"]


def test_the_built_in_quotas_are_unlimited_unless_configured() -> None:
    default, system, root = built_in(ElasticQuotaArgs(default_quota_group_max={}))
    assert (default.metadata.name, system.metadata.name, root.metadata.name) == (
        names.DEFAULT_QUOTA,
        names.SYSTEM_QUOTA,
        names.ROOT_QUOTA,
    )
    assert str(default.spec.max["cpu"]) == str(system.spec.max["memory"]) == "1844674407370955161"
    assert root.metadata.labels[names.LABEL_QUOTA_IS_PARENT] == "true"


# Wake-ups and pages


class Queue:
    """Notes what is activated."""

    def __init__(self, world: Callable[[], dict[str, PodInfo]]) -> None:
        self._waiting = world
        self.activated: list[str] = []
        self.nominations = Nominations()

    def activate(self, keys: Any) -> None:
        self.activated += keys

    def pending(self, key: str) -> PodInfo | None:
        return self._waiting().get(key)


@pytest.mark.parametrize("moved", [False, True], ids=["deleted", "moved to another quota"])
def test_the_end_of_a_waiting_pod_wakes_those_that_may_use_its_share(moved: bool) -> None:
    waiting: dict[str, PodInfo] = {}
    queue = Queue(lambda: waiting)
    world = QuotaWorld(quota_object("A"), quota_object("B"), quota_object("C", max="1"), cpus=("10",), queue=queue)
    rival = member("A", "10")
    world.add(rival)
    info = world.add(member("B", "8"))
    waiting[info.key] = info
    assert "runtime: cpu:5," in failure_of(world, info).text()
    world.plugin.catch_up()
    assert queue.activated == []
    if moved:
        labels = {**rival.metadata.labels, LABEL: "C"}
        metadata = msgspec.structs.replace(rival.metadata, labels=labels)
        world.objects.informer(Pod).put(msgspec.structs.replace(rival, metadata=metadata))
    else:
        world.delete(rival)
    world.plugin.catch_up()
    assert queue.activated == [info.key]
    world.cycle.place(info)


def test_hints_ask_the_quota() -> None:
    world = QuotaWorld(quota_object("a", max="4"))
    gone = member("a", "4", on="n0")
    world.add(gone)
    info = world.add(member("a", "4"))
    hints = {interest.resource: interest.hint for interest in world.plugin.interests()}
    assert set(hints) == {"AssignedPod", "UnscheduledPod", "ElasticQuota", "Node"}
    hint = hints["AssignedPod"]
    assert hint is not None
    assert not hint(info, None, None)
    world.delete(gone)
    assert hint(info, None, None)


def test_a_written_status_wakes_no_pod_and_rebuilds_no_tree() -> None:
    quota = quota_object("a", max="4")
    world = QuotaWorld(quota, gates=gates("ElasticQuotaGuaranteeUsage"))
    info = world.add(member("a", "4"))
    hint = next(interest.hint for interest in world.plugin.interests() if interest.resource == "ElasticQuota")
    assert hint is not None
    version = world.plugin.book.forest.version
    written = msgspec.structs.replace(
        quota,
        metadata=msgspec.structs.replace(
            quota.metadata,
            annotations={names.ANNOTATION_QUOTA_RUNTIME: '{"cpu": 4}', names.ANNOTATION_QUOTA_GUARANTEED: '{"cpu": 1}'},
        ),
    )
    world.put(written)
    assert not hint(info, quota, written)
    assert world.plugin.book.forest.version == version
    larger = quota_object("a", max="5")
    world.put(larger)
    assert hint(info, written, larger)
    assert hint(info, larger, None)


def test_pages_and_series_show_every_figure() -> None:
    world = QuotaWorld(quota_object("p", min="4", **{names.LABEL_QUOTA_IS_PARENT: "true"}), quota_object("a", "p"))  # type: ignore[arg-type]
    info = world.add(member("a", "3", "x", on="n0"))
    page = world.plugin.quota_page("a", includePods="true")
    assert {key: page[key] for key in ("name", "parentName", "used", "runtime", "request", "min", "tree")} == {
        "name": "a",
        "parentName": "p",
        "used": {"cpu": "3"},
        "runtime": {"cpu": "3"},
        "request": {"cpu": "3"},
        "min": {"cpu": "0"},
        "tree": "",
    }
    assert page["podCache"] == {info.key: {"isAssigned": True, "resource": {"cpu": "3"}}}
    assert set(world.plugin.quotas_page()) == {"a", "p"}
    assert world.plugin.quotas_page(tree="T") == {}
    with pytest.raises(LookupError, match="cannot find quota nothing"):
        world.plugin.quota_page("nothing")
    registry = CollectorRegistry()
    QuotaGauges(registry, world.plugin.book.forest)
    labels = {"name": "a", "resource": "cpu", "tree": "", "is_parent": "false", "parent": "p"}
    assert registry.get_sample_value("scheduler_elastic_quota_status", {**labels, "field": "used"}) == 3000
    assert registry.get_sample_value("scheduler_elastic_quota_spec", {**labels, "field": "max"}) == 100000


def test_a_restart_gives_the_same_figures() -> None:
    world = QuotaWorld(quota_object("p", min="4"), quota_object("a", "p"), quota_object(names.DEFAULT_QUOTA))
    for cpu in ("1", "2"):
        world.add(member("a", cpu, on="n0"))
        world.add(member("", cpu, on="n0"))
        world.add(member("a", cpu))
    again = QuotaBook(world.cluster.handle, ForestRules(), PodRules())
    for stored in world.objects.informer(ElasticQuota).list():
        again.quota_seen(stored)
    for stored in world.objects.informer(Pod).list():
        again.pod_seen(stored)
    plugin = world.plugin
    before = plugin.quotas_page(includePods="true")
    plugin.book = again
    after = plugin.quotas_page(includePods="true")
    for page in (*before.values(), *after.values()):
        del page["runtimeVersion"]
    assert after == before

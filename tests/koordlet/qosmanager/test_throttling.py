"""Throttling of culprits: which pods, by which settings, which notices, and which pods are never throttled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.api.sloconfig.interference import EXTENSION_KEY, effective
from koordlet.interference.model import AlarmState, Cause, Culprit, Verdict, WaitResource
from koordlet.qosmanager.engine.strategy import QoSDecision
from koordlet.qosmanager.engine.view import InterferenceView, PodView
from koordlet.qosmanager.throttling.iolever import IoLever
from koordlet.qosmanager.throttling.levers import NetworkLever
from koordlet.qosmanager.throttling.strategy import ThrottleCulprits
from koordlet.resourceexecutor import DesiredSetting, Setting
from koordlet.resourceexecutor.merge import merge
from koordlet.statesinformer.pods.cgroupindex import Owner, owner_of
from koordlet.statesinformer.pods.model import subjects_of
from koordlet.wiring.ownerrules import RULES
from tests.koordlet.qosmanager.conftest import make_pod, make_view
from tests.present import present

MIB = 1 << 20
CPU_ON = {"cpu": {"enable": True}}
QUOTA, HIGH, LIMIT = "cpu.cfs_quota_us", "memory.high", "memory.limit_in_bytes"

WEB = make_pod("web", qos="LS", cpu=300, memory=100 * MIB)
BURN = make_pod("burn", qos="BE", kube="BestEffort", cpu=1000, memory=400 * MIB)
CALM = make_pod("calm", qos="BE", kube="BestEffort", cpu=50, memory=10 * MIB)
PROD = make_pod("prod", qos="LS", cpu=1500, memory=800 * MIB)


def verdict(
    *culprits: Any, resource: WaitResource = WaitResource.CPU, victim: PodView = WEB, **overrides: Any
) -> Verdict:
    """`culprits`: (pod or owner, share)."""
    subject = subjects_of(victim.meta)[1]
    owners = [
        (culprit if isinstance(culprit, Owner) else owner_of(subjects_of(culprit.meta)[1]), share)
        for culprit, share in culprits
    ]
    fields: dict[str, Any] = {
        "victim": subject, "resource": resource, "cause": Cause.NEIGHBOUR, "state": AlarmState.INTERFERED, "score": 2.0,
        "lost": 0.4, "began": 0.0, "since": 0.0, "at": 0.0, "window": 3.0, "source": "bpf", "confidence": 0.9,
        "severity": "medium", "action": "suppress-best-effort",
        "culprits": tuple(Culprit(owner, share, share) for owner, share in owners),
    }  # fmt: skip
    return Verdict(**{**fields, **overrides})


class Stage:
    """One strategy and its clock."""

    def __init__(
        self, actions: Any = None, *, supports: Callable[..., Any] = lambda resource, directory: True, **strategy: Any
    ) -> None:
        extension = {EXTENSION_KEY: {"actions": CPU_ON if actions is None else actions, **strategy}}
        self.strategy = effective(extension)
        self.acts = ThrottleCulprits(supports)
        self.now = 1000.0

    def round(
        self, *verdicts: Verdict, pods: tuple[PodView, ...] = (WEB, BURN, CALM, PROD), seconds: float = 1.0, **view: Any
    ) -> QoSDecision | None:
        self.now += seconds
        interference = view.pop("interference", InterferenceView(verdicts, self.strategy, self.now))
        return self.acts.decide(make_view(pods=pods, now=self.now, interference=interference, **view))

    def settings(self, decision: QoSDecision) -> dict[tuple[str, str], Any]:
        names = {"/".join(p.meta.cgroup_dir.split("/")[-1:]): p.meta.name for p in (WEB, BURN, CALM, PROD)}
        return {
            (  # type: ignore[misc]
                names.get(present(u.setting.cgroup_dir).rpartition("/")[2], u.setting.cgroup_dir),
                u.setting.resource,
            ): u.value
            for u in decision.updates
        }


def test_nothing_is_throttled_by_default() -> None:
    stage = Stage({})
    decided = stage.round(verdict((BURN, 0.9)))
    assert decided is not None
    assert (decided.updates, decided.notices, decided.note) == ((), (), "off")


def test_the_first_step_throttles_the_culprit_to_80_percent_and_notifies_both_pods() -> None:
    stage = Stage()
    decided = stage.round(verdict((BURN, 0.9), (CALM, 0.05)))
    assert decided is not None
    assert stage.settings(decided) == {("burn", QUOTA): 80_000}
    tightened, victim = decided.notices
    assert tightened.pod.name == "burn" and tightened.warning
    assert "throttled to 80 % of 1000m, quota 80000 us" in tightened.message
    assert "container c0 of default/web lost 40 % of its time waiting for a CPU, 90 % of that" in tightened.message
    assert tightened.counts == ("interference_action_steps_total", "cpu", "tighten")
    assert (victim.pod.name, victim.event) == ("web", "default/burn, which delays it, gets less cpu")
    assert decided.note == "throttled: default/burn cpu 80 %"
    (throttled,) = stage.acts.throttled
    assert (throttled.pod.name, throttled.state.level, throttled.victims) == ("burn", 80, (("uid-web", "c0"),))
    assert decided.figures["interference_action_level"] == {("uid-burn", "burn", "default", "cpu"): 0.8}


def test_every_step_is_audited_and_events_are_sent_once_a_minute() -> None:
    stage = Stage({"cpu": {"enable": True, "stepPercent": 1}})
    notices = [n for _ in range(130) for n in present(stage.round(verdict((BURN, 0.9)))).notices]
    assert len([n for n in notices if n.pod.name == "burn"]) == 44
    assert len([n for n in notices if n.pod.name == "burn" and n.event]) == 3
    assert len({n.event for n in notices if n.pod.name == "burn" and n.event}) == 1, "the same text each time"
    assert len([n for n in notices if n.pod.name == "web" and n.event]) == 3


def test_with_events_disabled_the_audit_log_is_complete() -> None:
    stage = Stage(event=False)
    notices = [
        *present(stage.round(verdict((BURN, 0.9), (PROD, 0.95)))).notices,
        *present(stage.round(pods=(WEB,))).notices,
    ]
    assert [n.reason for n in notices] == ["InterferenceNotActedOn", "InterferenceTightened", "InterferenceFreed"]
    assert not any(n.event for n in notices)


def test_a_culprit_is_throttled_to_the_floor_and_released_in_steps() -> None:
    """Down to the floor, unchanged while the alarm ends, released in steps, and no setting remains."""
    stage, quotas = Stage({"cpu": {"enable": True, "floorPercent": 50, "releaseSeconds": 10}}), []
    for _ in range(20):
        quotas.append(stage.settings(present(stage.round(verdict((BURN, 0.9)))))["burn", QUOTA])
    assert sorted(set(quotas), reverse=True) == [80_000, 60_000, 50_000] and quotas[-1] == 50_000
    for _ in range(30):
        decided = stage.round(verdict((BURN, 0.9), state=AlarmState.RECOVERING))
        assert decided is not None
        assert stage.settings(decided) == {("burn", QUOTA): 50_000}
    quotas = [stage.settings(present(stage.round())).get(("burn", QUOTA), -1) for _ in range(40)]
    assert [value for at, value in enumerate(quotas) if at == 0 or quotas[at - 1] != value] == [
        50_000,
        70_000,
        90_000,
        -1,
    ]
    assert stage.acts.throttled == () and present(stage.round()).notices == ()


@pytest.mark.parametrize(
    ("overrides", "pods"),
    [
        ({"confidence": 0.2}, (WEB, BURN)),
        ({"cause": Cause.SELF}, (WEB, BURN)),
        ({"resource": WaitResource.CACHE}, (WEB, BURN)),
        ({"state": AlarmState.SUSPECTED}, (WEB, BURN)),
        ({"victim": CALM}, (CALM, BURN)),
        ({}, (WEB,)),
    ],
    ids=["low-confidence", "self-inflicted", "no-lever", "suspected", "best-effort-victim", "culprit-gone"],
)
def test_verdicts_that_do_not_throttle(overrides: dict[str, Any], pods: tuple[PodView, ...]) -> None:
    assert present(Stage().round(verdict((BURN, 0.9), **overrides), pods=pods)).updates == ()


def test_several_small_culprits_count_together() -> None:
    """Five with a tenth each: each below the minimum share, together above it."""
    many = [make_pod(f"b{n}", qos="BE", kube="BestEffort", cpu=200) for n in range(10)]
    decided = Stage().round(verdict(*((pod, 0.1) for pod in many[:5])), pods=(WEB, *many))
    assert decided is not None
    assert len(decided.updates) == 5
    assert present(Stage().round(verdict((BURN, 0.1)), pods=(WEB, BURN))).updates == (), "below the minimum share"


@pytest.mark.parametrize(
    "pod",
    [
        PROD,
        make_pod("mid", qos="BE", kube="BestEffort", cpu=900, spec={"priority": 7500}),
        make_pod("prod-be", qos="BE", kube="BestEffort", cpu=900, spec={"priority": 9500}),
        make_pod("lsr", qos="LSR", kube="Guaranteed", cpu=900),
        make_pod("ls-besteffort", qos="LS", kube="BestEffort", cpu=900),
        make_pod("unlabelled", kube="Burstable", cpu=900),
        make_pod("system", qos="SYSTEM", cpu=900),
        make_pod("ended", qos="BE", kube="BestEffort", cpu=900, phase="Succeeded"),
    ],
    ids=lambda pod: pod.meta.name,
)
def test_culprits_of_other_classes_get_one_notice_and_no_settings(pod: PodView) -> None:
    stage = Stage()
    first, second = (stage.round(verdict((pod, 0.9)), pods=(WEB, pod)) for _ in range(2))
    assert first is not None
    assert second is not None
    assert not first.updates and not second.updates and not first.evictions
    (notice,) = first.notices
    assert (notice.pod.name, notice.reason) == (pod.meta.name, "InterferenceNotActedOn")
    assert second is not None
    assert second.notices == ()


def test_policy_report_only_publishes_a_notice() -> None:
    stage = Stage({"cpu": {"enable": True, "policy": "report"}})
    first, second = stage.round(verdict((BURN, 0.9))), stage.round(verdict((BURN, 0.9)))
    assert second is not None
    assert [n.reason for n in present(first).notices] == ["InterferenceWouldAct"] and second.notices == ()
    assert first is not None
    assert first.updates == () == stage.acts.throttled


def test_a_quota_never_exceeds_the_pods_limits_and_containers_follow() -> None:
    """The kernel refuses a container quota above its pod's."""
    limits = {"resources": {"limits": {"kubernetes.io/batch-cpu": "2000"}}}
    pod = make_pod("lim", qos="BE", kube="BestEffort", cpu=900, spec={"containers": [{"name": "c0", **limits}]})
    stage = Stage()
    values = [u.value for u in present(stage.round(verdict((pod, 0.9)), pods=(WEB, pod))).updates]
    assert values == [72_000, 72_000]
    small = make_pod("small", qos="BE", kube="BestEffort", cpu=900, spec={
        "containers": [{"name": "c0", "resources": {"limits": {"kubernetes.io/batch-cpu": "100"}}}]})  # fmt: skip
    assert [u.value for u in present(Stage().round(verdict((small, 0.9)), pods=(WEB, small))).updates] == [10_000]


def test_where_best_effort_has_a_quota_the_whole_is_throttled() -> None:
    slo = {"resourceUsedThresholdWithBE": {"enable": True, "cpuSuppressPolicy": "cfsQuota"}}
    stage = Stage()
    decided = stage.round(verdict((BURN, 0.9)), slo=slo)
    assert decided is not None
    assert decided.updates == () and stage.acts.target == 80
    stage.round(verdict((BURN, 0.9)))
    assert stage.acts.target == 100
    stage.acts = ThrottleCulprits(lambda resource, directory: True, suppress=False)
    assert stage.settings(present(stage.round(verdict((BURN, 0.9)), slo=slo))) == {("burn", QUOTA): 80_000}, (
        "CPU suppress is off"
    )


@pytest.mark.parametrize(
    ("policy", "kernel", "expected", "problem"),
    [
        ("auto", True, {("burn", HIGH): 320 * MIB}, ""),
        ("auto", False, {("burn", LIMIT): 320 * MIB}, ""),
        ("high", True, {("burn", HIGH): 320 * MIB}, ""),
        ("high", False, {}, "no memory.high"),
        ("limit", True, {("burn", LIMIT): 320 * MIB}, ""),
    ],
)
def test_memory_policies(policy: str, kernel: bool, expected: dict[tuple[str, str], int], problem: str) -> None:
    actions = {"memory": {"enable": True, "policy": policy}}
    stage = Stage(actions, supports=lambda resource, directory: kernel)
    decided = stage.round(verdict((BURN, 0.9), resource=WaitResource.MEMORY))
    assert decided is not None
    assert stage.settings(decided) == expected
    assert problem in stage.acts.throttled[0].problem and bool(problem) == bool(stage.acts.throttled[0].problem)


def test_a_large_culprit_reaches_its_goal_in_bounded_writes() -> None:
    """Each write reclaims before it returns, so one write reduces the limit by 128 MiB at most."""
    stage, now, limits = Stage({"memory": {"enable": True, "intervalSeconds": 600}}), 2000 * MIB, []
    for _ in range(6):
        big = replace(BURN, memory=now)
        decided = stage.round(verdict((big, 0.9), resource=WaitResource.MEMORY), pods=(WEB, big))
        assert decided is not None
        now = stage.settings(decided)["burn", HIGH]
        limits.append(now // MIB)
    assert limits == [1872, 1744, 1616, 1600, 1600, 1600]
    assert stage.acts.throttled[0].state.level == 80 and "1600 MiB" in stage.acts.throttled[0].remaining


LIMITS = tuple(f"blkio.throttle.{way}_bps_device" for way in ("read", "write"))


@pytest.mark.parametrize(
    ("kernel", "flat", "rounds", "expected"),
    [
        ("blkio.cost.weight", False, 1, [("burn", "blkio.cost.weight", "80")]),
        ("blkio.bfq.weight_device", False, 1, [("burn", "blkio.bfq.weight_device", "80")]),
        ("blkio.cost.weight", False, 2,
         [("burn", "blkio.cost.weight", "60"), *(("burn", file, "6291456") for file in LIMITS)]),
        ("", False, 1, [("burn", file, "8388608") for file in LIMITS]),
        ("", True, 1, [(where, file, "8388608") for file in LIMITS for where in ("burn", "burn/c0")]),
    ],
    ids=["weight-first", "bfq", "then-a-limit", "no-weights", "limits-not-inherited"],
)  # fmt: skip
def test_block_io_settings(kernel: str, flat: bool, rounds: int, expected: list[tuple[str, str, str]]) -> None:
    stage = Stage({"io": {"enable": True, "intervalSeconds": 1}})
    lever = IoLever(lambda: ("8:0",), lambda resource, directory: resource == kernel, flat=flat)
    stage.acts = ThrottleCulprits(lambda resource, directory: True, {"io": lever})
    for _ in range(rounds):
        decided = stage.round(verdict((BURN, 0.9), resource=WaitResource.IO), io_now=lambda container: 10.0 * MIB)
    containers = {BURN.meta.cgroup_dir: "burn", BURN.meta.containers[0].cgroup_dir: "burn/c0"}
    assert {u.setting.device for u in present(decided).updates} == {"8:0"}
    assert [
        (containers[present(u.setting.cgroup_dir)], u.setting.resource, u.value) for u in present(decided).updates
    ] == expected


def test_block_io_without_figures_or_disks_is_not_throttled() -> None:
    stage = Stage({"io": {"enable": True}})
    case = verdict((BURN, 0.9), resource=WaitResource.IO)
    assert present(stage.round(case)).updates == () == stage.acts.throttled, "no lever"
    no_disks = IoLever(tuple, lambda *_: True, flat=False)
    stage.acts = ThrottleCulprits(lambda resource, directory: True, {"io": no_disks})
    assert present(stage.round(case)).updates == () == stage.acts.throttled, "not measured"
    assert present(stage.round(case, io_now=lambda container: 0.0)).updates == ()
    assert "no disk" in stage.acts.throttled[0].problem and stage.acts.throttled[0].state.base == MIB  # type: ignore[misc]


@pytest.mark.parametrize("why", ["", "nothing is shaped"])
def test_network_levels_are_for_netqos(why: str) -> None:
    stage = Stage({"network": {"enable": True, "intervalSeconds": 1}})
    stage.acts = ThrottleCulprits(lambda resource, directory: True, {"network": NetworkLever(lambda view: why)})
    for level in (80, 60, 40):
        decided = stage.round(verdict((BURN, 0.9), resource=WaitResource.NETWORK))
        assert decided is not None
        assert (decided.updates, stage.acts.levels("network"), stage.acts.levels("cpu")) == (
            (),
            {"uid-burn": level},
            {},
        )
    assert stage.acts.throttled[0].problem == why


@pytest.mark.parametrize("resource", [QUOTA, HIGH, LIMIT, "blkio.cost.weight", *LIMITS])
@pytest.mark.parametrize("other", ["batchresource", "memoryqos", "blkio", "cpuburst", "cpunormalization"])
def test_a_throttle_outranks_other_owners_of_the_setting(resource: str, other: str) -> None:
    setting = Setting(resource, "kubepods/besteffort/pod1")
    claims = {
        owner: {setting: DesiredSetting(setting, value)} for owner, value in ((other, 9), ("interferenceactions", 5))
    }
    assert merge(claims, RULES)[setting].owner == "interferenceactions"


def test_eviction_needs_its_time_at_the_floor_and_restarts_it() -> None:
    stage = Stage({"cpu": {"enable": True, "floorPercent": 80, "evictAfterSeconds": 5}})
    due = [bool(present(stage.round(verdict((BURN, 0.9)))).evictions) for _ in range(7)]
    assert due == [False] * 5 + [True] * 2
    (task,) = present(stage.round(verdict((BURN, 0.9)))).evictions
    assert [pod.meta.name for pod in task.victims] == ["burn"] and task.feature == "InterferenceActions"
    stage.acts.evicted(stage.now)
    assert not present(stage.round(verdict((BURN, 0.9)))).evictions


def test_a_pod_that_forbids_eviction_is_only_throttled() -> None:
    pod = make_pod("keep", qos="BE", kube="BestEffort", cpu=900,
                   annotations={"koordinator.sh/eviction-policy": '["MemoryEvict"]'})  # fmt: skip
    stage = Stage({"cpu": {"enable": True, "floorPercent": 80, "evictAfterSeconds": 1}})
    for _ in range(5):
        decided = stage.round(verdict((pod, 0.9)), pods=(WEB, pod))
    assert decided is not None
    assert decided.updates and not decided.evictions


@pytest.mark.parametrize(
    ("disks", "evicts"), [(("8:0",), True), ((), False)], ids=["throttled", "could-not-be-throttled"]
)
def test_only_a_pod_that_was_really_throttled_is_evicted(disks: tuple[str, ...], evicts: bool) -> None:
    """Eviction is for culprits on which the lever had no effect, not for those without a lever."""
    stage = Stage({"io": {"enable": True, "floorPercent": 80, "evictAfterSeconds": 1}})
    stage.acts = ThrottleCulprits(lambda *_: True, {"io": IoLever(lambda: disks, lambda *_: False, flat=False)})
    case = verdict((BURN, 0.9), resource=WaitResource.IO)
    decided = [stage.round(case, io_now=lambda container: 9.0 * MIB) for _ in range(5)]
    assert bool(present(decided[-1]).evictions) is bool(present(decided[-1]).updates) is evicts


def test_stale_verdicts_change_nothing() -> None:
    stage = Stage()
    assert present(stage.round(interference=InterferenceView((), stage.strategy, None))).updates == (), (
        "one empty declaration"
    )
    stage.round(verdict((BURN, 0.9)))
    assert stage.round(interference=InterferenceView((), stage.strategy, stage.now - 60), seconds=30) is None


@pytest.mark.parametrize("how", ["resource", "detection", "no-detection", "gone"])
def test_a_culprit_is_freed_at_once_when_disabled_or_gone(how: str) -> None:
    stage = Stage()
    stage.round(verdict((BURN, 0.9)))
    pods, overrides = (WEB, BURN), {}
    if how == "resource":
        stage.strategy = effective({})
    elif how == "detection":
        stage.strategy = replace_enable(stage.strategy)
    elif how == "no-detection":
        overrides = {"interference": None}
    else:
        pods = (WEB,)  # type: ignore[assignment]
    decided = stage.round(verdict((BURN, 0.9)), pods=pods, **overrides)  # type: ignore[arg-type]
    assert decided is not None
    assert decided.updates == () and stage.acts.throttled == () and stage.acts.target == 100
    assert [n.reason for n in present(decided).notices] == ["InterferenceFreed"]


def replace_enable(strategy: Any) -> Any:
    import msgspec

    return msgspec.structs.replace(strategy, enable=False)


def test_an_unmeasured_culprit_is_not_throttled_yet() -> None:
    pod = make_pod("new", qos="BE", kube="BestEffort")
    assert present(Stage().round(verdict((pod, 0.9)), pods=(WEB, pod))).updates == ()


QOS = ["", "LSE", "LSR", "LS", "BE", "SYSTEM"]
some_pods = st.lists(
    st.tuples(
        st.sampled_from(QOS), st.sampled_from(["Guaranteed", "Burstable", "BestEffort"]),
        st.sampled_from([None, 0, 3500, 5500, 7500, 9500]), st.sampled_from(["Running", "Pending", "Failed"]),
        st.one_of(st.none(), st.integers(0, 4000)),
    ),
    min_size=1, max_size=5,
)  # fmt: skip
some_verdicts = st.lists(
    st.tuples(
        st.lists(st.tuples(st.integers(0, 4), st.floats(0.01, 1.0)), max_size=5), st.sampled_from(list(WaitResource)),
        st.sampled_from(list(AlarmState)), st.sampled_from(list(Cause)), st.floats(0, 1),
    ),
    max_size=4,
)  # fmt: skip
ALL_ON = {"cpu": {"enable": True, "evictAfterSeconds": 1}, "memory": {"enable": True, "evictAfterSeconds": 1}}


@given(some_pods, st.lists(some_verdicts, min_size=1, max_size=6), st.booleans())
def test_only_best_effort_pods_are_ever_throttled(
    given_pods: list[tuple[str, str, int | None, str, int | None]],
    story: list[list[tuple[list[tuple[Any, ...]], WaitResource, AlarmState, Cause, float]]],
    kernel: bool,
) -> None:
    pods = [
        replace(
            make_pod(f"p{n}", qos=qos, kube=kube, phase=phase, spec={} if value is None else {"priority": value}),
            cpu=cpu, memory=cpu and cpu * MIB,
        )
        for n, (qos, kube, value, phase, cpu) in enumerate(given_pods)
    ]  # fmt: skip
    stage = Stage(ALL_ON, supports=lambda resource, directory: kernel)
    allowed = {
        p.meta.cgroup_dir
        for p in pods
        if p.meta.qos == "BE" and p.meta.priority_class in ("koord-batch", "koord-free", "")
    }
    for drawn in story:
        verdicts = [
            verdict(*((pods[number % len(pods)], share) for number, share in culprits), resource=resource, state=state,
                    cause=cause, confidence=confidence)
            for culprits, resource, state, cause, confidence in drawn
        ]  # fmt: skip
        decided = stage.round(*verdicts, pods=(WEB, *pods), seconds=4.0)
        assert decided is not None
        for update in decided.updates:
            directory = update.setting.cgroup_dir
            assert directory is not None
            assert directory in allowed or directory.rpartition("/")[0] in allowed
            assert update.setting.resource in (QUOTA, HIGH, LIMIT)
        assert {p.meta.cgroup_dir for task in present(decided).evictions for p in task.victims} <= allowed
    for _ in range(60):
        decided = stage.round(pods=(WEB, *pods), seconds=240.0)
    assert decided is not None
    assert decided.updates == () and stage.acts.throttled == ()


# --- suspicions: light and reversible, without Events


def suspected(stage: Stage, *verdicts: Verdict, **more: Any) -> QoSDecision:
    """One round in which these victims are suspected."""
    view = InterferenceView((), stage.strategy, stage.now + 1.0, verdicts, more.pop("recent_cores", {}))
    return present(stage.round(interference=view, **more))


def suspicion(*culprits: Any, score: float = 2.0, **overrides: Any) -> Verdict:
    return verdict(*culprits, state=AlarmState.SUSPECTED, score=score, **overrides)


def test_a_suspicion_gives_one_step_without_events_and_is_released_soon() -> None:
    stage = Stage()
    decided = suspected(stage, suspicion((BURN, 0.9)))
    assert stage.settings(decided) == {("burn", QUOTA): 80_000}
    assert [(notice.pod.name, notice.event) for notice in decided.notices] == [("burn", "")]
    assert decided.notices[0].details["provisional"]
    for _ in range(10):
        assert stage.settings(suspected(stage, suspicion((BURN, 0.9)))) == {("burn", QUOTA): 80_000}
    rounds = [stage.settings(suspected(stage)) for _ in range(3)]
    assert rounds == [{("burn", QUOTA): 80_000}, {}, {}]
    assert stage.acts.throttled == ()


def test_an_alarm_after_a_suspicion_sends_the_events() -> None:
    stage = Stage()
    suspected(stage, suspicion((BURN, 0.9)))
    notices = [notice for _ in range(4) for notice in present(stage.round(verdict((BURN, 0.9)))).notices]
    assert {notice.pod.name for notice in notices if notice.event} == {"burn", "web"}


@pytest.mark.parametrize(
    "verdicts",
    [
        [suspicion((BURN, 0.2), (PROD, 0.7))],
        [suspicion((BURN, 0.5), (PROD, 0.4), score=1.2)],
        [suspicion((PROD, 0.9))],
        [suspicion((BURN, 0.9), score=0.8)],
        [suspicion((BURN, 0.9), victim=CALM)],
    ],
    ids=["mostly-others", "others-make-it-an-alarm", "not-best-effort", "below-the-threshold", "best-effort-victim"],
)
def test_batch_work_is_not_limited_on_a_suspicion_unless_its_own_part_is_clear(verdicts: list[Verdict]) -> None:
    decided = suspected(Stage(), *verdicts)
    assert decided.updates == () and decided.notices == (), "a culprit that is exempt is published with an alarm only"


def test_throttling_begins_at_the_use_within_the_short_evidence() -> None:
    """BURN started just now: the last tick has a tenth of what it uses."""
    stage, burn = Stage(), make_pod("burn", qos="BE", kube="BestEffort", cpu=120)
    decided = suspected(stage, suspicion((burn, 0.9)), pods=(WEB, burn), recent_cores={"uid-burn": 0.95})
    assert stage.settings(decided) == {("burn", QUOTA): 76_000}


def test_a_new_suspicion_makes_the_strategy_decide_at_once() -> None:
    stage = Stage()
    assert not stage.acts.outdated()
    stage.acts.suspect()
    assert stage.acts.outdated()
    suspected(stage)
    assert not stage.acts.outdated()


def test_a_remembered_culprit_is_forgotten_when_the_action_is_disabled() -> None:
    stage = Stage()
    suspected(stage, suspicion((BURN, 0.9)))
    for _ in range(4):
        suspected(stage)
    stage.strategy = Stage({}).strategy
    suspected(stage)
    stage.strategy = Stage().strategy
    suspected(stage, suspicion((BURN, 0.9)))
    rounds = [stage.settings(suspected(stage)) for _ in range(3)]
    assert rounds[-1] == {}, "the first release time again"

"""Scheduling, reservation, gang and quota annotations (spec 01 §5.2, §5.6-§5.9, §10)."""

from __future__ import annotations

import json

import pytest

from koordlet.api.annotations import Annotation, gang, quota, reservation, scheduling
from koordlet.api.encoding.quantity import Quantity
from koordlet.api.encoding.wire import Duration, WireError

S = "scheduling.koordinator.sh/"
G = "gang.scheduling.koordinator.sh/"
Q = "quota.scheduling.koordinator.sh/"


@pytest.mark.parametrize(
    ("text", "cost"), [(None, 0), ("10", 10), ("-5", -5), ("0", 0), ("2147483647", scheduling.NEVER_EVICT_COST)]
)
def test_eviction_cost(text: str | None, cost: int) -> None:
    assert scheduling.eviction_cost({} if text is None else {S + "eviction-cost": text}) == cost


@pytest.mark.parametrize("text", ["+10", "008", "", "2147483648", "-0", "1.0", "x"])
def test_eviction_cost_refuses(text: str) -> None:
    with pytest.raises(WireError, match="eviction-cost"):
        scheduling.eviction_cost({S + "eviction-cost": text})


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (scheduling.RESOURCE_SPEC, '{"preferredCPUBindPolicy":"FullPCPUs","preferredCPUExclusivePolicy":"PCPULevel"}'),
        (scheduling.RESOURCE_STATUS, '{"cpuset":"0-3","numaNodeResources":[{"node":0,"resources":{"cpu":"4"}}]}'),
        (scheduling.NUMA_TOPOLOGY_SPEC,
         '{"numaTopologyPolicy":"SingleNUMANode","singleNUMANodeExclusive":"Required"}'),
        (reservation.ALLOCATED, '{"name":"r-1","uid":"u"}'),
        (reservation.EXACT_MATCH, '{"resourceNames":["cpu","memory"]}'),
        (reservation.RESTRICTED_OPTIONS, '{"resources":["cpu"]}'),
        (reservation.RESIZE_ALLOCATABLE, '{"resources":{"cpu":"2"}}'),
        (reservation.OWNERS, '[{"labelSelector":{"matchLabels":{"a":"b"}}}]'),
        (reservation.AFFINITY, '{"requiredDuringSchedulingIgnoredDuringExecution":{"reservationSelectorTerms":['
         '{"matchExpressions":[{"key":"pool","operator":"In","values":["a"]}]}]},'
         '"reservationSelector":{"team":"x"},"tolerations":[{"key":"k","operator":"Exists"}]}'),
        (scheduling.SOFT_EVICTION, '{"timestamp":"2024-03-05T08:00:00Z",'
         '"deleteOptions":{"gracePeriodSeconds":0},"initiator":"i",'
         '"reason":"r"}'),
        (gang.NETWORK_TOPOLOGY_SPEC,
         '{"gatherStrategy":[{"layer":"SpineLayer","strategy":"PreferGather","podCountMultiple":2}]}'),
        (quota.NAMESPACES, '["ns1","ns2"]'),
        (quota.RUNTIME, '{"cpu":"1500m","memory":"2Gi"}'),
    ],
    ids=lambda value: getattr(value, "key", None),
)  # fmt: skip
def test_reads_and_writes_the_same_bytes(annotation: Annotation[object], text: str) -> None:
    value = annotation.get({annotation.key: text})
    assert value is not None and annotation.text(value) == text
    with pytest.raises(WireError, match=annotation.key):
        annotation.get({annotation.key: "{"})


def test_empty_reservation_annotations_count_as_missing() -> None:
    assert reservation.EXACT_MATCH.get({reservation.EXACT_MATCH.key: ""}) is None
    assert reservation.RESTRICTED_OPTIONS.get({reservation.RESTRICTED_OPTIONS.key: ""}) is None
    assert reservation.OWNERS.get({reservation.OWNERS.key: ""}) is None


def test_missing_specs_are_empty() -> None:
    assert scheduling.RESOURCE_STATUS.get({}) == scheduling.ResourceStatus()
    assert scheduling.RESOURCE_STATUS.text(scheduling.ResourceStatus(numa_node_resources=[
        scheduling.NUMANodeResource()])) == '{"numaNodeResources":[{"node":0}]}'  # fmt: skip


def test_scheduling_hint() -> None:
    new, old = "internal." + S + "scheduling-hint", S + "scheduling-hint"
    hint = scheduling.scheduling_hint({new: '{"preferredNodeNames":["n1"]}', old: '{"nodeNames":["n2"]}'})
    assert hint and hint.preferred_node_names == ["n1"] and hint.node_names == []
    hint = scheduling.scheduling_hint({new: "", old: '{"nodeNames":["n2"],"extensions":{"Reservation":{}}}'})
    assert hint and hint.node_names == ["n2"] and hint.extensions == {"Reservation": {}}
    assert scheduling.scheduling_hint({new: ""}) is None


def test_load_estimation() -> None:
    key = S + "load-estimated-scaling-factors"
    assert scheduling.load_scaling_factors({key: '{"cpu":85,"memory":70}'}) == {"cpu": 85, "memory": 70}
    assert scheduling.load_scaling_factors({key: "{"}) is None and scheduling.load_scaling_factors({}) is None
    seconds = {
        S + "load-estimated-seconds-after-pod-scheduled": "60",
        S + "load-estimated-seconds-after-initialized": "x",
    }
    assert scheduling.load_estimated_seconds(seconds) == (60, None)


def test_pod_labels() -> None:
    assert scheduling.preemption_policy({S + "preemption-policy": "PreemptLowerPriority"}) == "PreemptLowerPriority"
    assert scheduling.preemption_policy({S + "preemption-policy": "x"}) == scheduling.preemption_policy({}) == "Never"
    assert scheduling.is_preemptible({}) and not scheduling.is_preemptible({S + "disable-preemptible": "true"})
    assert scheduling.quota_preemptible({}) and not scheduling.quota_preemptible({Q + "preemptible": "false"})
    assert scheduling.effective_scheduler({S + "scheduler-name": ""}, "koord") == ""
    assert scheduling.effective_scheduler({}, "koord") == "koord"
    assert reservation.is_reservation_pod({S + "operating-mode": "Reservation"})
    assert not reservation.is_reservation_pod({S + "operating-mode": "Runnable"})
    assert reservation.ignores_reservations({S + "reservation-ignored": "true"})


def test_reservation_affinity() -> None:
    key = S + "reservation-affinity"
    assert reservation.AFFINITY.get({}) is None
    empty = reservation.AFFINITY.get({key: ""})
    assert empty == reservation.ReservationAffinity() and empty.matches("any", {})
    named = reservation.AFFINITY.get({key: '{"name":"r1","reservationSelector":{"team":"x"}}'})
    assert named and named.matches("r1", {}) and not named.matches("r2", {"team": "x"})
    selective = reservation.AFFINITY.get({key: '{"reservationSelector":{"team":"x"},'
        '"requiredDuringSchedulingIgnoredDuringExecution":{"reservationSelectorTerms":['
        '{"matchExpressions":[{"key":"pool","operator":"In","values":["a"]}]},'
        '{"matchExpressions":[{"key":"pool","operator":"In","values":["b"]}]}]}}'})  # fmt: skip
    assert selective and selective.matches("r", {"team": "x", "pool": "b"})
    assert not selective.matches("r", {"team": "x", "pool": "c"}) and not selective.matches("r", {"pool": "a"})


def test_reservation_allocated_is_removed_by_its_own_reservation_only() -> None:
    annotations = {S + "reservation-allocated": '{"name":"r","uid":"u1"}', "a": "b"}
    assert reservation.without_allocated(annotations, "u1") == {"a": "b"}
    assert reservation.without_allocated(annotations, "u2") is None
    assert reservation.without_allocated({}, "") is None


def test_reservation_order() -> None:
    assert reservation.order({S + "reservation-order": "7"}) == 7 and reservation.order({}) == 0
    with pytest.raises(WireError):
        reservation.order({S + "reservation-order": "first"})


@pytest.mark.parametrize(("text", "total"), [(None, 3), ("", 3), ("5", 5), ("2", 3), ("x", 3)])
def test_gang_total_number(text: str | None, total: int) -> None:
    assert gang.total_number({} if text is None else {G + "total-number": text}, 3) == total


def test_gang_name_and_minimum() -> None:
    label = "pod-group.scheduling.sigs.k8s.io"
    annotations = {G + "name": "c", G + "min-available": "2"}
    assert gang.gang_name({label: "a", label + "/name": "b"}, annotations) == "a"
    assert gang.gang_name({label + "/name": "b"}, annotations) == "b"
    assert gang.gang_name({}, annotations) == "c" and gang.gang_name({}, {}) == ""
    assert gang.min_available({}, annotations) == 2
    assert gang.min_available({label + "/min-available": "4"}, {}) == 4 and gang.min_available({}, {}) is None
    with pytest.raises(WireError):
        gang.min_available({}, {G + "min-available": "many"})


def test_gang_settings() -> None:
    assert gang.mode({G + "mode": "NonStrict"}) == "NonStrict"
    assert gang.mode({G + "mode": "nonstrict"}) == gang.mode({}) == "Strict"
    assert gang.match_policy({G + "match-policy": "only-waiting"}) == "only-waiting"
    assert gang.match_policy({"pod-group.scheduling.sigs.k8s.io/match-policy": "waiting-and-running"}) == (
        "waiting-and-running"
    )
    assert gang.match_policy({G + "match-policy": "x"}) == gang.match_policy({}) == "once-satisfied"
    assert gang.groups({G + "groups": '["ns/a","ns/b"]'}, "ns/a") == ["ns/a", "ns/b"]
    most = [f"ns/{number}" for number in range(256)]
    assert gang.groups({G + "groups": json.dumps(most)}, "ns/a") == most
    assert gang.groups({G + "groups": json.dumps([*most, "ns/a"])}, "ns/a") == ["ns/a"], "more gangs than a group has"
    assert gang.groups({G + "groups": "{"}, "ns/a") == gang.groups({}, "ns/a") == ["ns/a"]


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("0", 600), ("-1s", 600), ("soon", 600), (None, 600)])
def test_gang_waiting_time(text: str | None, seconds: int) -> None:
    assert gang.waiting_time({} if text is None else {G + "waiting-time": text}) == Duration.of(seconds=seconds)


def test_network_order() -> None:
    key = G + "network-topology-index"
    pods = {"pA": {key: "x"}, "p2": {key: "1"}, "p0": {}, "p1": {key: "0"}, "pZ": {key: "-1"}}
    assert sorted(pods, key=lambda name: gang.network_order(name, pods[name])) == ["p1", "p2", "p0", "pA", "pZ"]
    assert gang.network_index({}) is None
    with pytest.raises(WireError):
        gang.network_index(pods["pA"])


def test_quota_shared_weight() -> None:
    maximum = {"cpu": Quantity("10")}
    key = Q + "shared-weight"
    assert quota.shared_weight({key: '{"cpu":"2"}'}, maximum) == {"cpu": Quantity("2")}
    for pod_annotations in ({}, {key: "{"}, {key: ""}, {key: '{"cpu":"0"}'}):
        assert quota.shared_weight(pod_annotations, maximum) is maximum


def test_quota_lists() -> None:
    assert quota.RUNTIME.get({Q + "runtime": ""}) == {} and quota.RUNTIME.get({}) is None
    with pytest.raises(WireError, match=r"runtime: \[cpu\]: 'x' is not a quantity"):
        quota.RUNTIME.get({Q + "runtime": '{"cpu":"x"}'})
    assert quota.namespaces({Q + "namespaces": '["a"]'}) == ["a"]
    assert quota.namespaces({Q + "namespaces": "{"}) == quota.namespaces({}) == []


def test_quota_labels() -> None:
    assert quota.parent("q", {Q + "parent": "p"}) == "p"
    assert quota.parent("q", {}) == quota.parent("q", {Q + "parent": ""}) == "koordinator-root-quota"
    assert quota.parent("koordinator-root-quota", {Q + "parent": "p"}) == ""
    assert quota.is_parent({Q + "is-parent": "true"}) and not quota.is_parent({Q + "is-parent": "True"})
    assert quota.is_tree_root({Q + "is-root": "true"}) and not quota.is_tree_root({})
    assert quota.allows_lent_resource({}) and quota.allows_lent_resource({Q + "allow-lent-resource": "no"})
    assert not quota.allows_lent_resource({Q + "allow-lent-resource": "false"})
    assert quota.allows_force_update({Q + "allow-force-update": "true"})
    assert quota.ignores_default_tree({Q + "ignore-default-tree": "true"})


def test_profile_tree_id() -> None:
    assert quota.profile_tree_id("kube-system", "my-profile") == "9078369319225641689"

"""Which pods match which reservations: every rule of spec 06 §4.4, and malformed input."""

from __future__ import annotations

import json
from typing import Any

import pytest

from control.reservation.amounts import bounded
from control.reservation.matching import Mismatch, conditions, matched, owned_by
from control.reservation.model import MAX_OWNER_TERMS, MAX_OWNERS, parse
from koordlet.api import names
from koordlet.api.core.podresources import pod_requests
from koordlet.api.encoding.wire import WireError
from tests.control.reservation.reservationbuild import pod, reservation

REPLICA_SET = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-1", "uid": "rs-1", "controller": True}
JOB = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "job-1"}


@pytest.mark.parametrize(
    ("owners", "matches"),
    [
        ([{}], True),
        ([], False),
        ([{"object": {"name": "p"}}], True),
        ([{"object": {"name": "p", "namespace": "other"}}], False),
        ([{"object": {"uid": "uid-p", "kind": "Ignored"}}], True),
        ([{"object": {"apiVersion": "v1"}}], True),
        ([{"object": {"apiVersion": "v2"}}], False),
        ([{"controller": {"kind": "ReplicaSet", "apiVersion": "", "name": "", "uid": "", "controller": True}}], True),
        ([{"controller": {"kind": "Job", "apiVersion": "", "name": "", "uid": "", "controller": True}}], False),
        ([{"controller": {"kind": "Job", "apiVersion": "batch/v1", "name": "j", "uid": "job-1"}}], True),
        ([{"controller": {"kind": "", "apiVersion": "", "name": "", "uid": "rs-1", "namespace": "x"}}], False),
        ([{"labelSelector": {"matchLabels": {"app": "web"}}}], True),
        ([{"labelSelector": {"matchLabels": {"app": "db"}}}, {"object": {"name": "p"}}], True),
        ([{"labelSelector": {"matchLabels": {"app": "web"}}, "object": {"name": "other"}}], False),
    ],
)
def test_fields_are_anded_and_owners_ored(owners: list[Any], matches: bool) -> None:
    subject = pod(labels={"app": "web"}, owner_references=[REPLICA_SET, JOB])
    assert owned_by(parse(reservation(owners=owners)).owners, subject) is matches


def judged(annotations: dict[str, Any], node_labels: dict[str, str] | None = None, **of: Any) -> Mismatch | None:
    subject = pod(
        cpu=of.pop("pod_cpu", 4),
        annotations={
            key: value if isinstance(value, str) else json.dumps(value)
            for key, value in (("scheduling.koordinator.sh/" + key, value) for key, value in annotations.items())
        },
    )
    requests = bounded(pod_requests(subject))
    return matched(conditions(subject), requests, parse(reservation(node="n1", **of)), node_labels or {}).mismatch


SELECTED_BY_256_VALUES = {"key": "a", "operator": "In", "values": [str(number) for number in range(MAX_OWNER_TERMS)]}
TAINT = [{"key": "team", "value": "a", "effect": "NoSchedule"}]
TOLERATES = [{"key": "team", "operator": "Exists"}]


@pytest.mark.parametrize(
    ("annotations", "of", "mismatch"),
    [
        ({}, {}, None),
        ({}, {"unschedulable": True}, Mismatch.UNSCHEDULABLE),
        ({"reservation-affinity": {"name": "r1"}}, {"unschedulable": True, "taints": TAINT}, None),
        ({"reservation-affinity": {"name": "r2"}}, {}, Mismatch.NAME),
        (
            {"reservation-affinity": {"tolerations": [{"operator": "Exists"}]}},
            {"unschedulable": True},
            None,
        ),
        ({}, {"taints": TAINT}, Mismatch.TAINT),
        ({"reservation-affinity": ""}, {"taints": TAINT}, Mismatch.TAINT),
        ({"reservation-affinity": {"tolerations": TOLERATES}}, {"taints": TAINT}, None),
        ({}, {"taints": [{**TAINT[0], "effect": "PreferNoSchedule"}]}, None),
        ({"reservation-affinity": {"reservationSelector": {"zone": "a"}}}, {"labels": {"zone": "a"}}, None),
        (
            {"reservation-affinity": {"reservationSelector": {"zone": "b"}}},
            {"labels": {"zone": "a"}},
            Mismatch.AFFINITY,
        ),
        ({"reservation-affinity": {"reservationSelector": {"host": "n1"}}}, {}, None),
        (
            {
                "reservation-affinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "reservationSelectorTerms": [
                            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["r1"]}]}
                        ]
                    }
                }
            },
            {},
            None,
        ),
        ({"exact-match-reservation": {"resourceNames": ["cpu"]}}, {"cpu": 8}, Mismatch.EXACT),
        ({"exact-match-reservation": {"resourceNames": ["cpu"]}}, {"cpu": 4}, None),
        ({"exact-match-reservation": {"resourceNames": ["gpu", "cpu"]}}, {"cpu": 8}, Mismatch.EXACT),
        ({"exact-match-reservation": {"resourceNames": ["memory"]}}, {"memory": "1Gi"}, Mismatch.EXACT),
    ],
)
def test_the_conditions_of_the_pod(annotations: dict[str, Any], of: dict[str, Any], mismatch: Mismatch | None) -> None:
    assert judged(annotations, {"host": "n1"}, **of) is mismatch


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (names.ANNOTATION_RESERVATION_AFFINITY, "{"),
        (names.ANNOTATION_RESERVATION_AFFINITY, '{"tolerations": 3}'),
        (names.ANNOTATION_RESERVATION_AFFINITY, '{"reservationSelector": {"a": "' + "x" * 20_000 + '"}}'),
        (names.ANNOTATION_EXACT_MATCH_RESERVATION, "[]"),
    ],
)
def test_a_malformed_annotation_of_a_pod_is_named(key: str, text: str) -> None:
    with pytest.raises(WireError, match=key):
        conditions(pod(annotations={key: text}))


def test_owners_with_the_most_terms() -> None:
    owners = [{"labelSelector": {"matchLabels": {"app": f"a{number}"}}} for number in range(MAX_OWNER_TERMS)]
    model = parse(reservation(node="n1", owners=owners))
    assert not model.problem
    assert owned_by(model.owners, pod(labels={"app": "a255"}))


@pytest.mark.parametrize(
    ("of", "problem"),
    [
        ({"owners": [{"labelSelector": {"matchExpressions": [{"key": "a", "operator": "Near"}]}}]}, "spec.owners[0]"),
        ({"owners": [{}] * (MAX_OWNERS + 1)}, "spec.owners: has 257"),
        (
            {"owners": [{"labelSelector": {"matchExpressions": [SELECTED_BY_256_VALUES]}}]},
            "spec.owners: has 257 labels",
        ),
        ({"owners": [{"labelSelector": {"matchLabels": {"a": "b", "c": "d"}}}] * 129}, "spec.owners: has 258 labels"),
        ({"owners": []}, "spec.owners"),
        ({"ttl": None}, "spec.ttl"),
        (
            {
                "allocatePolicy": "Restricted",
                "annotations": {names.ANNOTATION_RESERVATION_RESTRICTED_OPTIONS: "{"},
            },
            names.ANNOTATION_RESERVATION_RESTRICTED_OPTIONS,
        ),
        (
            {"annotations": {names.ANNOTATION_NODE_RESERVATION: '{"reservedCPUs": "x"}'}},
            "x",
        ),
    ],
)
def test_a_malformed_reservation_matches_nothing_and_names_the_field(of: dict[str, Any], problem: str) -> None:
    model = parse(reservation(node="n1", **of))
    assert problem in model.problem
    assert not model.matchable

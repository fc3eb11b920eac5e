"""The Reservation of a job (spec 07 §11.9)."""

from __future__ import annotations

from typing import Any

import pytest

from control.descheduler.migration.decide.reservations import (
    ReservationImpossible,
    is_for_pending,
    is_own,
    may_consume,
    reservation_for,
    reservation_name,
)
from koordlet.api.core import Pod
from koordlet.api.encoding import wire
from tests.control.descheduler.migration.build import job, pod, reservation

PENDING: dict[str, Any] = {"on": "", "phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False"}]}
FIELD = {"key": "metadata.name", "operator": "NotIn", "values": ["n1"]}


def terms(required: list[dict[str, Any]] | None) -> dict[str, Any]:
    affinity = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": required}}
    return {"affinity": {"nodeAffinity": affinity}} if required is not None else {}


def made(subject: Pod, document: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    template = options.pop("template", None)
    migration = job(subject, name="m", reservationOptions={"template": template} if template is not None else None)
    return reservation_for(migration, subject, document or wire.to_builtins(subject), 1234, **options)


def test_a_copy_of_the_pod_without_its_node() -> None:
    subject = pod("a", labels={"app": "web"})
    document = wire.to_builtins(subject)
    document["spec"]["futureField"] = {"x": 1}
    document["metadata"]["managedFields"] = [{}]
    document["metadata"]["resourceVersion"] = "7"
    document["metadata"]["annotations"] = {"scheduling.koordinator.sh/device-allocated": "{}", "mine": "1"}
    body = made(subject, document)
    template = body["spec"]["template"]
    assert body["metadata"]["name"] == "uid-m"
    assert body["metadata"]["labels"] == {
        "app.kubernetes.io/created-by": "koord-descheduler",
        "scheduling.koordinator.sh/reservation-order": "1234",
    }
    assert template["spec"]["futureField"] == {"x": 1}
    assert "nodeName" not in template["spec"]
    assert template["metadata"]["labels"] == {"app": "web"}
    assert template["metadata"]["annotations"] == {"mine": "1"}
    assert not {"uid", "resourceVersion", "managedFields", "creationTimestamp"} & template["metadata"].keys()
    assert body["spec"]["allocateOnce"] is True
    assert body["spec"]["ttl"] == "5m0s"
    owner = body["spec"]["owners"][0]["controller"]
    assert owner == {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "name": "rs",
        "uid": "uid-rs",
        "controller": True,
        "namespace": "default",
    }
    assert document["spec"]["nodeName"] == "n1"  # the argument is unchanged


@pytest.mark.parametrize(
    ("required", "expected"),
    [
        (None, [{"matchFields": [FIELD]}]),
        (
            [{"matchExpressions": [{"key": "a"}]}, {"matchFields": [{"key": "b"}]}],
            [
                {"matchExpressions": [{"key": "a"}], "matchFields": [FIELD]},
                {"matchFields": [{"key": "b"}, FIELD]},
            ],
        ),
    ],
)
def test_the_own_node_is_excluded_in_every_term(
    required: list[dict[str, Any]] | None, expected: list[dict[str, Any]]
) -> None:
    subject = pod("a")
    document = wire.to_builtins(subject)
    document["spec"] |= terms(required)
    assert made(subject, document)["spec"]["template"]["spec"]["affinity"] == terms(expected)["affinity"]


def test_a_pending_pod_owns_the_reservation_itself() -> None:
    subject = pod("a", **PENDING)
    body = made(subject)
    assert body["spec"]["owners"] == [{"object": {"kind": "Pod", "namespace": "default", "name": "a", "uid": "uid-a"}}]
    assert "affinity" not in body["spec"]["template"]["spec"]


def test_a_bare_pod_has_no_consumer() -> None:
    with pytest.raises(ReservationImpossible, match="no controller"):
        made(pod("a", by=""))


def test_the_template_of_the_job_is_kept() -> None:
    template = {
        "metadata": {"name": "mine", "labels": {"x": "y"}},
        "spec": {
            "owners": [{"labelSelector": {"matchLabels": {"app": "web"}}}],
            "expires": "2030-01-01T00:00:00Z",
            "template": {"spec": {"nodeName": "n9", "containers": []}},
            "unknown": 1,
        },
    }
    body = made(pod("a", by=""), template=template)
    assert body["metadata"]["name"] == "mine"
    assert body["metadata"]["labels"]["x"] == "y"
    assert body["spec"]["owners"] == template["spec"]["owners"]  # type: ignore[index]
    assert "ttl" not in body["spec"]
    assert body["spec"]["unknown"] == 1
    assert "nodeName" not in body["spec"]["template"]["spec"]
    assert reservation_name(job("a", reservationOptions={"template": template})) == "mine"


@pytest.mark.parametrize(
    "template",
    [
        {"metadata": []},
        {"metadata": {"labels": "x"}},
        {"spec": "x"},
        {"spec": {"template": [1]}},
        {"spec": {"template": {"spec": 1}}},
        {"spec": {"template": {"spec": {"affinity": {"nodeAffinity": 3}}}}},
    ],
)
def test_a_malformed_template_is_refused_by_name(template: dict[str, Any]) -> None:
    with pytest.raises(ReservationImpossible, match="is not an object"):
        made(pod("a"), template=template)


def test_claims_are_removed_with_the_gate() -> None:
    subject = pod("a")
    document = wire.to_builtins(subject)
    document["spec"]["volumes"] = [
        {"name": "claim", "persistentVolumeClaim": {"claimName": "c"}},
        {"name": "generic", "ephemeral": {}},
        {"name": "scratch", "emptyDir": {}},
    ]
    kept = made(subject, document)["spec"]["template"]["spec"]["volumes"]
    assert len(kept) == 3
    removed = made(subject, document, without_claims=True)["spec"]["template"]["spec"]["volumes"]
    assert [each["name"] for each in removed] == ["scratch"]


def test_only_a_reservation_of_the_job_is_its_own() -> None:
    migration = job("a", name="m")
    mine = reservation(
        "r", metadata={"ownerReferences": [{"apiVersion": "v", "kind": "k", "name": "m", "uid": "uid-m"}]}
    )
    assert is_own(mine, migration)
    assert not is_own(
        reservation("r", metadata={"labels": {"app.kubernetes.io/created-by": "koord-descheduler"}}), migration
    )


@pytest.mark.parametrize(
    ("owners", "consumes"),
    [
        ([], False),
        ([{}], False),
        ([{"labelSelector": {"matchLabels": {"app": "web"}}}], True),
        ([{"labelSelector": {"matchLabels": {"app": "db"}}}], False),
        ([{"labelSelector": {"matchLabels": {"a b": "x"}}}], False),
        ([{"controller": {"apiVersion": "", "kind": "ReplicaSet", "name": "rs", "uid": "uid-rs"}}], True),
        ([{"controller": {"apiVersion": "", "kind": "", "name": "other", "uid": ""}}], False),
        ([{"controller": {"apiVersion": "", "kind": "", "name": "", "uid": "", "namespace": "else"}}], False),
        ([{"object": {"namespace": "default", "name": "a"}}], True),
        ([{"object": {"namespace": "default", "name": "a", "uid": "uid-a"}}], False),
        ([{"object": {"name": "z"}}, {"labelSelector": {"matchLabels": {"app": "web"}}}], True),
        ([{"object": {"name": "a"}, "labelSelector": {"matchLabels": {"app": "db"}}}], False),
    ],
)
def test_which_reservations_a_replacement_may_consume(owners: list[dict[str, Any]], consumes: bool) -> None:
    assert may_consume(reservation("r", spec={"owners": owners}), pod("a", labels={"app": "web"})) is consumes


def test_a_reservation_for_a_pending_pod_names_its_uid() -> None:
    subject = pod("a", **PENDING)
    own = {"object": {"kind": "Pod", "namespace": "default", "name": "a", "uid": "uid-a"}}
    assert is_for_pending(reservation("r", spec={"owners": [own]}), subject)
    assert not is_for_pending(reservation("r", spec={"owners": [{"object": {"name": "a"}}]}), subject)
    assert not is_for_pending(reservation("r", spec={"owners": [own, {"labelSelector": {}}]}), subject)

"""Replicas of two versions during an upgrade: the leader determines the lists of webhooks, every replica the CA."""

from __future__ import annotations

from typing import Any

from control.manager.webhookserver import registrations
from tests.waiting import until

PATH = (
    "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/koordinator-validating-webhook-configuration"
)
BINDING = "vpodbinding.koordinator.sh"


async def names(cluster: Any) -> set[str]:
    return {webhook["name"] for webhook in (await cluster.get(PATH))["webhooks"]}


async def test_a_replica_that_does_not_lead_leaves_the_list_alone(cluster: Any, manager: Any) -> None:
    """The second replica lacks a handler, as one of an older version; both run passes all the time."""
    election = (
        "--leader-elect-lease-duration=3s",
        "--leader-elect-renew-deadline=2s",
        "--leader-elect-retry-period=200ms",
    )
    leader = await manager("--controllers=nodeslo", *election)
    complete = await names(cluster)
    assert BINDING in complete
    other = await manager("--controllers=nodeslo", *election, "--feature-gates=PodValidatingWebhook=false", name="b",
                          WEBHOOK_PORT="0")  # fmt: skip
    versions = set()
    for number in range(5):
        for running in (leader, other):
            running.manager.rotation.leadership_changed()  # a pass
        await cluster.admin.raw(
            "PATCH", PATH, body={"metadata": {"labels": {"number": str(number)}}},
            content_type="application/merge-patch+json",
        )  # fmt: skip
        await until(lambda: leader.manager.rotation.initialised.is_set())
        versions.add(frozenset(await names(cluster)))
    assert versions == {frozenset(complete)}

    await leader.stop()
    await until(lambda: other.manager.rotation.registered.is_set())
    assert BINDING not in await names(cluster), "the new leader's list"
    assert {entry["name"] for entry in registrations.validating(other.manager.env)} >= await names(cluster)

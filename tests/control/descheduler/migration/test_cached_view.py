"""Workloads as the limits see them, from cached objects (spec 07 §11.4)."""

from __future__ import annotations

from typing import Any

import pytest

from control.descheduler.migration.decide.args import MigrationControllerArgs as Args
from control.descheduler.state.objects import trim_workload
from koordlet.api.core import Deployment, Pod, ReplicaSet, StatefulSet
from koordlet.api.encoding import wire
from tests.control.descheduler.migration.build import owner, pod
from tests.control.descheduler.migration.world import World


def workload(kind: type[Any], name: str, replicas: int | None, by: dict[str, Any] | None = None, uid: str = "") -> Any:
    meta = {"name": name, "namespace": "default", "uid": uid or f"uid-{name}", "labels": {"a": "b"}}
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c"}]}}
    spec = {"replicas": replicas, "selector": {"matchLabels": {"a": "b"}}, "template": template}
    return wire.convert({"metadata": {**meta, "ownerReferences": [by] if by else []}, "spec": spec}, kind)


def view_with(*objects: Any, pods: list[Any]) -> Any:
    world = World(Args())
    for each in objects:
        world.objects.informer(type(each)).deliver(
            {**world.objects.informer(type(each)).known, each.metadata.key: trim_workload(each)}
        )

    world.objects.informer(Pod).deliver({each.metadata.key: each for each in pods})
    return world.migration.view


def test_a_replica_set_counts_with_its_deployment() -> None:
    deployment = workload(Deployment, "web", 7)
    sets = [workload(ReplicaSet, name, 3, owner("Deployment", "web")) for name in ("old", "new")]
    pods = [pod("a", by="old"), pod("b", by="new"), pod("c", by="other")]
    view = view_with(deployment, *sets, pods=pods)
    counted = view.workload(pods[0])
    assert counted.replicas == 7
    assert {each.metadata.name for each in counted.pods} == {"a", "b"}


@pytest.mark.parametrize(("kind", "name"), [(ReplicaSet, "ReplicaSet"), (StatefulSet, "StatefulSet")])
def test_replicas_of_a_workload(kind: type[Any], name: str) -> None:
    pods = [pod("a", by="web", kind=name), pod("b", by="web", kind=name)]
    assert view_with(workload(kind, "web", 5), pods=pods).workload(pods[0]).replicas == 5
    assert view_with(workload(kind, "web", None), pods=pods).workload(pods[0]).replicas == 1
    assert view_with(workload(kind, "web", 5, uid="another"), pods=pods).workload(pods[0]).replicas == 2


def test_an_unknown_kind_counts_its_pods() -> None:
    pods = [pod(f"p{number}", by="train", kind="Job") for number in range(3)]
    workload = view_with(pods=pods).workload(pods[0])
    assert (workload.replicas, len(workload.pods)) == (3, 3)


@pytest.mark.parametrize("version", ["../../v1", "apps/../v1", "v1/..", "", "batch/v1?x", "a" * 300 + "/v1"])
async def test_owner_references_of_tenants_never_become_other_paths(version: str) -> None:
    world = World(Args())
    paths: list[str] = []
    world.transport.faults = lambda method, path: paths.append(path) or ""  # type: ignore[func-returns-value]
    subject = pod("a", by="x", kind="Thing")
    subject.metadata.owner_references[0].api_version = version
    await world.migration.view.resolve(subject)
    subject.metadata.owner_references[0].api_version = "example.com/v1"
    subject.metadata.owner_references[0].name = "../../secrets"
    await world.migration.view.resolve(subject)
    assert paths == []

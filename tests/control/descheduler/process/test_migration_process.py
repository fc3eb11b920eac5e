"""The process with the plugin MigrationController, in a real API server and under its own account."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from control.component.errors import ConfigurationError
from control.descheduler.config.load import load
from control.descheduler.config.shipped import configuration
from control.descheduler.migration import migration
from control.descheduler.migration.decide import lifetime
from control.descheduler.migration.decide.reservations import is_own
from control.descheduler.plugins.registry import PLUGINS
from control.descheduler.process.rights import MIGRATION
from koordlet.api.core import Pod
from koordlet.api.crs.migration import PodMigrationJob
from koordlet.api.crs.reservation import Reservation
from tests.control.descheduler.process.conftest import balancing
from tests.control.descheduler.process.test_descheduler_process import ROOT, hot_and_idle
from tests.control.descheduler.process.test_descheduler_rbac import USER
from tests.rights import asked, granted
from tests.waiting import until

JOBS = "/apis/scheduling.koordinator.sh/v1alpha1/podmigrationjobs"
RESERVATIONS = "/apis/scheduling.koordinator.sh/v1alpha1/reservations"
KIND = {"apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "PodMigrationJob"}


def migrating(**args: Any) -> dict[str, Any]:
    """LowNodeLoad, with MigrationController as the evict plugin."""
    document = balancing()
    (profile,) = document["profiles"]
    only = {"disabled": [{"name": "*"}], "enabled": [{"name": "MigrationController"}]}
    profile["plugins"]["evict"] = profile["plugins"]["filter"] = only
    limits = {"maxUnavailablePerWorkload": 3, "maxMigratingPerWorkload": 3, "schedulerNames": ["default-scheduler"]}
    profile["pluginConfig"].append({"name": "MigrationController", "args": {**limits, **args}})
    return document


async def request(world: Any, name: str, pod: str, labels: dict[str, str] | None = None, **spec: Any) -> None:
    body = {
        **KIND,
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {"podRef": {"namespace": "default", "name": pod}, "ttl": "5m", **spec},
    }
    await world.admin.raw("POST", JOBS, body=body)


async def phases(world: Any) -> dict[str, tuple[str, str]]:
    return {job.metadata.name: (job.status.phase, job.status.reason) for job in await world.admin.list(PodMigrationJob)}


async def test_a_plugin_moves_a_pod_through_a_job(world: Any, descheduler: Any) -> None:
    await hot_and_idle(world, "web-0", "web-1", "web-2", "web-3")
    gate = "--feature-gates=DrainController=true"
    running = await descheduler(migrating(defaultJobMode="EvictDirectly"), gate)

    async def done() -> PodMigrationJob | None:
        jobs = await world.admin.list(PodMigrationJob)
        return next((job for job in jobs if job.status.phase == "Succeeded"), None)

    job = await until(done)
    assert job.metadata.annotations["koordinator.sh/evict-trigger"] == "LowNodeLoad"
    assert job.metadata.annotations["koordinator.sh/evict-reason"].startswith("node is overutilized")
    assert job.spec.pod_ref.name not in await world.pods()
    page = (await running.page("/metrics"))[1]
    assert 'descheduler_pods_evicted{namespace="default",node="hot",result="success",strategy="LowNodeLoad"} 1' in page
    assert 'workqueue_adds_total{controller="migration",name="migration"} ' in page
    documented = (ROOT / "docs/descheduler.md").read_text()
    families = set(re.findall(r"^# TYPE (descheduler_\w+) ", page, re.MULTILINE))
    assert set(re.findall(r"\| `(descheduler_\w+)`", documented)) == families


async def test_a_dry_run_does_not_touch_jobs(world: Any, descheduler: Any) -> None:
    await hot_and_idle(world, "web-0", "web-1", "web-2", "web-3")
    await request(world, "mine", "web-0", mode="EvictDirectly")
    document = migrating(defaultJobMode="EvictDirectly")
    document["dryRun"] = True
    running = await descheduler(document)
    await until(lambda: running.process.metrics.planned.collect()[0].samples)
    assert await phases(world) == {"mine": ("", "")}
    assert len(await world.pods()) == 4


def test_profiles_must_agree() -> None:
    """Two profiles share one controller; their arguments are compared when the process is constructed."""
    document = configuration()
    (profile,) = document["profiles"]
    del profile["plugins"]["evict"], profile["plugins"]["filter"]
    other = {**profile, "name": "other"}
    other["pluginConfig"] = [{"name": "MigrationController", "args": {"evictBurst": 7}}]
    document["profiles"].append(other)
    assert [each.enabled["evict"] for each in load(yaml.safe_dump(document), PLUGINS).profiles] == [
        ("MigrationController",),
        ("MigrationController",),
    ]


async def test_profiles_with_different_arguments_do_not_start(descheduler: Any) -> None:
    document = migrating()
    (profile,) = document["profiles"]
    other = {**profile, "name": "other"}
    other["pluginConfig"] = [{"name": "MigrationController", "args": {"evictBurst": 7}}]
    document["profiles"].append(other)
    with pytest.raises(ConfigurationError, match="koord-descheduler and other have different arguments"):
        await descheduler(document)


async def test_every_right_of_migrations_is_used(world: Any, descheduler: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migration, "SCAVENGE_PERIOD_S", 1.0)
    await hot_and_idle(world, "web-0", "web-1", "web-2", "web-3", "web-4", "web-5")
    await world.report("hot", {})  # no plugin acts
    body = {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Reservation",
        "metadata": {"name": "mine"},
        "spec": {"template": {"spec": {}}, "owners": [{"labelSelector": {"matchLabels": {"app": "web"}}}]},
    }
    await world.admin.raw("POST", RESERVATIONS, body=body)
    document = migrating(maxMigratingPerNode=0, evictBurst=10, objectLimiters={"namespace": {"duration": "1s"}})
    document["profiles"][0]["pluginConfig"][-1]["args"]["skipEvictionGates"] = [
        "MaxMigratingPerWorkload",
        "MaxUnavailablePerWorkload",
    ]
    running = await descheduler(document)
    await request(world, "soft", "web-0", {"koordinator.sh/evict-policy": "SoftEviction"}, mode="EvictDirectly")
    await request(world, "hard", "web-1", {"koordinator.sh/evict-policy": "Delete"}, mode="EvictDirectly")
    await request(world, "gone", "web-9", ttl="2s")
    await request(world, "late", "web-2")
    await request(world, "own", "web-3", reservationOptions={"reservationRef": {"name": "mine"}})

    async def soft() -> bool:
        pod = await world.admin.get(Pod, "web-0", "default")
        return "scheduling.koordinator.sh/soft-eviction" in pod.metadata.annotations

    async def ordered() -> bool:
        mine = await world.admin.get(Reservation, "mine")
        return "scheduling.koordinator.sh/reservation-order" in mine.metadata.labels

    async def reserved() -> bool:
        late = await world.admin.get(PodMigrationJob, "late")
        return any(is_own(each, late) for each in await world.admin.list(Reservation))

    async def settled() -> bool:
        by_name = await phases(world)
        return by_name["late"][0] == by_name["gone"][0] == "Failed" and by_name["hard"][0] == "Succeeded"

    async def scavenged() -> bool:
        return not {"gone", "late"} & (await phases(world)).keys()

    await until(soft)
    await until(ordered)
    await until(reserved)
    await world.admin.raw(
        "PATCH", f"{JOBS}/late", body={"spec": {"ttl": "1s"}}, content_type="application/merge-patch+json"
    )
    await until(settled)  # "late" has deleted its Reservation
    monkeypatch.setattr(lifetime, "SCAVENGER_GRACE_S", 1.0)
    await until(scavenged)
    await world.report("hot", {"web-4": "1600m", "web-5": "1600m"})
    await until(lambda: _trigger(world))
    await running.stop()
    rights = granted(MIGRATION.rules)
    await until(lambda: not rights - {each for each, _, _ in asked(world.audit, USER)})
    refused = {(right, uri) for right, code, uri in asked(world.audit, USER) if code in (401, 403)}
    assert refused == set()
    assert await world.admin.get(Reservation, "mine")  # of a user: a job never deletes it
    assert {each.metadata.name for each in await world.admin.list(Reservation)} >= {"mine"}


async def _trigger(world: Any) -> bool:
    jobs = await world.admin.list(PodMigrationJob)
    return any("koordinator.sh/evict-trigger" in job.metadata.annotations for job in jobs)

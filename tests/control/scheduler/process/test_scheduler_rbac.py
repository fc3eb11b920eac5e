"""The scheduler under its own roles: every request is allowed, and every granted right is used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aiohttp
import yaml

from control.scheduler.config.shipped import configuration
from control.scheduler.explain import controller as explanations
from control.scheduler.process import manifests
from koordlet.api.core import Node, PersistentVolume, PersistentVolumeClaim
from koordlet.api.crs.quota import ElasticQuota
from tests.control.scheduler.process.test_claims_process import create_claim, offer, serve_claims
from tests.control.scheduler.process.test_reservations_process import document, phase
from tests.ports import free_port
from tests.rights import Right, asked, granted
from tests.waiting import until

USER = f"system:serviceaccount:koordinator-system:{manifests.ACCOUNT}"
GRANTED = granted((*manifests.RULES, *manifests.NAMESPACE_RULES))


def unused(audit: Path, *, without: str = "") -> set[Right]:
    used = {right for right, _, _ in asked(audit, USER)}
    return {right for right in GRANTED - used if right[2] != without}


async def test_every_call_is_allowed_and_every_right_is_used(world: Any, scheduler: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(explanations, "SWEEP_PERIOD_S", 0.1)
    monkeypatch.setattr(explanations, "MIN_INTERVAL_S", 0.1)
    document = configuration()
    kind = {"apiVersion": document["apiVersion"], "kind": "CoschedulingArgs"}
    close = {"name": "Coscheduling", "args": {**kind, "awareNetworkTopology": True}}
    document["profiles"][0]["pluginConfig"].append(close)
    quotas = next(plugin for plugin in document["profiles"][0]["pluginConfig"] if plugin["name"] == "ElasticQuota")
    quotas["args"] |= {"monitorAllQuotas": True, "delayEvictTime": "100ms", "revokePodInterval": "200ms"}
    garbage = {"kind": "ReservationArgs", "gcDurationSeconds": 1, "gcIntervalSeconds": 1}
    args = {"apiVersion": document["apiVersion"], **garbage}
    document["profiles"][0]["pluginConfig"].append({"name": "Reservation", "args": args})
    path = world.tmp / "all.yaml"
    path.write_text(yaml.safe_dump(document))
    await world.node("n1", cpu="2")
    port = free_port()
    await serve_claims(world)
    await network_topology(world)
    flags = ("--enable-network-topology-manager", "--bind-address=127.0.0.1", f"--secure-port={port}")
    running = await scheduler(f"--config={path}", *flags)
    await call_securely(port)
    await everything(world)
    try:
        await until(lambda: not unused(world.audit, without="watch"))  # a watch is in the audit log when it ends
    except TimeoutError:
        pass  # said below
    await running.stop()
    await until(lambda: not any(verb == "watch" for _, _, verb in unused(world.audit)))
    assert not unused(world.audit), "granted and never used"
    assert {(right, uri) for right, code, uri in asked(world.audit, USER) if code in (401, 403)} == set()
    assert {right for right, _, _ in asked(world.audit, USER)} <= GRANTED


async def call_securely(port: int) -> None:
    """With a token that needs a TokenReview, and as a user whose rights need a SubjectAccessReview."""
    async with aiohttp.ClientSession() as session:
        for headers, expected in (({"Authorization": "Bearer x"}, 401), ({}, 403)):
            url = f"https://127.0.0.1:{port}/metrics"
            async with session.get(url, headers=headers, ssl=False) as answer:
                assert answer.status == expected


async def everything(world: Any) -> None:
    """Bring about all that a scheduler may want to write."""
    await world.pod("a", cpu="1500m", terminationGracePeriodSeconds=0)
    await until(lambda: world.bound("a"))
    await gang(world)
    await overused_quota(world)
    await reservations(world)
    await expired_reservation(world)
    # a failure that is told, and told again when something happened that did not help
    await world.pod("late", cpu="1")
    await until(lambda: world.condition("late"))
    await until(lambda: world.events("late"))
    await volumes(world)
    await devices(world)
    kind = {"apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "ScheduleExplanation"}
    where = "/apis/scheduling.koordinator.sh/v1alpha1/namespaces/default/scheduleexplanations"
    for name, spec in (("why", {}), ("over", {"ttl": "1s"})):
        body = {**kind, "metadata": {"name": name}, "spec": {"questionObjectKey": "default/late", **spec}}
        await world.admin.raw("POST", where, body=body)
    # one that displaces others
    classes = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
    await world.apply({**classes, "metadata": {"name": "high"}, "value": 1000})
    await world.pod("high", cpu="1900m", priorityClassName="high")
    await until(lambda: world.bound("high"))
    for number in range(8):  # each wakes it, if it has served its backoff by then
        status = {"allocatable": {"cpu": f"{2000 + number}m", "memory": "16Gi", "pods": "110"}}
        await world.admin.patch(Node, "n1", body={"status": status}, subresource="status")
        if not unused(world.audit, without="watch") & {("", "events", "patch")}:
            break
        attempts = failures(world)
        try:
            await until(lambda before=attempts: failures(world) > before, 15)
        except TimeoutError:
            continue


def failures(world: Any) -> int:
    """Times that the failure of `late` was written down or told."""
    return sum(right[1] in ("events", "pods/status") for right, _, _ in asked(world.audit, USER))


async def gang(world: Any) -> None:
    """Two pods of a PodGroup: annotations that are patched, and a status that follows."""
    body = {"apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "PodGroup", "metadata": {"name": "g"}}
    path = "/apis/scheduling.sigs.k8s.io/v1alpha1/namespaces/default/podgroups"
    await world.admin.raw("POST", path, body={**body, "spec": {"minMember": 2}})
    for name in ("g1", "g2"):
        await world.pod(name, cpu="10m", labels={"pod-group.scheduling.sigs.k8s.io": "g"})
    await until(lambda: world.bound("g1", "g2"))


async def network_topology(world: Any) -> None:
    """Its status is written."""
    kind = {"apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "ClusterNetworkTopology"}
    spec = {"networkTopologySpec": [{"topologyLayer": "NodeTopologyLayer", "parentTopologyLayer": ""}]}
    path = "/apis/scheduling.koordinator.sh/v1alpha1/clusternetworktopologies"
    await world.admin.raw("POST", path, body={**kind, "metadata": {"name": "default"}, "spec": spec})


async def reservations(world: Any) -> None:
    """Two of a gang: annotations that are patched, and bindings."""
    annotations = {
        f"gang.scheduling.koordinator.sh/{key}": value for key, value in (("name", "r"), ("min-available", "2"))
    }
    for name in ("r1", "r2"):
        member = document(name, cpu="10m")
        member["spec"]["template"]["metadata"] = {"annotations": annotations, "namespace": "default"}
        await world.apply(member)
    for name in ("r1", "r2"):
        await until(lambda name=name: phase(world, name, "Available"))


async def expired_reservation(world: Any) -> None:
    """Its status is written, and it is deleted."""
    kind = {"apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Reservation"}
    template = {"spec": {"containers": [{"name": "c"}]}}
    spec = {"template": template, "owners": [{"object": {"name": "a"}}], "expires": "2020-01-01T00:00:00Z"}
    body = {**kind, "metadata": {"name": "over"}, "spec": spec}
    await world.admin.raw("POST", "/apis/scheduling.koordinator.sh/v1alpha1/reservations", body=body)


async def overused_quota(world: Any) -> None:
    """A quota whose pod must go when the quota shrinks, and whose status is written."""
    path = "/apis/scheduling.sigs.k8s.io/v1alpha1/namespaces/default/elasticquotas"
    body = {"apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "ElasticQuota", "metadata": {"name": "q"}}
    await world.admin.raw("POST", path, body={**body, "spec": {"max": {"cpu": "20m"}}})
    labels = {"quota.scheduling.koordinator.sh/name": "q"}
    await world.pod("in-quota", cpu="20m", labels=labels, terminationGracePeriodSeconds=0)
    await until(lambda: world.bound("in-quota"))
    await world.admin.patch(ElasticQuota, "q", "default", body={"spec": {"max": {"cpu": "10m"}}})
    await until(lambda: ("", "pods/eviction", "create") not in unused(world.audit))


async def devices(world: Any) -> None:
    """A claim that is allocated and reserved for its pod."""
    await offer(world, "n1", "gpu-0")
    await create_claim(world, "gpu")
    await world.pod("with-gpu", cpu="10m", resourceClaims=[{"name": "gpu", "resourceClaimName": "gpu"}])
    await until(lambda: world.bound("with-gpu"))


async def volumes(world: Any) -> None:
    """A claim that takes a volume, and one for which a volume is made; who binds them is not the scheduler."""
    late = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "volumeBindingMode": "WaitForFirstConsumer"}
    for name, provisioner in (("static", "kubernetes.io/no-provisioner"), ("dynamic", "somebody")):
        body = {**late, "metadata": {"name": name}, "provisioner": provisioner}
        await world.admin.raw("POST", "/apis/storage.k8s.io/v1/storageclasses", body=body)
    spec = {
        "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "static",
        "hostPath": {"path": "/nowhere"},
    }  # fmt: skip
    body = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "pv"}, "spec": spec}
    await world.admin.raw("POST", "/api/v1/persistentvolumes", body=body)
    await world.admin.patch(PersistentVolume, "pv", body={"status": {"phase": "Available"}}, subresource="status")
    for name in ("static", "dynamic"):
        want = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
        claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}}
        body = {**claim, "spec": {**want, "storageClassName": name}}
        await world.admin.raw("POST", "/api/v1/namespaces/default/persistentvolumeclaims", body=body)
        volume = {"name": "v", "persistentVolumeClaim": {"claimName": name}}
        await world.pod(f"with-{name}", cpu="10m", volumes=[volume])
    for name, right in (("static", "persistentvolumes"), ("dynamic", "persistentvolumeclaims")):
        await until(lambda right=right: ("", right, "patch") not in unused(world.audit))
        bound = {"metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}}, "spec": {"volumeName": "pv"}}
        await world.admin.patch(PersistentVolumeClaim, name, "default", body=bound)
    await until(lambda: world.bound("with-static"))

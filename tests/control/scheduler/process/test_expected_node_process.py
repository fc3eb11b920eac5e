"""A pod whose volume is being provisioned names its node in the status; the name goes when that fails."""

from __future__ import annotations

from typing import Any

from koordlet.api.core import PersistentVolumeClaim, Pod
from tests.waiting import until

SELECTED = "volume.kubernetes.io/selected-node"


async def test_the_node_is_known_while_a_volume_is_provisioned(world: Any, scheduler: Any) -> None:
    admin = world.admin
    await world.node("n1")
    await admin.raw(
        "POST",
        "/apis/storage.k8s.io/v1/storageclasses",
        body={"metadata": {"name": "late"}, "provisioner": "disk.csi", "volumeBindingMode": "WaitForFirstConsumer"},
    )
    claim = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
        "storageClassName": "late",
    }
    await admin.raw(
        "POST",
        "/api/v1/namespaces/default/persistentvolumeclaims",
        body={"metadata": {"name": "data"}, "spec": claim},
    )
    await scheduler()
    await world.pod("db", volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}])

    async def node() -> str:
        return str((await admin.get(Pod, "db", "default")).status.nominated_node_name)

    async def selected() -> bool:
        annotations = (await admin.get(PersistentVolumeClaim, "data", "default")).metadata.annotations
        return bool(annotations.get(SELECTED) == "n1")

    await until(selected)  # no provisioner follows
    await until(lambda: node())
    assert await node() == "n1"
    assert not (await world.placed())["db"]

    gives_up = {"metadata": {"annotations": {SELECTED: None}}}
    await admin.patch(PersistentVolumeClaim, "data", "default", body=gives_up)
    await until(lambda: world.condition("db"))
    assert "provisioning failed for claim default/data" in await world.condition("db")

    async def gone() -> bool:
        return not await node()

    await until(gone)

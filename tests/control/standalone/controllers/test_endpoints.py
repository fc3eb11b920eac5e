"""EndpointSlices of Services."""

import copy
from collections.abc import Callable
from typing import Any

from control.standalone.admission.endpoints import WebhookEndpoints
from control.standalone.controllers.endpoints import SLICE, EndpointSlices
from tests.control.standalone.controllers.conftest import Cluster
from tests.present import present

LABELS = {"app": "web"}
SPEC = {"selector": LABELS, "ports": [{"name": "https", "port": 443, "targetPort": "web", "protocol": "TCP"}]}
CONTAINER = {"name": "c", "image": "i", "ports": [{"name": "web", "containerPort": 9876}]}


async def reconciled(cluster: Cluster, name: str = "s") -> dict[str, Any]:
    await EndpointSlices(cluster.registry).reconcile(("default", name))
    return present(cluster.find(SLICE, name))


async def placed(cluster: Cluster, name: str, address: str, **pod: Any) -> None:
    await cluster.pod(name, labels=LABELS, containers=[copy.deepcopy(CONTAINER)], nodeName="n1", **pod)
    await cluster.status("/pods", name, podIP=address)


async def test_a_slice_has_the_ready_pods_of_its_service(cluster: Cluster) -> None:
    service = await cluster.create("/services", "s", spec=copy.deepcopy(SPEC))
    await placed(cluster, "b", "10.0.0.2")
    await placed(cluster, "a", "10.0.0.1", ready=True)
    await cluster.pod("no-address", labels=LABELS, containers=[copy.deepcopy(CONTAINER)])
    await cluster.pod("other", labels={"app": "x"})
    endpoint_slice = await reconciled(cluster)
    assert [(endpoint["addresses"], endpoint["conditions"]["ready"]) for endpoint in endpoint_slice["endpoints"]] == [
        (["10.0.0.1"], True), (["10.0.0.2"], False),
    ]  # fmt: skip
    assert endpoint_slice["ports"] == [{"name": "https", "port": 9876, "protocol": "TCP"}]
    assert endpoint_slice["metadata"]["ownerReferences"][0]["uid"] == service["metadata"]["uid"]
    version = endpoint_slice["metadata"]["resourceVersion"]
    assert (await reconciled(cluster))["metadata"]["resourceVersion"] == version, "nothing changed"
    target = WebhookEndpoints(cluster.registry.store).resolve(
        {"service": {"namespace": "default", "name": "s", "path": "/mutate"}}
    )
    assert (target.url, target.server_name) == ("https://10.0.0.1:9876/mutate", "s.default.svc")


async def test_a_pod_that_ends_leaves_the_slice(cluster: Cluster) -> None:
    await cluster.create("/services", "s", spec=copy.deepcopy(SPEC))
    await placed(cluster, "a", "10.0.0.1", ready=True)
    assert len((await reconciled(cluster))["endpoints"]) == 1
    await cluster.status("/pods", "a", phase="Failed")
    endpoint_slice = await reconciled(cluster)
    assert not endpoint_slice.get("endpoints") and not endpoint_slice.get("ports")


async def test_a_service_without_selector_is_left_alone(cluster: Cluster) -> None:
    await cluster.create("/services", "s", spec={"ports": [{"port": 443}]})
    await EndpointSlices(cluster.registry).reconcile(("default", "s"))
    assert cluster.find(SLICE, "s") is None


async def test_changes_of_pods_lead_to_the_service(cluster: Cluster, running: Callable[..., Any]) -> None:
    await cluster.create("/services", "s", spec=copy.deepcopy(SPEC))
    await placed(cluster, "a", "10.0.0.1", ready=True)
    await running(EndpointSlices(cluster.registry), lambda: bool((cluster.find(SLICE, "s") or {}).get("endpoints")))


async def test_a_deleted_slice_is_made_again(cluster: Cluster, running: Callable[..., Any]) -> None:
    await cluster.create("/services", "s", spec=copy.deepcopy(SPEC))
    uid = (await reconciled(cluster))["metadata"]["uid"]
    await cluster.registry.delete(SLICE, "default", "s")

    def made_again() -> bool:
        endpoint_slice = cluster.find(SLICE, "s")
        return endpoint_slice is not None and endpoint_slice["metadata"]["uid"] != uid

    await running(EndpointSlices(cluster.registry), made_again)

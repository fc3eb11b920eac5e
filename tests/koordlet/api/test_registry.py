"""Resources and their paths."""

import msgspec
import pytest

from koordlet.api import core, registry
from koordlet.api.crs import scheduling, topology
from koordlet.api.encoding.base import Struct
from koordlet.api.meta import ObjectMeta

PATHS = {
    "all pods": (core.Pod, (), "/api/v1/pods"),
    "pods of a namespace": (core.Pod, ("prod",), "/api/v1/namespaces/prod/pods"),
    "a pod": (core.Pod, ("prod", "web-0"), "/api/v1/namespaces/prod/pods/web-0"),
    "an eviction": (core.Pod, ("prod", "web-0", "eviction"), "/api/v1/namespaces/prod/pods/web-0/eviction"),
    "nodes": (core.Node, (), "/api/v1/nodes"),
    "a node's status": (core.Node, (None, "n1", "status"), "/api/v1/nodes/n1/status"),
    "a namespace": (core.Namespace, (None, "prod"), "/api/v1/namespaces/prod"),
    "a lease": (core.Lease, ("kube-system", "koordlet"),
                "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/koordlet"),
    "a reservation": (scheduling.Reservation, (None, "r"),
                      "/apis/scheduling.koordinator.sh/v1alpha1/reservations/r"),
    "topology v1alpha1": (topology.NodeResourceTopology, (None, "n1"),
                          "/apis/topology.node.k8s.io/v1alpha1/noderesourcetopologies/n1"),
    "topology v1alpha2": (topology.NodeResourceTopologyV1Alpha2, (),
                          "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies"),
}  # fmt: skip


@pytest.mark.parametrize("case", PATHS)
def test_path(case: str) -> None:
    kind, arguments, path = PATHS[case]
    assert registry.resource_for(kind).path(*arguments) == path


@pytest.mark.parametrize(
    ("kind", "arguments", "reason"),
    [
        (core.Node, ("prod",), "cluster scoped"),
        (core.Pod, (None, "web-0"), "needs a namespace"),
        (core.Pod, ("prod", None, "status"), "needs a name"),
    ],
    ids=["namespace on a node", "pod without namespace", "subresource of a collection"],
)
def test_impossible_path(kind: type[Struct], arguments: tuple[str | None, ...], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        registry.resource_for(kind).path(*arguments)


def test_a_struct_that_is_not_a_kind() -> None:
    with pytest.raises(KeyError, match="ObjectMeta"):
        registry.resource_for(ObjectMeta)


def test_topology_has_two_versions_and_components_use_the_first() -> None:
    rows = [r for r in registry.CUSTOM if r.kind == "NodeResourceTopology"]
    assert [r.version for r in rows] == ["v1alpha1", "v1alpha2"]


@pytest.mark.parametrize("resource", [*registry.BUILTIN, *registry.CUSTOM], ids=lambda r: f"{r.kind}-{r.version}")
def test_a_row_agrees_with_its_struct(resource: registry.ApiResource) -> None:
    required = {"spec", "zones", "value"} & {f.name for f in msgspec.structs.fields(resource.type) if f.required}
    thing = resource.type(**dict.fromkeys(required))
    assert (thing.kind, thing.api_version) == (resource.kind, resource.api_version)  # type: ignore[attr-defined]
    assert registry.resource_for(resource.type) is resource
    assert registry.BY_GVK[resource.api_version, resource.kind] is resource


def test_kinds_and_collections_are_unique() -> None:
    rows = (*registry.BUILTIN, *registry.CUSTOM)
    assert len({(r.api_version, r.plural) for r in rows}) == len(rows)

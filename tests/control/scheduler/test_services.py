"""The page of a node: the contents of the table in Koordinator's format (spec 05 §6)."""

from __future__ import annotations

import pytest

from control.scheduler.process.services import Services
from control.scheduler.state.nodeimages import ImageNode, ImagePool
from koordlet.api.encoding import wire
from tests.control.scheduler.build import Cluster, node, pod


def with_images(name: str, **sizes: int) -> ImageNode:
    body = wire.to_builtins(node(name))
    body["status"]["images"] = [{"names": [f"{image}:1", f"{image}@sha"], "sizeBytes": n} for image, n in sizes.items()]
    return wire.convert(body, ImageNode)


def test_the_page_of_a_node_lists_what_is_counted_on_it() -> None:
    pool = ImagePool()
    cluster = Cluster(
        *(pool.trim(node) for node in (with_images("a", x=5, y=7), with_images("b", x=5), with_images("c")))
    )
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {}}
    anti = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    claim = {"name": "v", "persistentVolumeClaim": {"claimName": "data"}}
    port = {"name": "c", "ports": [{"containerPort": 1, "hostPort": 8080}], "resources": {"requests": {"cpu": "2"}}}
    cluster.put(
        pod("plain", cpu="1", on="a"),
        pod("picky", on="a", spec={"affinity": anti, "volumes": [claim], "containers": [port]}),
    )
    services = Services(cluster.table, (), lambda: True)
    page = services.node("a")
    assert [pod["metadata"]["name"] for pod in page["pods"]] == ["picky", "plain"]
    for key in ("podsWithAffinity", "podsWithRequiredAntiAffinity"):
        assert [pod["metadata"]["name"] for pod in page[key]] == ["picky"]
    assert page["usedPorts"] == {"0.0.0.0": [{"Protocol": "TCP", "Port": 8080}]}
    assert (page["requested"]["MilliCPU"], page["remaining"]["MilliCPU"]) == (3000, 5000)
    assert page["pvcRefCounts"] == {"default/data": 1}
    assert page["imageStates"] == {
        "x:1": {"Size": 5, "NumNodes": 2},
        "x@sha": {"Size": 5, "NumNodes": 2},
        "y:1": {"Size": 7, "NumNodes": 1},
        "y@sha": {"Size": 7, "NumNodes": 1},
    }
    assert services.node("c")["imageStates"] == {}
    with pytest.raises(LookupError, match="cannot find node x"):
        services.node("x")


def test_a_generation_grows_with_every_change_of_its_node_only() -> None:
    cluster = Cluster(node("a"), node("b"))
    services = Services(cluster.table, (), lambda: True)

    def generations() -> tuple[int, int]:
        return services.node("a")["generation"], services.node("b")["generation"]

    first = generations()
    (info,) = cluster.put(pod(on="a"))
    second = generations()
    cluster.table.set_node(node("a", cpu="9"))
    third = generations()
    cluster.table.remove_pod(info)
    fourth = generations()
    assert first[0] < second[0] < third[0] < fourth[0]
    assert {now[1] for now in (first, second, third, fourth)} == {first[1]}

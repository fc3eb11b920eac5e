"""ImageLocality: upstream's figures, nodes that change, and the plain rule at random."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.scheduler.plugins.imagelocality import ImageLocality
from control.scheduler.state.nodeimages import ImageNode, ImagePool, images_of
from control.scheduler.state.transform import transform_node
from control.slim import slimmed
from koordlet.api.core import Pod
from koordlet.api.encoding import wire
from tests.control.scheduler.build import Cluster, node, pod
from tests.control.scheduler.plain.images import image_score
from tests.control.scheduler.plain.world import World
from tests.control.scheduler.plugins.filtering import scored

MIB = 1024 * 1024


def imaged(name: str, images: Mapping[str, int]) -> ImageNode:
    body = wire.to_builtins(node(name))
    body["status"]["images"] = [{"names": [image], "sizeBytes": size} for image, size in images.items()]
    return wire.convert(body, ImageNode)


def running(*images: str, init: Sequence[str] = ()) -> Pod:
    def containers(names: Sequence[str]) -> list[dict[str, str]]:
        return [{"name": f"c{i}", "image": image} for i, image in enumerate(names)]

    return pod(spec={"containers": containers(images), "initContainers": containers(init)})


A = {"gcr.io/40:latest": 40 * MIB, "gcr.io/300:latest": 300 * MIB, "gcr.io/2000:latest": 2000 * MIB}
B = {"gcr.io/250:latest": 250 * MIB, "gcr.io/10:latest": 10 * MIB}


@pytest.mark.parametrize(
    ("incoming", "a", "b"),
    [
        pytest.param(running("gcr.io/40", "gcr.io/250"), 0, 100 * (125 - 23) // (2000 - 23), id="two images"),
        pytest.param(running("gcr.io/40", "gcr.io/300"), 100 * (20 + 150 - 23) // (2000 - 23), 0, id="both on one"),
        pytest.param(running("gcr.io/2000", "gcr.io/10"), 100 * (1000 - 23) // (2000 - 23), 0, id="large"),
        pytest.param(running("gcr.io/2000"), 100, 0, id="cut at 1000 MiB"),
        pytest.param(running("gcr.io/300:v1"), 0, 0, id="another tag"),
        pytest.param(running("gcr.io/10", init=["gcr.io/300"]), 100 * (150 - 23) // (2000 - 23), 0, id="init"),
    ],
)
def test_figures(incoming: Pod, a: int, b: int) -> None:
    cluster = Cluster(imaged("a", A), imaged("b", B))
    plugin = ImageLocality(None, cluster.handle)
    assert (scored(plugin, cluster, incoming) or {"a": 0, "b": 0}) == {"a": a, "b": b}


def test_nodes_without_images_score_nothing() -> None:
    cluster = Cluster(node("a"))
    assert scored(ImageLocality(None, cluster.handle), cluster, running("x")) is None


def test_it_follows_nodes() -> None:
    cluster = Cluster(imaged("a", {}), imaged("b", {}))
    plugin = ImageLocality(None, cluster.handle)
    big = {"x:latest": 1000 * MIB}
    assert scored(plugin, cluster, running("x")) is None
    cluster.table.set_node(imaged("b", big))
    half = 100 * (500 - 23) // (1000 - 23)
    assert scored(plugin, cluster, running("x")) == {"a": 0, "b": half}
    cluster.table.set_node(imaged("a", big))
    assert scored(plugin, cluster, running("x")) == {"a": 100, "b": 100}
    cluster.table.remove_node("b")
    assert scored(plugin, cluster, running("x")) == {"a": 100}
    cluster.table.set_node(imaged("a", {}))
    assert scored(plugin, cluster, running("x")) is None


def test_the_size_of_an_image_follows_nodes_that_are_all_replaced() -> None:
    cluster = Cluster(imaged("a", {"x:latest": 100 * MIB}), imaged("b", {"x:latest": 100 * MIB}))
    plugin = ImageLocality(None, cluster.handle)
    assert scored(plugin, cluster, running("x")) == dict.fromkeys("ab", 100 * (100 - 23) // (1000 - 23))
    for name in "ab":
        cluster.table.set_node(imaged(name, {"x:latest": 500 * MIB}))
    assert scored(plugin, cluster, running("x")) == dict.fromkeys("ab", 100 * (500 - 23) // (1000 - 23))


def test_equal_images_share_one_object() -> None:
    pool = ImagePool()
    first, second = imaged("a", A), imaged("b", A)
    assert pool.trim(first) is first
    assert pool.trim(second) is second
    assert all(image is other for image, other in zip(first.status.images, second.status.images, strict=True))
    assert len(pool) == len(A)


SIZES = {"x:latest": 30, "y:latest": 400, "r/z:1": 1500, "w:2": 5}


@given(
    st.lists(st.sets(st.sampled_from(sorted(SIZES))), min_size=1, max_size=6),
    st.lists(st.sampled_from(["x", "y:latest", "r/z:1", "r/z", "w:2"]), min_size=1, max_size=3),
)
def test_it_follows_the_plain_rule(held: list[set[str]], images_of_pod: list[str]) -> None:
    images = {f"n{i}": {name: SIZES[name] * MIB for name in names} for i, names in enumerate(held)}
    world = World([imaged(name, by_name) for name, by_name in images.items()], images=images)
    cluster = Cluster(*world.nodes)
    asking = running(*images_of_pod)
    expected = {node.metadata.name: image_score(asking, node, world) for node in world.nodes}
    scores = scored(ImageLocality(None, cluster.handle), cluster, asking)
    assert (scores or dict.fromkeys(expected, 0)) == expected


def test_images_survive_transforming_and_slimming() -> None:
    kept = slimmed(ImagePool().trim(transform_node(imaged("a", A))))
    assert [image.names for image in images_of(kept)] == [[name] for name in A]
    assert images_of(node("a")) == []

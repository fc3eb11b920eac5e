"""The rules of the merge operation of spec 01 §6.3."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.api.encoding.base import Frozen
from koordlet.api.encoding.quantity import Quantity
from koordlet.api.encoding.wire import overlay


class Leaf(Frozen):
    a: int | None = None
    b: bool | None = None


class Tree(Frozen):
    policy: str = ""
    number: int | None = None
    leaf: Leaf | None = None
    models: dict[str, Leaf] = msgspec.field(default_factory=dict)
    durations: list[str] = msgspec.field(default_factory=list)
    blocks: list[Leaf] = msgspec.field(default_factory=list)
    total: Quantity | None = None


class Entry(Tree):
    name: str = ""


BASE = Tree(
    policy="cpuset",
    number=65,
    leaf=Leaf(a=1, b=True),
    models={"x": Leaf(a=1, b=True), "y": Leaf(a=2)},
    durations=["5m"],
    blocks=[Leaf(a=1, b=True), Leaf(a=2)],
    total=Quantity("10G"),
)


@pytest.mark.parametrize(
    ("patch", "field", "value"),
    [
        (Tree(number=0), "number", 0),
        (Tree(), "number", 65),
        (Tree(policy=""), "policy", "cpuset"),
        (Tree(policy="cfsQuota"), "policy", "cfsQuota"),
        (Tree(leaf=Leaf(b=False)), "leaf", Leaf(a=1, b=False)),
        (Tree(leaf=Leaf()), "leaf", Leaf(a=1, b=True)),
        (Tree(models={"x": Leaf(b=False)}), "models", {"x": Leaf(b=False), "y": Leaf(a=2)}),
        (Tree(durations=["1m", "2m"]), "durations", ["1m", "2m"]),
        (Tree(durations=[]), "durations", ["5m"]),
        (Tree(blocks=[Leaf(b=False)]), "blocks", [Leaf(b=False)]),
        (Tree(), "total", Quantity("10G")),
        (Tree(total=Quantity("0")), "total", Quantity("0")),
        (Entry(name="n", number=7), "number", 7),
    ],
    ids=[
        "zero of a nullable field", "absent", "empty enum", "enum", "object", "empty object", "map by key",
        "list", "empty list", "list of objects is replaced (A9)", "absent bandwidth is inherited (A10)",
        "zero bandwidth", "subclass",
    ],
)  # fmt: skip
def test_rule(patch: Tree, field: str, value: object) -> None:
    before = repr(BASE)
    merged = overlay(BASE, patch)
    assert getattr(merged, field) == value
    assert type(merged) is Tree
    assert repr(BASE) == before


def test_creates_missing_objects() -> None:
    assert overlay(Tree(), Tree(leaf=Leaf(a=0))) == Tree(leaf=Leaf(a=0))


def test_an_empty_patch_returns_the_base_itself() -> None:
    assert overlay(BASE, None) is BASE and overlay(BASE, Tree()) is BASE


LEAVES = st.builds(Leaf, a=st.none() | st.integers(0, 3), b=st.none() | st.booleans())
TREES = st.builds(
    Tree,
    policy=st.sampled_from(["", "x", "y"]),
    number=st.none() | st.integers(0, 3),
    leaf=st.none() | LEAVES,
    models=st.dictionaries(st.sampled_from("pq"), LEAVES),
    durations=st.lists(st.sampled_from("pq"), max_size=2),
    blocks=st.lists(LEAVES, max_size=2),
)


@given(TREES, TREES, TREES)
def test_laws(a: Tree, b: Tree, c: Tree) -> None:
    assert overlay(a, a) == a
    assert overlay(Tree(), a) == a
    assert overlay(overlay(a, b), b) == overlay(a, b)
    assert overlay(overlay(a, b), c) == overlay(a, overlay(b, c))

"""The manager's table of merge keys against the API server's schema of Pod, field by field."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from control.manager.webhooks import podschema
from control.standalone.schema.builtin import Builtins
from control.standalone.schema.walk import Schema
from tests.present import present


def merging(schema: Schema, depth: int = 0) -> dict[tuple[str], Any]:
    """Paths of lists that merge, with key and strategies, as the OpenAPI schema has them."""
    merge_keys = {}
    for name in schema.properties:
        child = schema.field(name)
        assert child is not None
        if "merge" in child.patch_strategies:
            merge_keys[(name,)] = (present(child).patch_merge_key, set(present(child).patch_strategies))
            child = present(child).element()
        if depth < 4:
            merge_keys |= {(name, *path): value for path, value in merging(present(child), depth + 1).items()}  # type: ignore[misc]
    return merge_keys


def test_the_table_matches_the_api_server() -> None:
    merge_rules = {
        path: value
        for path, value in merging(present(Builtins().schema("", "v1", "Pod"))).items()
        if path[0] != "status"
    }
    assert merge_rules, "the schema defines how lists merge"
    for path, (key, strategies) in merge_rules.items():
        here = podschema.POD
        for name in path:
            child = here.field(name)
            assert child is not None, f"{'.'.join(path)} merges by {key!r} and the table lacks it"
            here = child if name == path[-1] else (child.element() if "merge" in child.patch_strategies else child)  # type: ignore[assignment]
        assert (here.patch_merge_key, set(here.patch_strategies)) == (key, strategies), path


def test_the_table_has_no_other_lists() -> None:
    def paths(fields: podschema.Fields, prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
        for name, child in fields.members.items():
            if "merge" in child.patch_strategies:
                yield (*prefix, name)
                child = child.element()
            if isinstance(child, podschema.Fields):
                yield from paths(child, (*prefix, name))

    assert set(paths(podschema.POD)) == {
        path for path in merging(present(Builtins().schema("", "v1", "Pod"))) if path[0] != "status"
    }

"""A public class name has one meaning in the project."""

from __future__ import annotations

import ast
from collections import defaultdict

from tests.repository.sources import product_modules, tree


def test_public_class_names_are_unique() -> None:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for path in product_modules():
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(f"{path}:{node.lineno}")
    assert not {name: where for name, where in places.items() if len(where) > 1}

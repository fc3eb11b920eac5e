"""Rules of CONTRIBUTING.md: a class name has one meaning, variables name their content, docstrings name who acts."""

from __future__ import annotations

import builtins
import keyword
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.repository.sources import facts, product_modules, text, tracked

EMPTY_NAMES = frozenset({"found", "one", "said", "given", "told", "made", "got", "wanted"})
"""Names of variables that do not name the content."""
EMPTY_NAMES_OF_TESTS = frozenset({"seen"})
"""Further ones in tests. `seen` may be bound to an empty set: the standard name for what a loop has visited."""
IDIOMS = re.compile(
    r"\b(nobody|somebody|everybody|whoever|anew|dear|untold|newborn|so many|gives? back|for good|said aloud)\b",
    re.IGNORECASE,
)
"""Words of docs/glossary.md's last table that have no other meaning in this field."""


def modules() -> list[Path]:
    return [path for path in tracked() if path.suffix == ".py"]


def variables() -> Iterator[tuple[Path, int, str]]:
    """What assignments, loops and parameters of every module bind."""
    for path in modules():
        for name, line in facts(path).variables:
            yield path, line, name


def test_public_class_names_are_unique() -> None:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for path in product_modules():
        for name, line, _ in facts(path).classes:
            if not name.startswith("_"):
                places[name].append(f"{path}:{line}")
    assert not {name: where for name, where in places.items() if len(where) > 1}


def test_variables_name_their_content() -> None:
    assert not [f"{path}:{line}: {name}" for path, line, name in variables() if name in EMPTY_NAMES]


def test_only_names_that_would_hide_a_builtin_end_in_an_underscore() -> None:
    hidden = {*keyword.kwlist, *dir(builtins), "_fields"}
    places = [place for place in variables() if re.search(r"[^_]_$", place[2])]
    assert not [f"{path}:{line}: {name}" for path, line, name in places if name[:-1] not in hidden]


def test_variables_of_tests_name_their_content() -> None:
    places = [place for place in variables() if place[0].parts[0] == "tests" and place[2] in EMPTY_NAMES_OF_TESTS]
    assert not [
        f"{path}:{line}: {name}" for path, line, name in places if "set()" not in text(path).splitlines()[line - 1]
    ]


def test_docstrings_name_who_acts() -> None:
    matches = [(path, line, IDIOMS.search(words)) for path in modules() for line, words in facts(path).docstrings]
    assert not [f"{path}:{line}: {match[0]}" for path, line, match in matches if match is not None]

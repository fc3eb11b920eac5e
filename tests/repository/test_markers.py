"""The markers by which `make test` divides the tests: a file is not even imported when it names none that is wanted."""

from __future__ import annotations

import itertools
import re
import tomllib
from pathlib import Path

import pytest

from tests.conftest import MARKERS, may_select
from tests.repository.sources import ROOT, text, tracked

NAMED = re.compile(rf"mark\.({'|'.join(MARKERS)})\b")
MODULE = re.compile(r"(test|guest)_\w+\.py")
"""Files of tests; the guest's are named one by one."""


def test_every_marker_is_known() -> None:
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    assert {line.partition(":")[0] for line in options["markers"]} == set(MARKERS)


def test_only_files_of_tests_name_markers() -> None:
    """A test that got a marker from a helper's class or list would not be collected."""
    tests = [path for path in tracked() if path.suffix == ".py" and path.parts[0] == "tests"]
    others = [path for path in tests if not MODULE.fullmatch(path.name) and NAMED.search(text(path))]
    assert others == []


@pytest.mark.parametrize(
    ("expression", "selected"),
    [
        ("", {"", "a", "b", "ab"}),
        ("kernel", {"a", "ab"}),
        ("not kernel", {"", "a", "b", "ab"}),  # a file that names a marker may have tests without it
        ("kernel and not runtime", {"a", "ab"}),
        ("kernel and runtime", {"ab"}),
        ("(kernel or e2e) and not (guest or kubernetes)", {"a", "ab"}),
        ("e2e", set()),
        ("kernel and a_plugins_marker", {"", "a", "b", "ab"}),
    ],
)
def test_a_file_is_imported_if_its_markers_could_match(expression: str, selected: set[str], tmp_path: Path) -> None:
    named = {"a": "pytestmark = pytest.mark.kernel", "b": "marks=[mark.runtime]"}
    for size in range(len(named) + 1):
        for chosen in itertools.combinations(named, size):
            path = tmp_path / "test_some.py"
            path.write_text("\n".join(named[key] for key in chosen))
            assert may_select(expression, path) == ("".join(chosen) in selected), chosen

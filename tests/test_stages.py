"""Every test is in one stage; the guest's look nowhere else."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import stages

GUEST = Path(__file__).parent / "guest"


def item(*marks: str, path: Path = Path(__file__)) -> Any:
    found = [SimpleNamespace(name=name) for name in marks]
    return SimpleNamespace(nodeid=f"{path}::{marks}", path=path, iter_markers=lambda: iter(found))


ITEMS = [
    item(), item("asyncio", "parametrize"), item("kernel"), item("e2e", "kernel"), item("kubectl"), item("runtime"),
    item("kernel", "runtime"),
    item("guest", path=GUEST / "test_guest.py"), item("guest", "kernel", path=GUEST / "test_guest.py"),
]  # fmt: skip


def config(stage: str | None, left: list[Any]) -> Any:
    hook = SimpleNamespace(pytest_deselected=lambda items: left.extend(items))
    return SimpleNamespace(getoption=lambda _: stage, hook=hook)


def test_stages_together_are_all_tests_and_share_none() -> None:
    found = []
    for stage in stages.STAGES:
        kept, left = list(ITEMS), []
        stages.pytest_collection_modifyitems(config(stage, left), kept)
        assert len(kept) + len(left) == len(ITEMS)
        found += [one.nodeid for one in kept]
    assert sorted(found) == sorted(one.nodeid for one in ITEMS)
    kept = list(ITEMS)
    stages.pytest_collection_modifyitems(config(None, []), kept)
    assert kept == ITEMS


def test_a_guest_test_elsewhere_is_an_error() -> None:
    with pytest.raises(pytest.UsageError, match="marked guest"):
        stages.pytest_collection_modifyitems(config("pure", []), [item("guest")])


@pytest.mark.parametrize(
    ("path", "stage", "ignored"),
    [
        (GUEST.parent, "guest", None),
        (GUEST, "guest", None),
        (GUEST / "test_guest.py", "guest", None),
        (GUEST.parent / "koordlet", "guest", True),
        (GUEST.parent / "koordlet", "pure", None),
        (GUEST.parent / "koordlet", None, None),
    ],
)
def test_the_guests_stage_looks_at_its_folder_alone(path: Path, stage: str | None, ignored: bool | None) -> None:
    assert stages.pytest_ignore_collect(path, config(stage, [])) is ignored

"""A pytest plugin for scripts/run_tests.sh (`-p tests.stages --stage=NAME`): the tests of one stage.

Every test belongs to one stage: `guest`, which boots a virtual machine; `measuring`, which drives this machine's
kernel, a runtime or a cluster and wants it to itself; `pure`, everything else. All stages together are all tests.
"""

from __future__ import annotations

from pathlib import Path

import pytest

STAGES = ("pure", "guest", "measuring")
MEASURING = {"kernel", "runtime", "kubectl", "e2e"}
GUEST = Path(__file__).with_name("guest")
"""Where all tests of the guest are: their stage need not look elsewhere."""


def stage_of(marks: set[str]) -> str:
    if "guest" in marks:
        return "guest"
    return "measuring" if marks & MEASURING else "pure"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--stage", choices=STAGES, help="only tests of this stage")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if config.getoption("--stage") != "guest" or collection_path in GUEST.parents:
        return None
    return None if collection_path.is_relative_to(GUEST) else True


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = config.getoption("--stage")
    kept: list[pytest.Item] = []
    left: list[pytest.Item] = []
    for item in items:
        stage = stage_of({mark.name for mark in item.iter_markers()})
        if stage == "guest" and not item.path.is_relative_to(GUEST):
            raise pytest.UsageError(f"{item.nodeid} is marked guest and not in {GUEST}: its stage would not see it")
        (kept if wanted in (None, stage) else left).append(item)
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = kept

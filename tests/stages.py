"""A pytest plugin for scripts/run_tests.sh (`-p tests.stages --stage=NAME`): the tests of one stage.

Every test belongs to one stage: `guest`, which boots a virtual machine; `measuring`, which drives this machine's kernel
or a cluster on it and wants it to itself; `tools`, which runs containerd, Prometheus, kubectl and the like; `pure`,
everything else. All stages together are all tests.
"""

from __future__ import annotations

from pathlib import Path

import pytest

STAGES = ("pure", "tools", "guest", "measuring")
MEASURING, TOOLS = {"kernel", "e2e"}, {"runtime", "kubectl"}
GUEST = Path(__file__).with_name("guest")
"""Where all tests of the guest are: their stage need not look elsewhere."""


def stage_of(marks: set[str]) -> str:
    if "guest" in marks:
        return "guest"
    if marks & MEASURING:
        return "measuring"
    return "tools" if marks & TOOLS else "pure"


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

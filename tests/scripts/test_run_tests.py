"""Which stages run, which failures get a second chance, what comes of a broken one; pytest is played by a script."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYTHON = """#!/bin/sh
# $PWD/said: one line a call. answers/STAGE: exit statuses, one a call; the last stays. answers/failed.STAGE: node ids.
stage=$(printf '%s\\n' "$@" | sed -n 's/^--stage=//p')
printf '%s\\n' "$stage $*" >>said
case "$*" in *--collect-only*) cat "answers/failed.$stage"; exit 0 ;; esac
[ ! -e "answers/slow.$stage" ] || { echo $$ >"pid.$stage"; exec sleep 600; }
echo "this is $stage"
status=$(head -n 1 answers/$stage)
[ "$(wc -l <answers/$stage)" -lt 2 ] || sed -i 1d answers/$stage
exit "$status"
"""


class Place:
    def __init__(self, path: Path) -> None:
        self.path = path
        for folder in ("scripts", "build/venv/bin", "answers"):
            (path / folder).mkdir(parents=True)
        shutil.copy(ROOT / "scripts/run_tests.sh", path / "scripts")
        python = path / "build/venv/bin/python"
        python.write_text(PYTHON)
        python.chmod(0o755)
        self.answer(pure=[0], tools=[0], guest=[0], measuring=[0], lint=0)

    def answer(self, lint: int | None = None, failed: int = 1, accidents: int = 1, **stages: list[int]) -> None:
        """What make says, how many files of other tests and how many pure tests failed, and statuses of stages."""
        if lint is not None:
            (self.path / "Makefile").write_text(f"lint:\n\t@echo this is lint; exit {lint}\n")
        for stage, statuses in stages.items():
            (self.path / "answers" / stage).write_text("".join(f"{one}\n" for one in statuses))
        many = "".join(f"tests/test_{i}.py::test_{j}\n" for i in range(failed) for j in range(30))
        few = "".join(f"tests/test_p.py::test[{i} of some]\n" for i in range(accidents))
        for stage, ids in (("tools", many), ("measuring", many), ("pure", few)):
            (self.path / f"answers/failed.{stage}").write_text(f"{ids}\n{ids.count('::')}/9000 tests collected\n")

    def run(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        environment = {key: value for key, value in os.environ.items() if key != "CI" and not key.startswith("MAKE")}
        return subprocess.run(
            [self.path / "scripts/run_tests.sh", *arguments], env=environment | env, capture_output=True, text=True,
            timeout=300, check=False,
        )  # fmt: skip

    @property
    def said(self) -> list[list[str]]:
        said = self.path / "said"  # not there where the guest was ended before it said anything
        return [line.split() for line in said.read_text().splitlines()] if said.exists() else []

    @property
    def stages(self) -> list[str]:
        return [words[0] for words in self.said]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_what_measures_runs_when_all_else_has_ended(place: Place) -> None:
    done = place.run("-k", "this or that", CI="true")
    assert done.returncode == 0, done.stderr
    assert sorted(place.stages[:3]) == ["guest", "pure", "tools"]
    assert place.stages[3:] == ["measuring"]
    places = [done.stdout.index(f"this is {one}\n") for one in ("lint", "pure", "tools", "guest", "measuring")]
    assert places == sorted(places), "the guest's report in one piece, where it is not in between"
    for words in place.said:
        line = " ".join(words)
        assert line.endswith("-k this or that") and "-p tests.no_skips" in line and f"cache-{words[0]}" in line


def test_without_ci_tests_may_be_skipped(place: Place) -> None:
    assert place.run().returncode == 0
    assert "no_skips" not in (place.path / "said").read_text()


@pytest.mark.parametrize(
    ("answers", "status", "stages"),
    [
        pytest.param({"measuring": [1, 0]}, 0, 6, id="what measures gets a second chance"),
        pytest.param({"measuring": [1, 1]}, 1, 6, id="and no third"),
        pytest.param({"tools": [1, 0]}, 0, 6, id="so do runtimes and tools"),
        pytest.param({"tools": [1, 1]}, 1, 6, id="and no third either"),
        pytest.param({"tools": [1, 0], "measuring": [1, 0]}, 0, 8, id="and both"),
        pytest.param({"tools": [1, 0], "measuring": [1, 0], "failed": 3}, 1, 6, id="six files in two stages are many"),
        pytest.param({"measuring": [1, 0], "failed": 5}, 0, 6, id="tests of five files get one"),
        pytest.param({"measuring": [1, 0], "failed": 6}, 1, 5, id="of six they do not"),
        pytest.param({"guest": [1]}, 1, 4, id="the guest gets none"),
        pytest.param({"guest": [1], "measuring": [1, 0]}, 1, 5, id="nor others beside it"),
        pytest.param({"pure": [1, 0]}, 0, 10, id="a pure test has to pass five times"),
        pytest.param({"pure": [1, 0, 0, 0, 0, 1]}, 1, 10, id="not four"),
        pytest.param({"pure": [1, 1, 0]}, 1, 6, id="and at once"),
        pytest.param({"pure": [1, 5]}, 1, 6, id="not found again is not passed"),
        pytest.param({"pure": [1, 0], "accidents": 3}, 0, 20, id="so may three"),
        pytest.param({"pure": [1, 0], "accidents": 4}, 1, 5, id="four may not"),
        pytest.param({"pure": [1, 0], "accidents": 0}, 1, 5, id="nor one that nobody knows"),
        pytest.param({"pure": [1, 0], "measuring": [1, 0]}, 0, 12, id="others have their chance beside a pure one"),
        pytest.param({"pure": [1, 0], "measuring": [1, 1]}, 1, 12, id="and fail beside it"),
        pytest.param({"pure": [1, 0], "measuring": [1, 0], "failed": 6}, 1, 6, id="many others leave a pure one none"),
        pytest.param({"pure": [1, 0], "guest": [1]}, 1, 5, id="so does the guest"),
        pytest.param({"pure": [5], "tools": [5], "guest": [5]}, 0, 4, id="arguments may select tests of one stage"),
        pytest.param({"pure": [5], "guest": [5], "measuring": [1, 0]}, 0, 6, id="which have their second chance"),
        pytest.param(
            {"pure": [5], "tools": [5], "guest": [5], "measuring": [5]}, 5, 4, id="no test at all is an error"
        ),
        pytest.param({"pure": [3]}, 3, 4, id="pytest's own failure is told"),
        pytest.param({"measuring": [2]}, 2, 4, id="so is an interrupt"),
        pytest.param({"guest": [4], "measuring": [1]}, 4, 4, id="no second chance then"),
    ],
)
def test_the_status_is_what_came_of_it(place: Place, answers: dict[str, object], status: int, stages: int) -> None:
    place.answer(**answers)  # type: ignore[arg-type]
    done = place.run()
    assert (done.returncode, len(place.said)) == (status, stages), done.stdout


def test_accidents_are_told_at_the_end_by_name(place: Place) -> None:
    place.answer(pure=[1, 0], tools=[1, 0], accidents=2)
    done = place.run("-k", "this")
    assert done.returncode == 0
    names = [f"tests/test_p.py::test[{i} of some]" for i in range(2)]
    again = [" ".join(words) for words in place.said if words[0] == "pure" and "this" not in words]
    for line, name in zip(again, [names[0]] * 5 + [names[1]] * 5, strict=True):
        assert line.endswith(name)
    *_, first, second = done.stdout.splitlines()
    for line, name in zip((first, second), names, strict=True):
        assert line.startswith(f"run_tests: {name} failed once, then passed 5 times: mend it")


def test_whatever_hangs_all_ends_at_the_limit(place: Place) -> None:
    for stage in ("pure", "guest", "measuring"):
        (place.path / f"answers/slow.{stage}").touch()
    done = place.run(KOORD_TEST_LIMIT="8")
    assert done.returncode == 124, done.stdout
    assert "the limit of 8 s is over" in done.stdout
    left = {path.name: path.read_text().strip() for path in place.path.glob("pid.*")}
    assert {"pid.pure", "pid.guest"} <= left.keys()
    assert not any(runs(pid) for pid in left.values())


def test_bad_lint_ends_the_guest_and_all(place: Place) -> None:
    place.answer(lint=2)
    (place.path / "answers/slow.guest").touch()
    done = place.run()
    assert done.returncode == 1
    assert set(place.stages) <= {"guest"}, "no test was begun"
    pid = place.path / "pid.guest"
    end = time.monotonic() + 60
    while pid.exists() and runs(pid.read_text().strip()):
        assert time.monotonic() < end, "the guest was left behind"
        time.sleep(0.02)


def runs(pid: str) -> bool:
    """Whether it does anything any more; a zombie does not."""
    try:
        return bool(pid) and Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False

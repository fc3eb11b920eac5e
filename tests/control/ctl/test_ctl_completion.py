"""Completion as kubectl asks for it."""

from __future__ import annotations

import pytest

from control.ctl.completion import lines


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["qu"], ["quota"]),
        (["explain", ""], ["pod"]),
        (["top", "-o", ""], ["json", "yaml", "wide"]),
        (["top", "--kubec"], ["--kubeconfig"]),
        (["nothing", ""], None),
    ],
)
def test_candidates(words: list[str], expected: list[str] | None) -> None:
    *candidates, directive = [line.split("\t")[0] for line in lines(words)]
    assert directive == ":4"
    if expected is not None:
        assert candidates == expected


def test_all_commands_are_offered_with_their_help() -> None:
    offered = dict(line.split("\t") for line in lines([""])[:-1])
    assert {"up", "down", "status", "top", "explain", "node", "quota"} <= set(offered)
    assert all(offered.values())

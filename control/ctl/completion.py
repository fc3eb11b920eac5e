"""Completion for `kubectl koord`: kubectl runs `kubectl_complete-koord` with the words so far, the last of which may be
empty, and expects one candidate per line and a directive, here `:4` (no file names)."""

from __future__ import annotations

import sys

import click
from click.shell_completion import ShellComplete

from control.ctl.main import cli

NO_FILES = ":4"


def lines(words: list[str]) -> list[str]:
    """What kubectl reads for these words."""
    *before, incomplete = words or [""]
    candidates = ShellComplete(cli, {}, "kubectl koord", "_KOORD_COMPLETE").get_completions(before, incomplete)
    return [f"{item.value}\t{item.help}" if item.help else str(item.value) for item in candidates] + [NO_FILES]


def main() -> int:
    """The program `kubectl_complete-koord`."""
    for line in lines(sys.argv[1:]):
        click.echo(line)
    return 0

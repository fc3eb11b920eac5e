"""What the documentation shows works as written: command lines of koordctl, and configuration."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator

import click
import pytest

from control.ctl.main import cli
from control.manager.config import EXTENSIONS
from koordlet.api.sloconfig import configmap
from koordlet.api.sloconfig.configmap import UNREAD
from koordlet.api.sloconfig.extensions import merge_extensions
from tests.repository.examples import PAGES, commands, settings
from tests.repository.sources import text

INLINE = re.compile(r"`((?:koordctl|kubectl koord) [^`]+)`")
SYNTAX = re.compile(r"\[[^]]*\]|<[^>]*>|…|\.\.\.|TAB|\|")
"""Marks of a synopsis, which is not a command line."""


def command_lines() -> Iterator[tuple[str, str, bool]]:
    """Page, command line, and whether it is complete; text may name a command without its arguments."""
    for block, line in commands():
        yield str(block), line, True
    for page in PAGES:
        for line in INLINE.findall(text(page)):
            if not SYNTAX.search(line):
                yield str(page), line, False


def parse(words: list[str]) -> None:
    """Parse a command line as koordctl does, without running it."""
    context = cli.make_context("koordctl", words)
    while isinstance(context.command, click.Group) and context._protected_args + context.args:
        name, command, rest = context.command.resolve_command(context, context._protected_args + context.args)
        assert command is not None
        context = command.make_context(name, rest, parent=context)


def test_koordctl_accepts_every_command_line() -> None:
    refused = []
    for page, line, complete in command_lines():
        words = shlex.split(line)
        try:
            parse(words[2:] if words[0] == "kubectl" else words[1:])
        except click.exceptions.Exit:
            continue  # --help and --version
        except click.UsageError as error:
            if isinstance(error, click.MissingParameter) and not complete:
                continue
            refused.append(f"{page}: {line}: {error.format_message()}")
    assert refused == [], refused


@pytest.mark.parametrize("line", ["koordctl tup", "koordctl up --no-such-option"])
def test_a_wrong_command_line_is_noticed(line: str) -> None:
    with pytest.raises(click.UsageError):
        parse(line.split()[1:])


@pytest.mark.parametrize(("place", "key", "value"), settings())
def test_the_manager_accepts_every_setting(place: str, key: str, value: str) -> None:
    json.loads(value)
    _, problems = configmap.load(UNREAD, {key: value})
    assert problems == ()
    assert merge_extensions(EXTENSIONS, {}, {key: value})[1] == {}

"""The examples of the documentation: fenced blocks, YAML objects and command lines."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.repository.sources import text, tracked

PAGES = [path for path in tracked() if path.suffix == ".md" and path.parts[:2] != ("docs", "spec")]
FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<body>.*?)^(?P=indent)```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^(?:[$#] )?((?:koordctl|kubectl koord)\b.*)$", re.MULTILINE)
KEY = re.compile(r"[a-z-]+-config|strategy-profile")
ROW = re.compile(rf"^\|[^|]*\| `({KEY.pattern})` \| `(\{{[^`]*\}})` \|$", re.MULTILINE)
COMMENT = re.compile(r"\s+#\s.*$")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: Path
    line: int
    language: str
    body: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks() -> Iterator[Block]:
    for page in PAGES:
        content = text(page)
        for fence in FENCE.finditer(content):
            line = content.count("\n", 0, fence.start()) + 1
            yield Block(page, line, fence["language"], textwrap.dedent(fence["body"]))


def documents(block: Block) -> list[dict[str, Any]]:
    """The YAML documents of a block that name their kind; fragments are left out."""
    if block.language != "yaml":
        return []
    return [
        document
        for document in yaml.safe_load_all(block.body)
        if isinstance(document, dict) and {"apiVersion", "kind"} <= document.keys()
    ]


def commands() -> Iterator[tuple[Block, str]]:
    """Every command line of koordctl, without prompt and comment."""
    for block in blocks():
        if block.language in ("", "console", "sh", "bash"):
            for command in COMMAND.findall(block.body):
                yield block, COMMENT.sub("", command).strip()


def settings() -> list[tuple[str, str, str]]:
    """Place, key and JSON text of each setting of `slo-controller-config`: YAML fragments and rows of tables."""
    values = [
        (str(block), key, value)
        for block in blocks()
        if block.language == "yaml" and not documents(block)
        for key, value in yaml.safe_load(block.body).items()
        if KEY.fullmatch(key)
    ]
    rows = [(str(page), key, value) for page in PAGES for key, value in ROW.findall(text(page))]
    return values + rows

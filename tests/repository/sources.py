"""The tracked files of this repository, and the names that its product code defines or mentions."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("koordlet", "control", "runtimeproxy", "devicedaemon")
WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@cache
def tracked() -> tuple[Path, ...]:
    """Every tracked file, relative to the root."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return tuple(Path(name) for name in names.split("\0") if name and (ROOT / name).is_file())


def product_modules() -> list[Path]:
    return [path for path in tracked() if path.suffix == ".py" and path.parts[0] in PRODUCT]


@cache
def text(path: Path) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(text(path))


def dotted(path: Path) -> str:
    """The module name of *path*: `a/b/__init__.py` is `a.b`."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of each docstring: of modules, classes and functions, and below assignments of attributes."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


@cache
def known_words() -> frozenset[str]:
    """Identifiers of Python, C and shell code, and words of string constants, of all tracked files but documents."""
    words: set[str] = set()
    for path in tracked():
        if path.suffix == ".py":
            skipped = {line for line, _ in docstrings(path)}
            for token in tokenize.generate_tokens(io.StringIO(text(path)).readline):
                in_docstring = token.type == tokenize.STRING and token.start[0] in skipped
                if token.type in (tokenize.NAME, tokenize.STRING) and not in_docstring:
                    words.update(WORD.findall(token.string))
            words.update(path.parts)
            words.add(path.stem)
        elif path.suffix in (".c", ".h", ".sh", ".proto", ".yaml", ".yml", ".toml", ".txt", ".service", ".json"):
            words.update(WORD.findall(text(path)))
            words.update(WORD.findall(path.name))
    return frozenset(words)

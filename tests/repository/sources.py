"""The tracked files of this repository, and the names that its product code defines or mentions."""

from __future__ import annotations

import ast
import keyword
import re
import subprocess
from dataclasses import dataclass
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


def tree(path: Path) -> ast.Module:
    return ast.parse(text(path))


@dataclass(frozen=True, slots=True)
class Facts:
    """What the tests read of one Python file. Its syntax tree is not kept."""

    classes: list[tuple[str, int, list[str]]]
    """Name, line and names of base classes."""
    variables: list[tuple[str, int]]
    """The names that assignments, loops and parameters bind, and their lines."""
    docstrings: list[tuple[int, str]]
    """Line and text of each docstring: of modules, classes and functions, and below assignments of attributes."""
    words: frozenset[str]
    """Identifiers, and words of string constants other than docstrings."""


@cache
def facts(path: Path) -> Facts:
    classes, variables, docstrings = [], [], []
    strings: set[str] = set()
    nodes: list[ast.AST] = [tree(path)]
    while nodes:
        node = nodes.pop()
        match node:
            case ast.Expr(value=ast.Constant(value=str(words))):
                docstrings.append((node.lineno, words))
                continue
            case ast.Name(ctx=ast.Store()):
                variables.append((node.id, node.lineno))
            case ast.arg():
                variables.append((node.arg, node.lineno))
            case ast.ClassDef():
                bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
                classes.append((node.name, node.lineno, bases))
        for field in node._fields:
            value = getattr(node, field)
            for item in value if isinstance(value, list) else (value,):
                if isinstance(item, ast.AST):
                    nodes.append(item)
                elif isinstance(item, str):
                    strings.add(item)
                elif isinstance(item, bytes):
                    strings.add(item.decode("latin-1"))
    return Facts(classes, variables, docstrings, frozenset(WORD.findall(" ".join(strings))))


def dotted(path: Path) -> str:
    """The module name of *path*: `a/b/__init__.py` is `a.b`."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def known_words() -> frozenset[str]:
    """Identifiers of Python, C and shell code, and words of string constants, of all tracked files but documents."""
    words = set(keyword.kwlist)
    for path in tracked():
        if path.suffix == ".py":
            words |= facts(path).words
            words.update(path.parts)
            words.add(path.stem)
        elif path.suffix in (".c", ".h", ".sh", ".proto", ".yaml", ".yml", ".toml", ".txt", ".service", ".json"):
            words.update(WORD.findall(text(path)))
            words.update(WORD.findall(path.name))
    return frozenset(words)

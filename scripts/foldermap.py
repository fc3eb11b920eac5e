"""Writes docs/layout.md: every product folder with more than WIDE files, one line per file.

Use: `make layout`; a test holds the page current.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "layout.md"
PRODUCT = ("koordlet", "control", "runtimeproxy", "devicedaemon", "bpf")
WIDE = 15
HEAD = """# Folders with more than 15 files

One line per file, from its docstring or head comment. Written by `make layout`; a test compares it with the files.
"""


def page() -> str:
    folders: defaultdict[Path, list[Path]] = defaultdict(list)
    listed = subprocess.run(["git", "ls-files", *PRODUCT], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in listed.splitlines():
        path = Path(name)
        if path.suffix in (".py", ".c", ".h") and path.name != "__init__.py":
            folders[path.parent].append(path)
    parts = [HEAD]
    for folder, files in sorted(folders.items()):
        if len(files) >= WIDE:
            rows = [f"| `{path.name}` | {summary(ROOT / path)} |" for path in sorted(files)]
            parts.append(f"## {folder}\n\n| file | content |\n| --- | --- |\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)


def summary(path: Path) -> str:
    """The first sentence about the file."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        about = ast.get_docstring(ast.parse(text)) or ""
    else:
        comment = re.search(
            r"^//(?! SPDX| Copyright)[^\n]*(?:\n//[^\n]*)*|/\*(?! SPDX| Copyright).*?\*/",
            text,
            re.DOTALL | re.MULTILINE,
        )
        about = re.sub(r"^\s*(//|/?\*+/?)", "", comment[0], flags=re.MULTILINE) if comment else ""
    paragraph = " ".join(about.strip().split("\n\n")[0].split())
    sentence = re.match(r".*?[.:](?= [A-Z(]|$)", paragraph)
    return (sentence[0] if sentence else paragraph).rstrip(".:").replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

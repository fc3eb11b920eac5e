"""What `make docs` would refuse, checked at every landing: pages that are in no menu, and anchors that do not exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.repository.sources import ROOT, text, tracked

MARKDOWN = [path for path in tracked() if path.suffix == ".md"]
LINK = re.compile(r"(?<!!)\]\(([^)\s#]*)#([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} +(.+?) *$", re.MULTILINE)
FENCE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
LABEL = re.compile(r"\[([^]]*)\]\([^)]*\)")


def slug(heading: str) -> str:
    """The anchor of a heading."""
    kept = re.sub(r"[^\w\- ]", "", LABEL.sub(r"\1", heading))
    return kept.strip().lower().replace(" ", "-")


def anchors(path: Path) -> set[str]:
    content = FENCE.sub("", text(path))
    return {slug(heading) for heading in HEADING.findall(content)} | set(re.findall(r'<a id="([^"]+)"', content))


def resolved(page: Path, name: str) -> Path:
    """The page that a link of `page` names, relative to the root."""
    return (ROOT / page.parent / name).resolve().relative_to(ROOT) if name else page


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [
        ("Webhooks: Ignore or Fail", "webhooks-ignore-or-fail"),
        ("`kubectl koord` with [krew](a.md)", "kubectl-koord-with-krew"),
        ("koordlet's GPU collector", "koordlets-gpu-collector"),
    ],
)
def test_anchors_of_headings(heading: str, anchor: str) -> None:
    assert slug(heading) == anchor


def test_every_anchor_of_a_link_exists() -> None:
    broken = [
        f"{path}: {name}#{anchor}"
        for path in MARKDOWN
        for name, anchor in LINK.findall(FENCE.sub("", text(path)))
        if "://" not in name and anchor not in anchors(resolved(path, name))
    ]
    assert broken == []


def test_every_page_is_in_the_menu_once() -> None:
    menu = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    listed = re.findall(r"^ *- (?:[^:\n]+: )?([\w./-]+\.md)$", menu, re.MULTILINE)
    pages = {str(path.relative_to("docs")) for path in MARKDOWN if path.parts[0] == "docs"}
    of_the_root = {"changelog.md", "conduct.md", "contributing.md", "reporting.md"}
    assert sorted(listed) == sorted(pages | of_the_root), "mkdocs.yml"

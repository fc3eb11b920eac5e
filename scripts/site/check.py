"""Checks the built site: `python scripts/site/check.py FOLDER`. Only the standard library is used.

Every reference to a file of the site resolves, its anchor included, and no page loads anything from another server.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

LOADING = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src", "object": "data"}
"""Element -> attribute whose target a browser loads with the page."""
NOT_LOADED = frozenset({"canonical", "next", "prev"})
"""Values of `rel` of `link` elements that only name a page."""
_STYLE_LOAD = re.compile(r"(?:@import\s+|url\(\s*)[\"']?((?:https?:)?//[^\"')\s]+)")


class Reference(NamedTuple):
    target: str
    loaded: bool


class PageParser(HTMLParser):
    """Anchors and references of one page."""

    def __init__(self) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.references: list[Reference] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.anchors.update(values[name] for name in ("id", "name") if values.get(name))
        if tag == "a" and "href" in values:
            self.references.append(Reference(values["href"], loaded=False))
        target = values.get(LOADING.get(tag, ""), "")
        if target and not NOT_LOADED & set(values.get("rel", "").split()):
            self.references.append(Reference(target, loaded=True))


def parse(path: Path) -> PageParser:
    parser = PageParser()
    parser.feed(path.read_text(encoding="utf-8"))
    return parser


def problems(site: Path) -> Iterator[str]:
    """One text per broken reference, and per reference that a browser would load from another server."""
    pages = {path.resolve(): parse(path) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        where = path.relative_to(site.resolve())
        for reference in page.references:
            parts = urlsplit(reference.target)
            if parts.scheme == "data":
                continue
            if parts.scheme or parts.netloc:
                if reference.loaded:
                    yield f"{where}: loads {reference.target}"
                continue
            start = site.resolve() if parts.path.startswith("/") else path.parent
            target = (start / unquote(parts.path).lstrip("/")).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            if not target.is_file():
                yield f"{where}: no file for {reference.target}"
            elif parts.fragment and target in pages and not _has_anchor(pages[target], parts.fragment):
                yield f"{where}: no anchor for {reference.target}"
    for path in sorted(site.rglob("*.css")):
        for loaded in _STYLE_LOAD.findall(path.read_text(encoding="utf-8")):
            yield f"{path.relative_to(site)}: loads {loaded}"


def _has_anchor(page: PageParser, fragment: str) -> bool:
    return fragment.startswith("__") or unquote(fragment) in page.anchors  # "__": tabs and the top of the theme


def main(argv: list[str]) -> int:
    site = Path(argv[0])
    broken = list(problems(site))
    for line in broken:
        print(f"docs: {line}", file=sys.stderr)
    pages = len(list(site.rglob("*.html")))
    if not pages:
        print(f"docs: no page in {site}", file=sys.stderr)
        return 1
    print(f"docs: {pages} pages in {site}, {len(broken)} broken links")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

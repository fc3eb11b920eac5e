"""The documentation site: the check of its links, its diagrams. `make docs` builds it."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from scripts.diagrams import __main__ as diagrams
from scripts.diagrams.drawing import Arrow, Box, arrow
from scripts.diagrams.terminal import terminal
from scripts.site import check

GOOD = (
    '<link rel="stylesheet" href="a.css"><link rel="canonical" href="https://elsewhere.invalid/">'
    '<img src="data:image/png;base64,AA"><h1 id="top">T</h1>'
    '<a href="#top">x</a><a href="b/#part">x</a><a href="https://elsewhere.invalid/">x</a>'
    '<a href="mailto:x@y.invalid">x</a>'
)


def write_site(folder: Path, index: str, css: str = "a { color: red }") -> Path:
    (folder / "b").mkdir()
    (folder / "index.html").write_text(index)
    (folder / "a.css").write_text(css)
    (folder / "b" / "index.html").write_text('<p id="part"></p><a href="../index.html#top">x</a><a href="/a.css">x</a>')
    return folder


def test_a_good_site_has_no_problem(tmp_path: Path) -> None:
    assert list(check.problems(write_site(tmp_path, GOOD))) == []
    assert check.main([str(tmp_path)]) == 0


@pytest.mark.parametrize(
    ("added", "problem"),
    [
        ('<a href="absent.html">', "index.html: no file for absent.html"),
        ('<a href="b/index.html#absent">', "index.html: no anchor for b/index.html#absent"),
        ('<a href="#absent">', "index.html: no anchor for #absent"),
        ('<img src="absent.svg">', "index.html: no file for absent.svg"),
        ('<script src="https://elsewhere.invalid/a.js">', "index.html: loads https://elsewhere.invalid/a.js"),
        ('<script src="//elsewhere.invalid/a.js">', "index.html: loads //elsewhere.invalid/a.js"),
        ('<link rel="stylesheet" href="https://elsewhere.invalid/a.css">', "loads https://elsewhere.invalid/a.css"),
    ],
)
def test_a_broken_link_is_named(tmp_path: Path, added: str, problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main([str(write_site(tmp_path, GOOD + added))]) == 1
    assert problem in capsys.readouterr().err


@pytest.mark.parametrize("css", ["@import 'https://elsewhere.invalid/a.css'", "a { src: url(//elsewhere.invalid/f) }"])
def test_a_style_that_loads_from_elsewhere_is_named(tmp_path: Path, css: str) -> None:
    assert [problem.partition(": ")[0] for problem in check.problems(write_site(tmp_path, GOOD, css))] == ["a.css"]


def test_a_folder_without_pages_is_an_error(tmp_path: Path) -> None:
    assert check.main([str(tmp_path)]) == 1


def test_the_diagrams_are_current() -> None:
    files = diagrams.files()
    assert {path: path.read_text(encoding="utf-8") for path in files} == files, "run `make diagrams`"
    assert set(diagrams.FOLDER.glob("*.svg")) == set(files)


@pytest.mark.parametrize("path", diagrams.files(), ids=lambda path: path.stem)
def test_a_diagram_keeps_inside_its_frame(path: Path) -> None:
    root = ElementTree.fromstring(path.read_text(encoding="utf-8"))
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    for shape in root.iter():
        if shape.tag.endswith("}rect"):
            left, top = float(shape.get("x", "0")), float(shape.get("y", "0"))
            assert left >= 0 and left + float(shape.attrib["width"]) <= width
            assert top >= 0 and top + float(shape.attrib["height"]) <= height
        elif shape.tag.endswith("}text"):
            assert 0 < float(shape.attrib["x"]) < width and 0 < float(shape.attrib["y"]) < height


def test_an_arrow_ends_at_the_borders() -> None:
    boxes = {"a": Box(100, 50, "a", width=100, height=40), "b": Box(300, 50, "b", width=100, height=40)}
    assert 'points="150,50 250,50"' in arrow(Arrow("a", "b"), boxes)
    assert 'points="100,70 100,120 300,120 300,70"' in arrow(Arrow("a", "b", "", ((100, 120), (300, 120))), boxes)


def test_a_terminal_text_is_escaped_and_not_empty() -> None:
    assert "&lt;none&gt;" in terminal("$ kubectl get nodes\n<none>\n")
    with pytest.raises(ValueError, match="empty"):
        terminal("\n")

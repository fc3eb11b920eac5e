"""docs/koordlet.md says which flags there are, with kinds, defaults and meanings."""

import re
from pathlib import Path

from koordlet.app.flags import usage
from koordlet.options import Options

PAGE = Path(__file__).parents[2] / "docs/koordlet.md"


def test_the_page_and_the_options_agree():
    told = {
        cells[1].strip("`"): (cells[2], cells[3].strip("`"), cells[4])
        for line in PAGE.read_text().splitlines()
        if line.startswith("| `--") and (cells := [cell.strip() for cell in line.split("|")]) and len(cells) == 6
    }
    offered = {}
    for name, kind, text in re.findall(r"^  (--\S+)(.*)\n {8}(.*)$", usage(Options, prog="koordlet"), re.MULTILINE):
        if name in ("--help", "--version") or "[deprecated" in text:
            continue
        default = re.search(r" \(default ([^()]*)\)$", text)
        meaning = text if default is None else text[: default.start()]
        offered[name] = (kind.strip() or "bool", "" if default is None else default[1], meaning)
    assert told == offered

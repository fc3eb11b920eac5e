"""Writes docs/screenshots: `python -m scripts.screenshots [--record | --draw]`; without an option both.

Recording runs the demo on this machine, with additional loads, for about seven minutes. The data stay in
build/screenshots, so that the pictures can be drawn again.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from scripts.screenshots.page import first_rows, height_of, page_html, screenshot
from scripts.screenshots.panels import Interval, filled
from scripts.screenshots.prometheus import PrometheusServer
from scripts.screenshots.reasons import REASONS
from scripts.screenshots.record import record

ROOT = Path(__file__).resolve().parents[2]
FOLDER, OUT = ROOT / "build/screenshots", ROOT / "docs/screenshots"
OVERVIEW, OVERVIEW_ROWS = "koordlet-interference", 2
"""The dashboard of which README.md shows the first rows."""
INTERVAL = FOLDER / "interval.json"
LARGEST_FILE_BYTES, LARGEST_SUM_BYTES = 150_000, 1_000_000


def draw(names: list[str]) -> list[str]:
    """Draw the dashboards; returns what is wrong with them."""
    interval, problems = Interval(*json.loads(INTERVAL.read_text())), []
    OUT.mkdir(exist_ok=True)
    with PrometheusServer(FOLDER) as server:
        for path in sorted((ROOT / "deploy/grafana").glob("*.json")):
            if names and path.stem not in names:
                continue
            document = json.loads(path.read_text())
            panels, missing = filled(document, server, interval, REASONS)
            problems += [f"{path.stem}: {problem}" for problem in missing]
            page = FOLDER / f"{path.stem}.html"
            page.write_text(page_html(document["title"], document["description"], panels, interval))
            screenshot(page, height_of(panels), OUT / f"{path.stem}.webp")
            if path.stem == OVERVIEW:
                screenshot(page, height_of(first_rows(panels, OVERVIEW_ROWS)), OUT / "overview.webp")
    sizes = {path.name: path.stat().st_size for path in OUT.glob("*.webp")}
    problems += [f"{name}: {size} bytes" for name, size in sizes.items() if size > LARGEST_FILE_BYTES]
    if sum(sizes.values()) > LARGEST_SUM_BYTES:
        problems.append(f"all pictures together: {sum(sizes.values())} bytes")
    return problems


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.screenshots")
    parser.add_argument("--record", action="store_true", help="only record")
    parser.add_argument("--draw", action="store_true", help="only draw the recorded data")
    parser.add_argument("dashboards", nargs="*", help="only these")
    args = parser.parse_args(argv)
    if not args.draw:
        INTERVAL.write_text(json.dumps(record(ROOT, FOLDER)))
    problems = [] if args.record else draw(args.dashboards)
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

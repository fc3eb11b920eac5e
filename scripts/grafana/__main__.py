"""Write deploy/grafana/*.json, and the list of panels in docs/grafana.md: `python -m scripts.grafana [--check]`.

With --check nothing is written; the exit status is 1 when a file is out of date.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from scripts.grafana.descheduler import DESCHEDULER_DASHBOARD
from scripts.grafana.devices import DEVICES_DASHBOARD
from scripts.grafana.fleet import FLEET_DASHBOARD
from scripts.grafana.frame import Dashboard, dashboard_json
from scripts.grafana.health import HEALTH_DASHBOARD
from scripts.grafana.interference import INTERFERENCE_DASHBOARD
from scripts.grafana.manager import MANAGER_DASHBOARD
from scripts.grafana.node import NODE_DASHBOARD
from scripts.grafana.pod import POD_DASHBOARD
from scripts.grafana.runtimeproxy import RUNTIME_PROXY_DASHBOARD
from scripts.grafana.scheduler import SCHEDULER_DASHBOARD

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    FLEET_DASHBOARD, NODE_DASHBOARD, POD_DASHBOARD, INTERFERENCE_DASHBOARD, DEVICES_DASHBOARD, HEALTH_DASHBOARD,
    MANAGER_DASHBOARD, SCHEDULER_DASHBOARD, DESCHEDULER_DASHBOARD, RUNTIME_PROXY_DASHBOARD,
)  # fmt: skip
MARK = "<!-- generated from scripts/grafana: the panels -->"


def page_section(page: Dashboard) -> str:
    """The section of one dashboard in docs/grafana.md."""
    picture = f"![{page.title}: a preview from recorded data](screenshots/{page.uid}.webp)"
    lines = [f"## {page.title}", "", page.description, "", f"`deploy/grafana/{page.uid}.json`", "", picture, ""]
    for row in page.rows:
        lines += [f"### {row.title}", "", "| panel | shows |", "| --- | --- |"]
        lines += [f"| {panel.title} | {panel.description} |" for panel in row.panels]
        lines.append("")
    return "\n".join(lines)


def files(root: Path) -> dict[Path, str]:
    """Every generated file with its content."""
    contents = {
        root / "deploy/grafana" / f"{page.uid}.json": json.dumps(dashboard_json(page), indent=1) + "\n"
        for page in PAGES
    }
    page = root / "docs/grafana.md"
    head, _, _ = page.read_text().partition(MARK)
    contents[page] = f"{head}{MARK}\n\n" + "\n".join(page_section(dashboard) for dashboard in PAGES).rstrip() + "\n"
    return contents


def main(arguments: list[str]) -> int:
    stale = {path: text for path, text in files(ROOT).items() if not path.exists() or path.read_text() != text}
    for path, text in stale.items():
        print(path.relative_to(ROOT))
        if "--check" not in arguments:
            path.write_text(text)
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

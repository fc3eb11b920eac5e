"""docs/device-daemon.md lists the flags and variables, with their defaults and meanings."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from devicedaemon.options import ENVIRONMENT, DeviceDaemonOptions, resolve
from devicedaemon.vendors import VENDORS
from koordlet.app.flags import usage

PAGE = (Path(__file__).parents[2] / "docs/device-daemon.md").read_text()
COMMON = {"--help", "--version", "--logging-format"}


def test_the_page_and_the_options_agree() -> None:
    documented = {
        cells[1].strip("`"): (re.findall(r"`(\w+)`", cells[2]), cells[3].strip("`"), cells[4])
        for line in PAGE[PAGE.index("\n## Flags\n") :].splitlines()
        if line.startswith("| `--") and (cells := [cell.strip() for cell in line.split("|")])
    }
    offered = {}
    for name, text in re.findall(r"^  (--\S+).*\n {8}(.*)$", usage(DeviceDaemonOptions, prog="x"), re.MULTILINE):
        if name in COMMON or "[deprecated" in text:
            continue
        default = re.search(r" \(default ([^()]*)\)$", text)
        variables = list(ENVIRONMENT.get(name.removeprefix("--"), ()))
        offered[name] = (variables, default[1] if default else "", text[: default.start()] if default else text)
    assert documented == offered


def test_the_example_file_has_all_defaults(tmp_path: Path) -> None:
    text = PAGE[PAGE.index("```yaml\n") + 8 :].partition("```")[0]
    (tmp_path / "kdd").write_text(text)
    assert resolve([f"--config-file={tmp_path / 'kdd'}"], {}).document() == resolve([], {}).document()
    document: Any = resolve([], {}).document()
    assert set(yaml.safe_load(text)["flags"]["kdd"]) == set(document["flags"]["kdd"])


def test_the_page_lists_all_vendors_in_order() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\w{4})", PAGE, re.MULTILINE)
    assert rows == [(vendor.name, vendor.pci_vendor) for vendor in VENDORS]

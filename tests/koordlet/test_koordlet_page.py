"""docs/koordlet.md says which flags there are, with kinds, defaults and meanings; Koordinator's are all taken."""

import re
from pathlib import Path

import pytest

from koordlet.app.flags import FlagError, deprecated, read, usage
from koordlet.oldflags import OldFlags
from koordlet.options import Options

PAGE = (Path(__file__).parents[2] / "docs/koordlet.md").read_text()


def test_the_page_and_the_options_agree():
    told = {
        cells[1].strip("`"): (cells[2], cells[3].strip("`"), cells[4])
        for line in PAGE[PAGE.index("\n## Flags\n") :].splitlines()
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


def test_every_failure_that_is_told_of_stands_in_its_own_table():
    section = PAGE[PAGE.index("\n## Failures\n") : PAGE.index("\n## Flags\n")]
    rows = [line.split(" | ") for line in section.splitlines() if line.startswith("| ")]
    assert len(rows) > 10 and {len(row) for row in rows} == {2}


KOORDINATORS = [
    "--configmap-name=koordlet-config", "--configmap-namespace=koordinator-system", "--report-interval=60s",
    "--containerd-endpoint=/run/c.sock", "--docker-endpoint=/run/d.sock", "--pouch-endpoint=/run/p.sock",
    "--tsdb-path=/metric-data/", "--tsdb-min-block-duration=10m", "--tsdb-max-block-duration=10m",
    "--tsdb-stripe-size=16384", "--tsdb-wal-segment-size=1048576", "--tsdb-max-block-chunk-segment-size=5242880",
    "--tsdb-head-chunks-write-buffer-size=1048576", "--tsdb-enable-prometheus-metric",
    "--metric-gc-interval-seconds=300", "--metric-expire-seconds=1800", "--only-evict-by-api",
    "--qos-extension-plugins=A=true",
]  # fmt: skip
"""Spec 02 §1.5 and 03 §7: flags of Koordinator's koordlet that nothing here asks for."""


def test_koordinators_flags_without_effect_are_taken_and_said():
    options = read(Options, [*KOORDINATORS, "--node-name=n", "--logtostderr=true"])
    assert options.node_name == "n"
    told = deprecated(options)
    assert all(told.values())
    assert set(told) == {flag.lstrip("-").partition("=")[0] for flag in KOORDINATORS}
    assert len(told) == len(OldFlags.__annotations__)
    assert deprecated(read(Options, ["--node-name=n"])) == {}


@pytest.mark.parametrize(
    "flag", ["--tsdb-stripe-size=many", "--only-evict-by-api=perhaps", "--qos-extension-plugins=A"]
)
def test_what_cannot_be_read_is_refused_all_the_same(flag):
    with pytest.raises(FlagError, match=flag.partition("=")[0]):
        read(Options, [flag])

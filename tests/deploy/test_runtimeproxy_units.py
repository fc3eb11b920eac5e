"""The units of koord-runtime-proxy, checked by systemd's own tools, offline."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from scripts import unitexposure
from scripts.securitytables import PAGE
from tests.runtimeproxy import unitfiles

HOST_UNITS = Path("/usr/lib/systemd/system")
EXPOSURE = 1.5
"""Exposure level out of 10. It remains because of root, unix sockets and the metrics page on localhost."""
each = pytest.mark.parametrize("backend", unitfiles.BACKENDS)


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A root directory with this machine's own units and a file in place of the binary."""
    shutil.copytree(HOST_UNITS, tmp_path / HOST_UNITS.relative_to("/"), symlinks=True)
    binary = tmp_path / unitfiles.BINARY.lstrip("/")
    binary.parent.mkdir(parents=True)
    binary.write_text("#!/bin/sh\n")
    binary.chmod(0o755)
    return tmp_path


def analyze(node: Path, text: str, *what: str) -> subprocess.CompletedProcess[str]:
    folder = node / "etc/systemd/system"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / unitfiles.UNIT).write_text(text)
    command = ["systemd-analyze", *what, f"--root={node}", unitfiles.UNIT]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def messages(node: Path, text: str) -> list[str]:
    """systemd's messages about the unit."""
    done = analyze(node, text, "verify", "--man=no")
    lines = [line for line in done.stderr.splitlines() if unitfiles.UNIT in line]
    assert lines or done.returncode == 0, done.stderr
    return lines


@pytest.mark.runtime
@each
def test_systemd_accepts_every_line(node: Path, backend: str) -> None:
    assert messages(node, unitfiles.text(backend)) == []


@pytest.mark.runtime
@pytest.mark.parametrize(
    ("line", "replacement"),
    [
        ("ProtectSystem=strict", "ProtectSystm=strict"),
        ("MemoryMax=512M", "MemoryMax=much"),
        (unitfiles.BINARY, "/none"),
    ],
)
def test_an_invalid_line_is_reported(node: Path, line: str, replacement: str) -> None:
    text = unitfiles.text("containerd")
    assert line in text
    assert messages(node, text.replace(line, replacement)) != []


@pytest.mark.runtime
@each
def test_the_exposure_level_is_low(node: Path, backend: str) -> None:
    text = unitfiles.text(backend)
    done = analyze(node, text, "security", "--offline=true", "--no-pager", f"--threshold={int(EXPOSURE * 10)}")
    exposure = re.search(r"exposure level for \S+: ([0-9.]+)", done.stdout)
    assert exposure is not None, done.stdout + done.stderr
    assert float(exposure[1]) <= EXPOSURE, done.stdout
    assert done.returncode == 0, done.stderr


@pytest.mark.runtime
def test_the_page_has_the_exposure_of_the_units() -> None:
    text = PAGE.read_text(encoding="utf-8")
    if f"of systemd {unitexposure.version()}," in text:
        assert unitexposure.page(text) == text, "run `make security-tables`"
    for unit in unitexposure.UNITS.values():
        for setting in unitexposure.exposure(unit).remaining:
            assert f"`{setting}`".replace("|", "\\|") in text


def test_the_units_differ_only_in_the_backend() -> None:
    texts = [unitfiles.text(backend).splitlines() for backend in unitfiles.BACKENDS]
    different = {line.partition("=")[0] for pair in zip(*texts, strict=True) if pair[0] != pair[1] for line in pair}
    assert {line for line in different if not line.startswith("#")} == {"After", "Wants", "ExecStart"}

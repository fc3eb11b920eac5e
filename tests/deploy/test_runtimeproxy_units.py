"""The units of koord-runtime-proxy, judged by systemd's own tools, offline."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from control.ctl.manifests import runtimeproxy as units

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy/runtimeproxy"
HOST_UNITS = Path("/usr/lib/systemd/system")
EXPOSURE = 1.5
"""Of 10. What is left: root, sockets of unix, and a page of metrics on localhost."""
each = pytest.mark.parametrize("backend", units.BACKENDS)


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A root with this machine's own units, and something where the binary belongs."""
    shutil.copytree(HOST_UNITS, tmp_path / HOST_UNITS.relative_to("/"), symlinks=True)
    binary = tmp_path / units.BINARY.lstrip("/")
    binary.parent.mkdir(parents=True)
    binary.write_text("#!/bin/sh\n")
    binary.chmod(0o755)
    return tmp_path


def analyze(node: Path, text: str, *what: str) -> subprocess.CompletedProcess[str]:
    folder = node / "etc/systemd/system"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / units.UNIT).write_text(text)
    command = ["systemd-analyze", *what, f"--root={node}", units.UNIT]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def complaints(node: Path, text: str) -> list[str]:
    """What systemd says of the unit."""
    done = analyze(node, text, "verify", "--man=no")
    said = [line for line in done.stderr.splitlines() if units.UNIT in line]
    assert said or done.returncode == 0, done.stderr
    return said


@pytest.mark.runtime
@each
def test_systemd_understands_every_line(node: Path, backend: str) -> None:
    assert complaints(node, (FOLDER / backend / units.UNIT).read_text()) == []


@pytest.mark.runtime
@pytest.mark.parametrize(
    ("line", "instead"),
    [("ProtectSystem=strict", "ProtectSystm=strict"), ("MemoryMax=512M", "MemoryMax=much"), (units.BINARY, "/none")],
)
def test_a_line_that_systemd_does_not_understand_is_noticed(node: Path, line: str, instead: str) -> None:
    text = (FOLDER / "containerd" / units.UNIT).read_text()
    assert line in text
    assert complaints(node, text.replace(line, instead)) != []


@pytest.mark.runtime
@each
def test_little_is_exposed(node: Path, backend: str) -> None:
    text = (FOLDER / backend / units.UNIT).read_text()
    done = analyze(node, text, "security", "--offline=true", "--no-pager", f"--threshold={int(EXPOSURE * 10)}")
    found = re.search(r"exposure level for \S+: ([0-9.]+)", done.stdout)
    assert found is not None, done.stdout + done.stderr
    assert float(found[1]) <= EXPOSURE, done.stdout
    assert done.returncode == 0, done.stderr


def test_deploy_holds_what_the_generator_says() -> None:
    assert units.main(["--out", str(FOLDER), "--check"]) == 0, f"run python -m {units.__name__} --out {FOLDER}"
    written = {str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*.service")}
    assert written == set(units.texts())

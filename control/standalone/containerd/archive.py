"""Makes image archives without a network or a registry: one tar for containerd's import and `docker load`.

The archive is an OCI image layout plus Docker's manifest.json; both refer to the same blobs. Layers are uncompressed
tars, so that a blob's digest is its diff id. The output is deterministic: the same content has the same digests. The
contents are Debian's static busybox, or empty directories; no other image is used.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from control.standalone.containerd.config import BUSYBOX
from koordlet.app import atomicfile

_NAMES = """
awk basename cat chmod cp cut date dd df dirname du echo env false find free grep gzip head hostname id kill less ln ls
md5sum mkdir mknod mount mv nc nproc od pidof printf ps pwd readlink rm sed seq sh sha256sum sleep sort stat stty tail
tar tee test timeout top touch tr true tty umount uname uniq usleep vi wc wget which xargs yes
"""
APPLETS = tuple(_NAMES.split())
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_EPOCH = "1970-01-01T00:00:00Z"
_OCI = "application/vnd.oci.image"


@dataclass(frozen=True, slots=True)
class Image:
    """`names` are full references (`docker.io/library/busybox:latest`); `layer` is an uncompressed tar."""

    names: Sequence[str]
    layer: bytes
    command: Sequence[str] = ()
    entrypoint: Sequence[str] = ()
    user: str = ""
    """"" is root."""
    labels: Mapping[str, str] = field(default_factory=dict)
    env: Sequence[str] = ("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",)


def write_archive(path: Path, images: Sequence[Image]) -> None:
    """Write `images` as one archive; an existing file is replaced atomically."""
    blobs: dict[str, bytes] = {}

    def put(data: bytes) -> tuple[str, int]:
        digest = hashlib.sha256(data).hexdigest()
        blobs[digest] = data
        return digest, len(data)

    manifests: list[dict[str, Any]] = []
    docker: list[dict[str, Any]] = []
    for image in images:
        layer, layer_size = put(image.layer)
        config, config_size = put(_json(_config(image, layer)))
        manifest = {
            "schemaVersion": 2,
            "mediaType": f"{_OCI}.manifest.v1+json",
            "config": _descriptor("config.v1+json", config, config_size),
            "layers": [_descriptor("layer.v1.tar", layer, layer_size)],
        }
        digest, size = put(_json(manifest))
        for name in image.names:
            manifests.append(
                {
                    **_descriptor("manifest.v1+json", digest, size),
                    "annotations": {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name},
                }
            )
        docker.append(
            {"Config": f"blobs/sha256/{config}", "RepoTags": list(image.names), "Layers": [f"blobs/sha256/{layer}"]}
        )
    index = {"schemaVersion": 2, "mediaType": f"{_OCI}.index.v1+json", "manifests": manifests}
    files = {
        "oci-layout": b'{"imageLayoutVersion":"1.0.0"}',
        "index.json": _json(index),
        "manifest.json": _json(docker),
    }
    files |= {f"blobs/sha256/{digest}": data for digest, data in blobs.items()}
    with (
        atomicfile.replacing(path, mode=0o644, durable=False) as file,
        tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as tar,
    ):
        for name, data in files.items():
            tar.addfile(_entry(name, 0o644, size=len(data)), io.BytesIO(data))


def busybox_layer(busybox: Path = BUSYBOX) -> bytes:
    """A root file system with one static busybox, links to its applets, and the usual empty directories."""
    program = busybox.read_bytes()
    if not program.startswith(b"\x7fELF") or _needs_interpreter(program):
        raise ValueError(f"{busybox} is not a static program: install busybox-static")
    files = {"bin/busybox": program, "etc/passwd": b"root:x:0:0:root:/root:/bin/sh\n", "etc/group": b"root:x:0:\n"}
    links = {f"bin/{name}": "busybox" for name in APPLETS}
    return tree_layer(("bin", "dev", "etc", "home", "proc", "root", "sys", "tmp", "usr", "var"), files, links)


def _needs_interpreter(program: bytes) -> bool:
    """Whether this 64-bit ELF has a PT_INTERP header (type 3)."""
    offset = int.from_bytes(program[32:40], "little")
    size, count = int.from_bytes(program[54:56], "little"), int.from_bytes(program[56:58], "little")
    return any(int.from_bytes(program[offset + i * size :][:4], "little") == 3 for i in range(count))


def tree_layer(directories: Sequence[str], files: Mapping[str, bytes], links: Mapping[str, str]) -> bytes:
    """A layer of directories (parents first), files by content, and links by target; all names relative."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name in directories:
            tar.addfile(_entry(name, 0o1777 if name == "tmp" else 0o755, kind=tarfile.DIRTYPE))
        for name, data in files.items():
            tar.addfile(_entry(name, 0o755 if name.startswith("bin/") else 0o644, size=len(data)), io.BytesIO(data))
        for name, target in links.items():
            entry = _entry(name, 0o777, kind=tarfile.SYMTYPE)
            entry.linkname = target
            tar.addfile(entry)
    return out.getvalue()


def _entry(name: str, mode: int, *, size: int = 0, kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.mode = mode
    entry.size = size
    entry.type = kind
    return entry


def _config(image: Image, layer: str) -> dict[str, Any]:
    machine = os.uname().machine
    return {
        "created": _EPOCH,
        "architecture": ARCHITECTURES.get(machine, machine),
        "os": "linux",
        "config": {
            "Env": list(image.env),
            "Cmd": list(image.command),
            "Entrypoint": list(image.entrypoint),
            **({"User": image.user} if image.user else {}),
            **({"Labels": dict(image.labels)} if image.labels else {}),
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer}"]},
        "history": [{"created": _EPOCH, "created_by": "control.standalone.containerd"}],
    }


def _descriptor(kind: str, digest: str, size: int) -> dict[str, Any]:
    return {"mediaType": f"{_OCI}.{kind}", "digest": f"sha256:{digest}", "size": size}


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()

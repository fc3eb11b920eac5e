"""The images as one archive, without Docker: for `ctr -n k8s.io images import` on a node, and `docker load`.

The layers are the file trees of `make images`, the configuration is that of the Dockerfile (a test compares both).
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from control.standalone.containerd.archive import Image, write_archive
from koordlet.version import VERSION
from scripts.install import rootfs
from scripts.install.imagespecs import SPECS, ImageSpec

_LABELS = "org.opencontainers.image"


def write(archive: Path, specs: Sequence[ImageSpec] = SPECS) -> None:
    """Write the archive, in OCI image layout. Raises MissingPackages."""

    def made(spec: ImageSpec) -> Image:
        tree = rootfs.write(spec, archive.parent / spec.target)
        layer = tree.read_bytes()
        tree.unlink()
        return image(spec, layer)

    with ThreadPoolExecutor(len(specs)) as threads:  # most of the work is done by other processes and the kernel
        write_archive(archive, list(threads.map(made, specs)))


def image(spec: ImageSpec, layer: bytes) -> Image:
    """The image with a file tree as its only layer."""
    labels = {"title": "koordinator-py", "licenses": "Apache-2.0", "version": VERSION, "revision": rootfs.commit()}
    return Image(
        (spec.name,),
        layer,
        env=("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONDONTWRITEBYTECODE=1"),
        user=spec.account,
        labels={f"{_LABELS}.{name}": value for name, value in labels.items()},
    )

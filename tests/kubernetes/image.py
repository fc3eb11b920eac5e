"""The images that the manifests name, as an archive for containerd: the file trees of `make images`, without Docker."""

from __future__ import annotations

from pathlib import Path

from control.standalone.containerd.archive import Image, write_archive
from scripts.install import rootfs
from scripts.install.imagespecs import SPECS


def write(archive: Path) -> None:
    """Write the archive, in OCI image layout."""
    images = []
    for spec in SPECS:
        tree = rootfs.write(spec, archive.parent / spec.target)
        images.append(Image((spec.name,), tree.read_bytes(), spec.commands[:1]))
        tree.unlink()
    write_archive(archive, images)

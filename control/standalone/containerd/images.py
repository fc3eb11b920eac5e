"""The images of the own containerd: busybox, the pause image for sandboxes, and the host's programs."""

from __future__ import annotations

from pathlib import Path

from control.standalone.containerd import hostimage
from control.standalone.containerd.archive import Image, busybox_layer, write_archive
from control.standalone.containerd.config import PAUSE_IMAGE

BUSYBOX = "docker.io/library/busybox:latest"
"""The full reference of `busybox`; the content is Debian's."""
NAMES = (BUSYBOX, PAUSE_IMAGE, hostimage.HOST_IMAGE)


def write_images(path: Path) -> None:
    """Write the archive of all images. Raises `OSError`, and `ValueError` without a static busybox."""
    layer = busybox_layer()
    busybox = Image([BUSYBOX], layer, command=["sh"])
    pause = Image([PAUSE_IMAGE], layer, entrypoint=["/bin/sleep", "infinity"])
    write_archive(path, [busybox, pause, hostimage.image()])

"""The installation of `make demo-install`: the shipped images and manifests on the embedded cluster, and back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kubernetes.node import ROOT
from tests.kubernetes.processes import wait_for

pytestmark = pytest.mark.kubernetes


@pytest.fixture(scope="session")  # of the module would end with the first test, after which other modules run
def demo(
    image_archive: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """The running `make demo-install` and its output. Most of its time it waits, so that other tests run beside it."""
    assert os.environ.get("KOORD_ENTERED"), "these are directories of the machine outside of the namespaces of enter.sh"
    output = tmp_path_factory.mktemp("demo") / "output"
    command = [sys.executable, "-m", "scripts.install.demo", "--once", "--images", str(image_archive)]
    with output.open("wb") as stream:
        process = subprocess.Popen(command, cwd=ROOT, stdout=stream, stderr=stream, stdin=subprocess.DEVNULL)
    try:
        yield process, output
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)  # it takes its cluster down
            process.wait(120)


def test_the_installation_starts(demo: tuple[subprocess.Popen[bytes], Path]) -> None:
    process, output = demo
    wait_for(lambda: "kubelet: ready" in output.read_text() or process.poll() is not None, output.read_text, 300.0)
    assert process.poll() is None, output.read_text()


@pytest.mark.usefixtures("clean_node")
def test_the_images_are_installed_used_and_removed(demo: tuple[subprocess.Popen[bytes], Path]) -> None:
    process, output = demo
    status = process.wait(570)
    text = output.read_text()
    assert status == 0, text[-10000:]
    for line in ("objects left in the cluster: none", "processes: none", "cgroups: none", "mounts: none", "pins: none"):
        assert line in text

"""A real Kubernetes with this checkout installed from deploy/, for the session. enter.sh provides the namespaces.

KOORD_KUBERNETES names the minor version's folder below build/kubernetes (Makefile). The logs of all components are kept
in build/kubernetes/logs.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kubernetes import image
from tests.kubernetes.components import ROOT, Kubernetes
from tests.kubernetes.installation import install

BUILD = ROOT / "build" / "kubernetes"


@pytest.fixture(scope="session")
def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubernetes]:
    """The cluster, with the image of this checkout on its node and nothing of ours installed."""
    assert os.environ.get("KOORD_ENTERED"), "run `make test-kubernetes`: these tests need the namespaces of enter.sh"
    programs = BUILD / os.environ["KOORD_KUBERNETES"] / "bin"
    cluster = Kubernetes(tmp_path_factory.mktemp("kubernetes"), programs)
    try:
        cluster.start()
        archive = cluster.folder / "koordinator.tar"
        image.write(archive)
        cluster.import_image(archive)
        archive.unlink()
        yield cluster
    finally:
        cluster.stop()
        keep_logs(cluster.folder)


@pytest.fixture(scope="session")
def installed(kubernetes: Kubernetes) -> Kubernetes:
    """The cluster with CRDs, manager, scheduler and koordlet from deploy/."""
    install(kubernetes)
    return kubernetes


def keep_logs(folder: Path) -> None:
    logs = BUILD / "logs"
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir(parents=True)
    for log in folder.glob("*.log"):
        shutil.copy(log, logs)
    if Path("/var/log/pods").is_dir():
        shutil.copytree("/var/log/pods", logs / "pods", symlinks=True)

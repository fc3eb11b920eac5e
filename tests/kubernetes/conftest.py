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

HERE = Path(__file__).parent
BUILD = ROOT / "build" / "kubernetes"
ORDER = (
    "chart", "bad_input", "installation", "main_job", "suites", "admission", "api_server", "nodes", "faults", "nri",
)  # fmt: skip
"""The files of tests in the order in which they run: before the installation, on it, and what disturbs it."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the tests that share the cluster; all others, which have none or one of their own, come before them."""
    places = {HERE / f"test_{name}.py": place for place, name in enumerate(ORDER)}
    items.sort(key=lambda item: places.get(item.path, -1))


@pytest.fixture(scope="session")
def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubernetes]:
    """The cluster, with the image of this checkout on its node and nothing of ours installed."""
    assert os.environ.get("KOORD_ENTERED"), "run `make test-kubernetes`: these tests need the namespaces of enter.sh"
    programs = BUILD / os.environ.get("KOORD_KUBERNETES", "v1.35") / "bin"
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

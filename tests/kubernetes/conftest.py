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

from scripts.install import archive
from tests.kubernetes.components import Kubernetes
from tests.kubernetes.guestcluster import GuestNode
from tests.kubernetes.installation import install
from tests.kubernetes.node import ROOT, import_image

HERE = Path(__file__).parent
BUILD = ROOT / "build" / "kubernetes"
ORDER = (
    "chart", "kustomize", "bad_input", "installation", "main_job", "claims", "descheduler", "suites", "admission",
    "api_server", "unified_node", "nodes", "faults", "nri",
)  # fmt: skip
"""The files of tests in the order in which they run: before the installation, on it, and what disturbs it."""
LEFT_ON_NODE = ("/var/lib/koordlet", "/var/run/koordlet", "/var/log/koordlet", "/etc/runtime/hookserver.d")
"""What an uninstallation leaves (docs/install.md); here it would reach the koordlets of later tests."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the tests that share the cluster; all others, which have none or one of their own, come before them. The
    embedded cluster starts first and must be gone before the cluster starts, whose kubelet needs the same ports and
    cgroups; what runs in between uses free ports and no cgroups."""
    places: dict[Path, float] = {HERE / f"test_{name}.py": place for place, name in enumerate(ORDER)}
    embedded = {"test_the_installation_starts": -3.0, "test_the_images_are_installed_used_and_removed": -1.0}
    places[HERE / "test_embedded_suites.py"] = -0.5
    items.sort(key=lambda item: embedded.get(item.name, places.get(item.path, -2.0)))


@pytest.fixture(scope="session")
def image_archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The images of this checkout, which the manifests name."""
    path = tmp_path_factory.mktemp("images") / "images.tar"
    archive.write(path)
    return path


@pytest.fixture
def clean_node() -> Iterator[None]:
    """Remove what the embedded cluster leaves on the node."""
    assert os.environ.get("KOORD_ENTERED"), "these are directories of the machine outside of the namespaces of enter.sh"
    yield
    for directory in LEFT_ON_NODE:
        for path in Path(directory).glob("*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.fixture(scope="session")
def kubernetes(tmp_path_factory: pytest.TempPathFactory, image_archive: Path) -> Iterator[Kubernetes]:
    """The cluster, with the images of this checkout on its node and nothing of ours installed."""
    assert os.environ.get("KOORD_ENTERED"), "run `make test-kubernetes`: these tests need the namespaces of enter.sh"
    programs = BUILD / os.environ.get("KOORD_KUBERNETES", "v1.35") / "bin"
    cluster = Kubernetes(tmp_path_factory.mktemp("kubernetes"), programs)
    try:
        cluster.start()
        import_image(image_archive)
        yield cluster
    finally:
        cluster.stop()
        keep_logs(cluster.folder)


@pytest.fixture(scope="session")
def guest(kubernetes: Kubernetes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuestNode]:
    """The second node, which boots but has not joined."""
    node = GuestNode(kubernetes, tmp_path_factory.mktemp("guest"))
    try:
        yield node
    finally:
        node.leave()


@pytest.fixture(scope="session")
def installed(request: pytest.FixtureRequest, kubernetes: Kubernetes) -> Kubernetes:
    """The cluster with CRDs, manager, scheduler and koordlet from deploy/."""
    if any("guest" in getattr(item, "fixturenames", ()) for item in request.session.items):
        request.getfixturevalue("guest")  # it boots beside the tests before those that need it
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

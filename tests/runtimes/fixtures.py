"""Fixtures of real container runtimes; tests/conftest.py offers them to every test. Mark tests that use them
`runtime`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # imported by every test run: gRPC is imported with the first fixture
    from control.standalone.kubelet.runtimes.criclient import CriClient
    from tests.runtimes.daemons import Containerd, Dockerd


@pytest.fixture(scope="session")
def _containerd() -> Iterator[Containerd]:
    from tests.runtimes.daemons import Containerd, running

    with running(Containerd()) as daemon:
        yield daemon


@pytest.fixture
def containerd(_containerd: Containerd) -> Iterator[Containerd]:
    """The session's containerd; pods and cgroup parents are removed after each test. Do not restart it."""
    yield _containerd
    _containerd.remove_pods()
    _containerd.clear_parents()


@pytest.fixture
async def cri(containerd: Containerd) -> AsyncIterator[CriClient]:
    """A client of `containerd`, without a proxy."""
    from control.standalone.kubelet.runtimes.criclient import CriClient

    async with CriClient(str(containerd.socket)) as client:
        yield client


@pytest.fixture
def new_containerd() -> Iterator[Callable[..., Containerd]]:
    """`new_containerd()`: one that the test may stop, kill and start again; about a second."""
    from tests.runtimes.daemons import Containerd

    daemons: list[Containerd] = []

    def make(*, wrapper: bool = True) -> Containerd:
        daemon = Containerd(wrapper=wrapper)
        daemons.append(daemon)
        daemon.start()
        daemon.import_images()
        return daemon

    yield make
    for daemon in daemons:
        daemon.close()


@pytest.fixture
def new_dockerd() -> Iterator[Callable[..., Dockerd]]:
    """`new_dockerd(live_restore=…)`: one that the test may stop, kill and start again; about a second."""
    from tests.runtimes.daemons import Dockerd

    daemons: list[Dockerd] = []

    def make(*, live_restore: bool = True) -> Dockerd:
        daemon = Dockerd(live_restore=live_restore)
        daemons.append(daemon)
        daemon.start()
        daemon.load_images()
        return daemon

    yield make
    for daemon in daemons:
        daemon.close()


@pytest.fixture(scope="session")
def _dockerd() -> Iterator[Dockerd]:
    from tests.runtimes.daemons import Dockerd

    daemon = Dockerd()
    try:
        daemon.start()
        daemon.load_images()
        yield daemon
    finally:
        daemon.close()


@pytest.fixture
def dockerd(_dockerd: Dockerd) -> Iterator[Dockerd]:
    """The session's dockerd; containers and cgroup parents are removed after each test."""
    yield _dockerd
    names = _dockerd.docker("ps", "--all", "--quiet").stdout.split()
    if names:
        _dockerd.docker("rm", "--force", *names)
    _dockerd.clear_parents()

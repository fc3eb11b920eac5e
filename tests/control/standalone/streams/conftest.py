"""One node for all tests of a module: its start takes two seconds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.control.standalone.streams.streamnode import StreamNode
    from tests.runtimes.daemons import Containerd


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, _containerd: Containerd) -> Iterator[StreamNode]:
    from tests.control.standalone.streams.streamnode import busybox, running

    with running(tmp_path_factory.mktemp("streams"), _containerd) as server:
        server.create("p", busybox("main", "exec sleep 1000"), busybox("other", "exec sleep 1000"))
        yield server
    _containerd.remove_pods()
    _containerd.clear_parents()

"""Both servers, for one file of tests: idle ones would cost the tests that follow."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.kubernetes.apidiff.servers import ComparedServer


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ComparedServer, ComparedServer]]:
    from tests.kubernetes.apidiff.servers import embedded_server, real_server
    from tests.kubernetes.node import ROOT

    programs = ROOT / "build" / "kubernetes" / os.environ.get("KOORD_KUBERNETES", "v1.35") / "bin"
    folder: Path = tmp_path_factory.mktemp("apidiff")
    with real_server(folder / "real", programs) as real, embedded_server(folder / "embedded") as embedded:
        yield real, embedded

"""What systemd is told, and that nothing happens without it."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from koordlet.app.systemd import READY, notify


@pytest.mark.parametrize("abstract", [False, True], ids=["a path", "an abstract name"])
def test_the_supervisor_is_told(tmp_path: Path, abstract: bool) -> None:
    name = f"@{tmp_path}/notify" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind("\0" + name[1:] if abstract else name)
        supervisor.settimeout(60)
        assert notify(READY, {"NOTIFY_SOCKET": name})
        assert supervisor.recv(100) == b"READY=1"


def test_without_a_supervisor_nothing_happens() -> None:
    assert not notify(READY, {})


def test_a_supervisor_that_is_gone_costs_nothing_but_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert not notify(READY, {"NOTIFY_SOCKET": str(tmp_path / "none")})
    assert "supervisor not told" in caplog.text

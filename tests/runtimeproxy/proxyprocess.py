"""The real koord-runtime-proxy as a process of a test, in its own folder."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

from tests.ports import free_port
from tests.runtimes.daemons import Daemon

ROOT = Path(__file__).resolve().parents[2]


class ProxyProcess(Daemon):
    """In front of `backend`. `hooks`: its registrations; `socket`: where it listens."""

    def __init__(self, backend: Path, *flags: str, folder: Path | None = None) -> None:
        super().__init__("proxy")
        self.backend = backend
        self.socket = (folder or self.root / "run") / "proxy.sock"
        self.hooks = self.root / "hooks"
        self.pages = f"http://127.0.0.1:{free_port()}"
        self.flags = flags

    def argv(self) -> list[str]:
        return [
            sys.executable, "-m", "runtimeproxy", f"--koord-runtimeproxy-endpoint=unix://{self.socket}",
            f"--remote-runtime-service-endpoint={self.backend}", f"--hook-server-dir={self.hooks}",
            f"--metrics-addr={self.pages.removeprefix('http://')}", *self.flags,
        ]  # fmt: skip

    def ready(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(self.socket))
            except OSError:
                return False
        return True

    def ended(self) -> int:
        """Wait until it ends by itself; returns its exit status."""
        assert self.process is not None
        status = self.process.wait(60.0)
        self.process = None
        return status

    def run(self) -> subprocess.CompletedProcess[str]:
        """Until it ends by itself."""
        return subprocess.run(self.argv(), cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)

    def health(self) -> int:
        """The status of /healthz."""
        try:
            with urllib.request.urlopen(f"{self.pages}/healthz", timeout=30) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    def metric(self, series: str) -> float:
        """One series' value; 0 when it is absent."""
        with urllib.request.urlopen(f"{self.pages}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        return next((float(line.rpartition(" ")[2]) for line in lines if line.rpartition(" ")[0] == series), 0.0)

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self.root)

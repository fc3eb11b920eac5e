"""A containerd that speaks NRI: Debian 13's 1.7, which scripts/nri_containerd.sh has put into build/ (Debian 12's 1.6
does not). Everything else is as with `Containerd`."""

from __future__ import annotations

from pathlib import Path

from tests.runtimes.daemons import Containerd

PROGRAMS = Path(__file__).resolve().parents[2] / "build/nri-containerd/usr/bin"
PATIENCE = "100s"
"""For a plugin to register and to answer; containerd's own 5 s and 2 s are for machines that never stand still."""


class NRIContainerd(Containerd):
    """`nri` is the socket for plugins."""

    def __init__(self) -> None:
        assert (PROGRAMS / "containerd").exists(), f"no containerd in {PROGRAMS}: run scripts/nri_containerd.sh"
        super().__init__(wrapper=False)
        self.nri = self.root / "nri.sock"
        lines = [
            '[plugins."io.containerd.nri.v1.nri"]',
            "disable = false",
            f'socket_path = "{self.nri}"',
            f'plugin_path = "{self.root / "none"}"',
            f'plugin_config_path = "{self.root / "none"}"',
            f'plugin_registration_timeout = "{PATIENCE}"',
            f'plugin_request_timeout = "{PATIENCE}"',
        ]
        with self.folder.config.open("a") as config:
            config.write("\n".join(lines) + "\n")

    def argv(self) -> list[str]:
        """With its own shim first in the path."""
        return ["env", f"PATH={PROGRAMS}:/usr/sbin:/usr/bin:/sbin:/bin", *super().argv()]

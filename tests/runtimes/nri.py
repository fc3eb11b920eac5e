"""A containerd with NRI: Debian 13's 1.7, which scripts/nri_containerd.sh unpacks into build/ (Debian 12's 1.6 has
none). Everything else is as in `Containerd`."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from tests.runtimes.daemons import Containerd

PROGRAMS = Path(__file__).resolve().parents[2] / "build/nri-containerd/usr/bin"
PATIENCE = "100s"
"""Timeouts for registration and responses of a plugin; containerd's defaults of 5 s and 2 s are too short for machines
that stall."""


RELAY = """#!{python} -IS
import os, select, socket, threading

runtime = socket.socket(fileno=int(os.environ["NRI_PLUGIN_SOCKET"]))
door = socket.socket(socket.AF_UNIX)
door.bind("{socket}.new")
door.listen()
os.rename("{socket}.new", "{socket}")
ready = select.select([runtime, door], [], [])[0]
if door not in ready:
    raise SystemExit("the runtime hung up before a plugin came")
plugin = door.accept()[0]


def copy(source, target):
    try:
        while data := source.recv(1 << 16):
            target.sendall(data)
    except OSError:
        pass
    os._exit(0)


threading.Thread(target=copy, args=(runtime, plugin)).start()
copy(plugin, runtime)
"""
"""A plugin that the runtime starts; a client of its socket talks to the runtime."""


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
            f'plugin_path = "{self.root / "plugins"}"',
            f'plugin_config_path = "{self.root / "conf.d"}"',
            f'plugin_registration_timeout = "{PATIENCE}"',
            f'plugin_request_timeout = "{PATIENCE}"',
        ]
        with self.folder.config.open("a") as config:
            config.write("\n".join(lines) + "\n")

    def argv(self) -> list[str]:
        """With its own shim first in PATH."""
        return ["env", f"PATH={PROGRAMS}:/usr/sbin:/usr/bin:/sbin:/bin", *super().argv()]

    def preinstall(self, name: str, config: str) -> Path:
        """A plugin that the next start launches, with this configuration; returns the socket at which a test can play
        it. Only such a plugin gets a configuration; a plugin that connects to `nri` does not."""
        socket = self.root / "relay.sock"
        for folder in ("plugins", "conf.d"):
            (self.root / folder).mkdir(exist_ok=True)
        program = self.root / "plugins" / name
        program.write_text(RELAY.format(python=sys.executable, socket=socket))
        program.chmod(0o755)
        (self.root / "conf.d" / f"{name}.conf").write_text(config)
        return socket

    def no_plugins(self) -> None:
        """The next start launches no plugin."""
        shutil.rmtree(self.root / "plugins")

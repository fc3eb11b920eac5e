"""A containerd that speaks NRI: Debian 13's 1.7, which scripts/nri_containerd.sh has put into build/ (Debian 12's 1.6
does not). Everything else is as with `Containerd`."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from tests.runtimes.daemons import Containerd

PROGRAMS = Path(__file__).resolve().parents[2] / "build/nri-containerd/usr/bin"
PATIENCE = "100s"
"""For a plugin to register and to answer; containerd's own 5 s and 2 s are for machines that never stand still."""


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
"""A plugin that the runtime starts; who connects to its socket speaks to the runtime."""


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
        """With its own shim first in the path."""
        return ["env", f"PATH={PROGRAMS}:/usr/sbin:/usr/bin:/sbin:/bin", *super().argv()]

    def preinstall(self, name: str, config: str) -> Path:
        """A plugin that the next start brings along, with this configuration: the socket at which it may be played.

        Only such a plugin is sent a configuration; who comes to `nri` by itself is not.
        """
        socket = self.root / "relay.sock"
        for folder in ("plugins", "conf.d"):
            (self.root / folder).mkdir(exist_ok=True)
        program = self.root / "plugins" / name
        program.write_text(RELAY.format(python=sys.executable, socket=socket))
        program.chmod(0o755)
        (self.root / "conf.d" / f"{name}.conf").write_text(config)
        return socket

    def no_plugins(self) -> None:
        """The next start brings none along."""
        shutil.rmtree(self.root / "plugins")

"""A second node of the cluster: a virtual machine with kernel 6.1 and cgroup v2 (scripts/guest.py).

Its network device is on the bridge of enter.sh. Emulated CPUs take minutes to boot and to unpack the image, so the
machine starts beside other tests, at the lowest priority, and joins the cluster when a test needs it.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from scripts.install import archive
from scripts.install.imagespecs import NODE as NODE_IMAGE
from tests.kubernetes.components import Kubernetes
from tests.kubernetes.node import ROOT, NodeSpec
from tests.kubernetes.processes import wait_for

GUEST_NODE: Final = NodeSpec("node-v2", "10.88.0.2", "10.89.128.0/17")
JOIN: Final = "join"
"""A file in the guest's output folder: the kubelet may start."""
READY: Final = "ready"
"""The same: all components serve."""
TAP: Final = "guest0"
BRIDGE: Final = "node0"
START_TIMEOUT_S: Final = 1200.0
LIFE_S: Final = 3600.0
MEMORY: Final = "5G"


class GuestNode:
    """The virtual machine, which boots at once. Its logs are in `out`."""

    def __init__(self, cluster: Kubernetes, out: Path) -> None:
        self.cluster, self.out = cluster, out
        cluster.admit(GUEST_NODE)
        image = cluster.folder / "node-image.tar"
        archive.write(image, [NODE_IMAGE])
        self._undo = ExitStack()
        ip("tuntap", "add", "dev", TAP, "mode", "tap")
        self._undo.callback(ip, "link", "delete", TAP)
        ip("link", "set", TAP, "master", BRIDGE, "up")
        ip("route", "add", GUEST_NODE.pods, "via", GUEST_NODE.address)
        self._undo.callback(ip, "route", "delete", GUEST_NODE.pods)
        program = [sys.executable, "-m", "tests.kubernetes.guestnode"]
        paths = [str(cluster.folder), str(cluster.programs.resolve()), str(image)]
        options = [f"--out={out}", f"--timeout={LIFE_S}", f"--memory={MEMORY}", f"--tap={TAP}"]
        guest = ["nice", "-n", "19", sys.executable, "scripts/guest.py", *options, "--", *program, *paths]
        self.process = subprocess.Popen(guest, cwd=ROOT)
        self._undo.callback(self._end)

    def join(self) -> None:
        """Start the kubelet, and wait until the node is Ready."""
        (self.out / JOIN).touch()
        wait_for(self._serves, f"the guest's components serve, see {self.out}", START_TIMEOUT_S)
        wait_for(lambda: self.cluster.node_ready(GUEST_NODE.name), f"node {GUEST_NODE.name} is Ready", START_TIMEOUT_S)

    def _serves(self) -> bool:
        assert self.process.poll() is None, f"the guest ended with status {self.process.returncode}, see {self.out}"
        return (self.out / READY).exists()

    def leave(self) -> None:
        """Stop the machine and delete the node; nothing if that is done."""
        self._undo.close()

    def _end(self) -> None:
        self.process.terminate()
        self.process.wait()
        self.cluster.kubectl("delete", "node", GUEST_NODE.name, "--ignore-not-found")


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)

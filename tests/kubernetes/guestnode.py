"""Runs in the guest of scripts/guest.py: makes it a node of the cluster outside (guestcluster.py).

    python -m tests.kubernetes.guestnode FOLDER PROGRAMS IMAGES

FOLDER has the cluster's credentials. The components' logs go to $GUEST_OUT. The kubelet starts when JOIN is there;
READY appears when all serve.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from scripts.guest import HOST
from tests.kubernetes.components import ADDRESS
from tests.kubernetes.guestcluster import GUEST_NODE, JOIN, READY
from tests.kubernetes.node import import_image, node_components, write_node_configuration
from tests.kubernetes.processes import Processes

START_TIMEOUT_S: Final = 900.0
"""Everything takes ten times as long on emulated CPUs."""
BEFORE_JOINING: Final = "koord-runtime-proxy"
"""The last component that starts before JOIN exists."""
MODULES: Final = (
    "virtio_net", "overlay", "bridge", "br_netfilter", "veth", "nf_tables", "nft_compat", "nft_chain_nat",
    "xt_comment", "xt_mark", "xt_conntrack", "xt_MASQUERADE", "xt_statistic", "xt_addrtype",
)  # fmt: skip
OWN: Final = ("/var/lib/containerd", "/var/lib/kubelet", "/var/lib/koordlet", "/etc/cni/net.d", "/var/lib/cni")
"""Directories that are empty here. containerd's overlays need a file system that is not an overlay itself."""
CACHED: Final = ("/usr/bin", "/usr/sbin", "/usr/lib/cni")
"""Programs that stay in memory: the root file system is read again at each use."""

DEVICE: Final = "basename $(dirname /sys/class/net/*/device)"
"""The only network device that is not virtual: udev names it."""


def prepare() -> None:
    """Mounts, modules and the network of a node."""
    commands = [f"mkdir -p {path} && mount -t tmpfs -o size=3G tmpfs {path}" for path in OWN]
    commands += [f"mount --bind {HOST}{path} {path}" for path in CACHED]
    commands += [
        "mkdir -p /etc/runtime/hookserver.d /var/run/koordlet",
        "mount -t bpf bpf /sys/fs/bpf",
        "mount --make-rshared /",
        f"modprobe -a {' '.join(MODULES)}",
        "ip link set lo up",
        f"ip address add {GUEST_NODE.address}/24 dev $({DEVICE})",
        f"ip link set $({DEVICE}) up",
        f"ip route add default via {ADDRESS}",
        "echo 1 >/proc/sys/net/ipv4/ip_forward",
    ]
    for command in commands:
        subprocess.run(["sh", "-c", command], check=True)


def main(folder: Path, programs: Path, images: Path) -> None:
    prepare()
    write_node_configuration(GUEST_NODE, folder / "pki")
    logs = Path(os.environ["GUEST_OUT"])
    node = Processes(logs, node_components(GUEST_NODE, folder, Path(f"{HOST}{programs}")), START_TIMEOUT_S)
    for name in node.components:
        node.start_component(name)
        print(f"guest: {name} serves, {Path('/proc/uptime').read_text().split()[0]} s after boot", flush=True)
        if name == BEFORE_JOINING:
            import_image(Path(f"{HOST}{images}"))
            print("guest: the image is imported", flush=True)
            while not (logs / JOIN).exists():
                time.sleep(1.0)
    (logs / READY).touch()
    signal.pause()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))

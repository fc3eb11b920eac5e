"""sched_latency by bcc: a child process compiles, loads, pins and exits; this process opens the pins.

bcc loads LLVM into its process (150 MB and more), so it runs in a child. The child is the system's Python with Debian's
python3-bpfcc (``python3 bpf/bcc/load.py``) and needs the headers of the running kernel. It needs a bpf file system,
because pins are the only way to hand the tables over.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from koordlet.probes.loading import bpffs
from koordlet.probes.loading.frame import Build, ProbeError, as_probe_error, claim_pins, open_pins, pin_key
from koordlet.probes.schedlatency.loader import PROBE, LoadedProbe
from koordlet.probes.schedlatency.sizes import Sizes
from koordlet.probes.schedlatency.tables import READ_MAPS

PYTHON = Path("/usr/bin/python3")
INSTALLED = Path(__file__).parents[1] / "bpf"
SOURCE_DIR = INSTALLED if INSTALLED.is_dir() else Path(__file__).parents[3] / "bpf"
"""In `koordlet/probes` of an installed package, at the top of a checkout."""
SOURCES = (
    "histogram.h",
    "hash_slot.h",
    "slots.h",
    "culprit_matrix.h",
    "sched_latency.h",
    "sched_latency_core.h",
)
"""Headers that the program includes; a change of any gives other pins."""
TIMEOUT_S = 900.0
"""Compiling takes 0.6 s on a current machine and minutes on an emulated one; this only ends a child that hangs."""


def load(sizes: Sizes, cgroup_v2: bool, pin_dir: Path | None, python: Path = PYTHON) -> LoadedProbe:
    """Raises `ProbeError` with the last line of the child's error output."""
    if pin_dir is None:
        raise ProbeError("needs a bpf file system to hand the tables over")
    sizes = sizes.without_shared()
    script = SOURCE_DIR / "bcc" / "load.py"
    sources = sorted([*(SOURCE_DIR / name for name in SOURCES), *script.parent.iterdir()])
    with as_probe_error():
        content = b"".join(path.read_bytes() for path in sources if path.is_file())
        build = Build(PROBE, (), sizes.entries(), sizes.settings(cgroup_v2))
        pins = claim_pins(pin_dir, PROBE, "bcc-" + pin_key(content, build))
        reused = (pins / bpffs.READY).is_dir()
        if not reused:
            _compile(script, sizes, cgroup_v2, pins, python)
        return LoadedProbe(open_pins(pins, READ_MAPS, reused=reused), sizes, "bcc")


def _compile(script: Path, sizes: Sizes, cgroup_v2: bool, pins: Path, python: Path) -> None:
    numbers = [int(cgroup_v2), sizes.cgroups, sizes.matrix, sizes.stamps, sizes.cpus]
    command = [str(python), str(script), str(pins), *map(str, numbers)]
    bpffs.remove_pins(pins)
    pins.mkdir(mode=0o700)
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.CalledProcessError as error:
        bpffs.remove_pins(pins)
        lines = [line for line in error.stderr.splitlines() if line.strip()]
        raise ProbeError(lines[-1] if lines else f"{python} exited with {error.returncode}") from error
    except subprocess.TimeoutExpired as error:
        bpffs.remove_pins(pins)
        raise ProbeError(f"compiling took more than {TIMEOUT_S:.0f} s") from error

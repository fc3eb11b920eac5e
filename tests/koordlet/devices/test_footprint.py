"""A node without GPUs pays nothing for them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

LOADED = (
    "import sys\n"
    "print(sorted({'pynvml', 'koordlet.devices.nvml', 'koordlet.metricsadvisor.periodic.gpu'} & set(sys.modules)))"
)


def loaded_by(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", f"{code}\n{LOADED}"], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_gate_off_loads_nothing() -> None:
    assert loaded_by("import koordlet.daemon") == "[]"


def test_a_look_without_a_driver_does_not_load_pynvml(tmp_path: Path) -> None:
    look = f"""
from pathlib import Path
from koordlet.devices.gpus import Gpus
from koordlet.system.roots import Roots
look = Gpus(Roots.under(Path({str(tmp_path)!r})), lambda: 0.0).look()
assert look.problem
"""
    assert loaded_by(look) == "['koordlet.devices.nvml']"

"""A node without GPUs loads no GPU code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
LOADED = (
    "import sys\n"
    "print(sorted({'pynvml', 'koordlet.devices.nvml', 'koordlet.metricsadvisor.periodic.gpu'} & set(sys.modules)))"
)


def loaded_by(code: str) -> str:
    command = [sys.executable, "-c", f"{code}\n{LOADED}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_without_the_gate_nothing_is_loaded() -> None:
    assert loaded_by("import koordlet.daemon") == "[]"


def test_a_reading_without_a_driver_does_not_load_pynvml(tmp_path: Path) -> None:
    code = f"""
from pathlib import Path
from koordlet.devices.gpus import Gpus
from tests.koordlet.roots import roots_under
snapshot = Gpus(roots_under(Path({str(tmp_path)!r})), lambda: 0.0).read()
assert snapshot.problem
"""
    assert loaded_by(code) == "['koordlet.devices.nvml']"

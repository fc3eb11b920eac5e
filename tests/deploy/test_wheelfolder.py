"""The wheel's packages and commands do not meet another project's package `control`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from scripts.wheelfolder import PACKAGES, move_packages

RUN = "import koordinator_py; raise SystemExit(koordinator_py.{})"
MODULE = "import os\ndef main() -> str:\n    return os.popen('{python} -m control.child').read().strip()\n"


def test_commands_and_their_processes_import_the_own_packages(tmp_path: Path) -> None:
    for name in PACKAGES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
    (tmp_path / "control" / "tool.py").write_text(MODULE.format(python=sys.executable))
    (tmp_path / "control" / "child.py").write_text("print('ours')")
    information = tmp_path / "koordinator_py-0.dist-info"
    information.mkdir()
    (information / "entry_points.txt").write_text("[console_scripts]\nkoord-Tool = control.tool:main\n")
    move_packages(tmp_path)
    assert (
        information / "entry_points.txt"
    ).read_text() == "[console_scripts]\nkoord-Tool = koordinator_py:koord_Tool\n"
    assert not (tmp_path / "control").exists()
    (tmp_path / "control").mkdir()
    (tmp_path / "control" / "__init__.py").write_text("raise SystemExit('another project')")
    done = subprocess.run(
        [sys.executable, "-c", RUN.format("koord_Tool()")],
        cwd=information, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stderr == "ours\n"

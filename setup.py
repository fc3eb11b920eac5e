"""Build steps that pyproject.toml cannot express: modules generated from .proto files, BPF objects and sources.

They are written next to their sources before the packages are collected, so that wheels and source distributions
contain them. A checkout (an editable install) gets them from scripts/setup.sh instead.
"""

import runpy
import shutil
import subprocess
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent


class BuildPy(build_py):
    """Generate, then build as usual; the sources that bcc compiles on the node are installed beside the objects."""

    def run(self) -> None:
        runpy.run_path(str(ROOT / "scripts" / "gen_proto.py"))["generate"](ROOT)
        if not self.editable_mode:
            subprocess.run(["make", "-C", str(ROOT / "bpf")], check=True)
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib) / "koordlet/probes/bpf"
            headers = [path for path in ROOT.glob("bpf/*.h") if path.name != "vmlinux.h"]
            for source in [*headers, *ROOT.glob("bpf/bcc/*.*"), *ROOT.glob("bpf/LICENSE.*")]:
                destination = target / source.relative_to(ROOT / "bpf")
                destination.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, destination)


setup(cmdclass={"build_py": BuildPy})

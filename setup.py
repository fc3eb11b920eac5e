"""Build steps that pyproject.toml cannot express: the modules generated from .proto files.

They are written next to their sources before the packages are collected, so that wheels, source
distributions and editable installs contain them.
"""

import runpy
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent


class BuildPy(build_py):
    """Generate, then build as usual."""

    def run(self) -> None:
        runpy.run_path(str(ROOT / "scripts" / "gen_proto.py"))["generate"](ROOT)
        super().run()


setup(cmdclass={"build_py": BuildPy})

"""Gives the packages in a wheel one folder of this project's own: `control` is also the name of a project on PyPI.

setup.py runs this before it packs the files. The commands put the folder first in the search path, also for the
processes that they start.
"""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

FOLDER = "koordinator_py"
PACKAGES = ("koordlet", "control", "runtimeproxy", "devicedaemon")
_HEAD = '''"""The commands of koordinator-py; its packages are in this folder."""

import os
import sys

_FOLDER = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, _FOLDER)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (_FOLDER, os.environ.get("PYTHONPATH"))))
'''
_COMMAND = """

def {function}():
    from {module} import {attribute}

    return {attribute}()
"""


def move_packages(root: Path) -> None:
    """Move the packages in `root`, the files of a wheel, and let its commands find them."""
    folder = root / FOLDER
    folder.mkdir()
    for name in PACKAGES:
        (root / name).rename(folder / name)
    [information] = root.glob("*.dist-info")
    text, entries = _HEAD, "[console_scripts]\n"
    for command in metadata.Distribution.at(information).entry_points:
        function = command.name.replace("-", "_")
        text += _COMMAND.format(function=function, module=command.module, attribute=command.attr)
        entries += f"{command.name} = {FOLDER}:{function}\n"
    (folder / "__init__.py").write_text(text, encoding="utf-8")
    (information / "entry_points.txt").write_text(entries, encoding="utf-8")

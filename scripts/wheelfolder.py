"""Gives the packages in a wheel one folder of this project's own: `control` is also the name of a project on PyPI.

setup.py runs this before it packs the files. The commands put the folder first in the search path, also for the
processes that they start.
"""

from __future__ import annotations

import configparser
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
    [path] = root.glob("*.dist-info/entry_points.txt")
    entries = configparser.ConfigParser(delimiters="=")
    entries.optionxform = str  # type: ignore[assignment,method-assign]
    entries.read(path, encoding="utf-8")
    text = _HEAD
    for command, target in entries["console_scripts"].items():
        module, _, attribute = target.partition(":")
        function = command.replace("-", "_")
        text += _COMMAND.format(function=function, module=module, attribute=attribute)
        entries["console_scripts"][command] = f"{FOLDER}:{function}"
    (folder / "__init__.py").write_text(text, encoding="utf-8")
    with path.open("w", encoding="utf-8") as file:
        entries.write(file)

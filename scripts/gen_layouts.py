"""Generates koordlet/probes/layouts.py from the headers in bpf/: constants, enumerations and numpy types of structures.

    python3 scripts/gen_layouts.py          # or: make -C bpf layouts

The headers are written so that this small parser understands them: structures of u8, u32, u64, s32, s64, of other
structures and of arrays of these; `#define NAME number`; enumerations in which each member has a number. Each member
must be naturally aligned, so that the compiler inserts no padding; anything else is an error. A test compares the
generated file with the headers.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUTPUT = ROOT / "koordlet/probes/layouts.py"
HEADERS = (
    "histogram.h",
    "hash_slot.h",
    "slots.h",
    "owners.h",
    "culprit_matrix.h",
    "rows.h",
    "sched_latency.h",
    "block_io.h",
    "net_stall.h",
    "mem_stall.h",
    "oom.h",
    "cgroup_stats.h",
)
"""In the order of their dependencies."""
NUMPY_TYPES = {"u8": "u1", "u32": "u4", "u64": "u8", "s32": "i4", "s64": "i8"}
SCALAR_SIZES = {"u8": 1, "u32": 4, "u64": 8, "s32": 4, "s64": 8}
_ITEM = re.compile(
    r"^#define (?P<define>\w+) (?P<number>\d+)\b"
    r"|^enum (?P<enum>\w+) \{(?P<members>.*?)\};"
    r"|^struct (?P<struct>\w+) \{(?P<fields>.*?)\};",
    re.M | re.S,
)
_COMMENT = re.compile(r"/\*.*?\*/", re.S)
_FIELD = re.compile(r"(?P<type>(?:struct )?\w+) (?P<name>\w+)(?P<dimensions>(?:\[\w+\])*)")
HEAD = '''"""The layout of the probes' tables, generated from bpf/*.h by scripts/gen_layouts.py: do not edit.

A structure is a numpy type, an enumeration a dictionary of its members' numbers, a `#define` a number.
"""

from typing import Any, Final

import numpy as np

'''


class Layouts:
    """The definitions of the headers parsed so far; `lines` is the generated text."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self._sizes: dict[str, int] = dict(SCALAR_SIZES)
        self._alignments: dict[str, int] = dict(SCALAR_SIZES)
        self.lines: list[str] = []

    def header(self, name: str, text: str) -> None:
        """Append one header's definitions."""
        self.lines.append(f"\n# bpf/{name}\n")
        for item in _ITEM.finditer(_COMMENT.sub("", text)):
            if item["define"]:
                self.numbers[item["define"]] = int(item["number"])
                self.lines.append(f"{item['define']}: Final = {item['number']}\n")
            elif item["enum"]:
                self._enumeration(item["enum"], item["members"])
            else:
                self._structure(item["struct"], item["fields"])

    def _enumeration(self, name: str, body: str) -> None:
        members = {}
        for member in filter(None, (part.strip() for part in body.split(","))):
            key, _, number = member.partition(" = ")
            members[key] = self.numbers[key] = int(number)
        pairs = ", ".join(f'"{key}": {number}' for key, number in members.items())
        self.lines.append(f"{name.upper()}: Final = {{{pairs}}}\n")

    def _structure(self, name: str, body: str) -> None:
        fields, offset, alignment = [], 0, 1
        for declaration in filter(None, (part.strip() for part in body.split(";"))):
            match = _FIELD.fullmatch(declaration)
            if match is None:
                raise ValueError(f"struct {name}: {declaration!r} is not understood")
            kind = match["type"].removeprefix("struct ")
            shape = [self._number(n) for n in re.findall(r"\[(\w+)\]", match["dimensions"])]
            if offset % self._alignments[kind]:
                raise ValueError(f"struct {name}: {match['name']} at offset {offset} is not aligned")
            size = self._sizes[kind]
            for length in shape:
                size *= length
            offset, alignment = offset + size, max(alignment, self._alignments[kind])
            numpy_type = f'"{NUMPY_TYPES[kind]}"' if kind in NUMPY_TYPES else kind.upper()
            dimensions = f", {shape[0] if len(shape) == 1 else tuple(shape)}" if shape else ""
            fields.append(f'("{match["name"]}", {numpy_type}{dimensions})')
        if offset % alignment:
            raise ValueError(f"struct {name}: {offset} bytes are not a multiple of its alignment {alignment}")
        self._sizes[name], self._alignments[name] = offset, alignment
        self.lines.append(f"{name.upper()}: Final[np.dtype[Any]] = np.dtype([{', '.join(fields)}])\n")

    def _number(self, word: str) -> int:
        return self.numbers[word] if word in self.numbers else int(word)


def generate(directory: Path) -> str:
    """The module's text."""
    layouts = Layouts()
    for name in HEADERS:
        layouts.header(name, (directory / name).read_text())
    return HEAD + "".join(layouts.lines)


if __name__ == "__main__":
    text = generate(ROOT / "bpf")
    OUTPUT.write_text(text)
    sys.stdout.write(f"{OUTPUT.relative_to(ROOT)}: {len(text.splitlines())} lines\n")

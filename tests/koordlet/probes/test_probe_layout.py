"""layout.py against the headers that the programs are compiled with."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import numpy as np
import pytest

from koordlet.probes.schedlatency import layout
from koordlet.probes.schedlatency.layout import Sizes

BPF = Path(__file__).parents[3] / "bpf"
HEADER = (BPF / "slots.h").read_text() + (BPF / "sched_latency.h").read_text()
NUMPY_TYPES = {"u64": "u8", "u32": "u4"}


def defines() -> dict[str, int]:
    return {name: int(value) for name, value in re.findall(r"^#define (\w+) (\d+)", HEADER, re.M)}


def struct_of(name: str) -> np.dtype:
    """The numpy type that the C structure has; naturally aligned, as every one in the header is by construction."""
    body = re.search(rf"^struct {name} {{\n(.*?)^}};", HEADER, re.M | re.S)
    assert body is not None, name
    fields = []
    for kind, field, count in re.findall(r"^\t(u64|u32|struct slice) (\w+)(?:\[(\w+)\])?;", body[1], re.M):
        base = struct_of("slice") if kind == "struct slice" else NUMPY_TYPES[kind]
        length = defines().get(count) or (int(count) if count else None)
        fields.append((field, base, length) if length else (field, base))
    return np.dtype(fields)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("slot_stats", layout.SLOT_STATS),
        ("matrix_entry", layout.MATRIX_ENTRY),
        ("cpu_state", layout.CPU_STATE),
        ("slice", layout.SLICE),
    ],
)
def test_structures_agree(name: str, dtype: np.dtype) -> None:
    assert struct_of(name) == dtype


def test_stamp_size_agrees() -> None:
    assert struct_of("stamp").itemsize == layout.STAMP_SIZE


@pytest.mark.parametrize("name", ["LAYOUT_VERSION", "BUCKETS", "FIRST_BUCKET_BITS", "RING", "PROBES"])
def test_constants_agree(name: str) -> None:
    assert defines()[name] == getattr(layout, name)


def test_special_slots_agree() -> None:
    slots = re.findall(r"^\tSLOT_(\w+) = (\d+),", HEADER, re.M)
    assert [(name.lower(), int(number)) for name, number in slots] == [
        (name, i) for i, name in enumerate(layout.SPECIAL_NAMES)
    ]
    assert re.search(r"^\tSPECIALS = (\d+),", HEADER, re.M)[1] == str(layout.SPECIALS)


def test_settings_are_the_c_structure() -> None:
    assert struct_of("probe_config").itemsize == 32
    packed = struct.unpack("=8I", Sizes(cpus=3, cgroups=64, matrix=128, stamps=256).settings(cgroup_v2=True))
    assert packed == (1, 63, 127, 255, 3, 0, 0, 0)


def test_special_keys_have_names_and_cgroup_ids_have_none() -> None:
    assert [layout.key_name(layout.SPECIAL_KEYS[name]) for name in layout.SPECIAL_NAMES] == list(layout.SPECIAL_NAMES)
    assert layout.key_name(1) is None
    assert layout.key_name(-layout.SPECIALS) is None


@pytest.mark.parametrize("wrong", [{"cgroups": 1000}, {"cgroups": 1 << 15}, {"stamps": 1}, {"cpus": 0}], ids=str)
def test_impossible_sizes_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Sizes(**{"cpus": 2, **wrong})

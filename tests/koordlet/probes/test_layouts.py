"""The generated layouts, and the sizes of the sched_latency tables."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from koordlet.probes import layouts
from koordlet.probes.blockio.probe import IoSizes
from koordlet.probes.culprits.slots import SPECIAL_KEYS, SPECIAL_NAMES, SPECIALS, key_name
from koordlet.probes.memstall.snapshot import KINDS, SLEEP_KINDS
from koordlet.probes.netstall.probe import NetSizes
from koordlet.probes.oom import SCOPES
from koordlet.probes.schedlatency.sizes import Sizes

ROOT = Path(__file__).parents[3]


def generated() -> dict[str, Any]:
    text = runpy.run_path(str(ROOT / "scripts/gen_layouts.py"))["generate"](ROOT / "bpf")
    names: dict[str, Any] = {}
    exec(text, names)
    return names


def test_layouts_are_those_of_the_headers() -> None:
    """Run `make -C bpf layouts` after a change of a header."""
    fresh = {name: value for name, value in generated().items() if name.isupper()}
    assert fresh == {name: getattr(layouts, name) for name in dir(layouts) if name.isupper()}


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        (layouts.SLOT_STATS, 512),
        (layouts.CULPRIT_ENTRY, 24),
        (layouts.CPU_STATE, 2120),
        (layouts.STAMP, 64),
        (layouts.IO_STATS, 1024),
        (layouts.IO_DEVICE, 800),
        (layouts.NET_STATS, 320),
        (layouts.OOM_EVENT, 432),
        (layouts.CGROUP_STATS_ROW, 160),
        (layouts.SCHED_LATENCY_CONFIG, 32),
        (layouts.STALL_CONFIG, 80),
    ],
    ids=str,
)
def test_structures_have_the_size_of_the_compiled_ones(dtype: np.dtype[Any], size: int) -> None:
    assert dtype.itemsize == size


@pytest.mark.parametrize(
    "body",
    ["u32 small;\n\tu64 unaligned;", "u64 large;\n\tu32 padded;", "unsigned long unknown;"],
    ids=["unaligned member", "padding at the end", "unknown type"],
)
def test_a_structure_that_the_compiler_would_pad_is_refused(tmp_path: Path, body: str) -> None:
    layouts_class = runpy.run_path(str(ROOT / "scripts/gen_layouts.py"))["Layouts"]
    with pytest.raises(ValueError, match="struct wrong"):
        layouts_class().header("wrong.h", f"struct wrong {{\n\t{body}\n}};\n")


def test_names_are_those_of_the_enumerations() -> None:
    assert SPECIAL_NAMES[:2] == ("idle", "ksoftirqd") and SPECIAL_NAMES[-2:] == ("older", "moved")
    assert KINDS == ("direct", "own_limit", "ancestor", "compaction", "refault", "swapin", "throttle", "other")
    assert SLEEP_KINDS == ("refault", "swapin", "throttle", "other")
    assert SCOPES == ("unknown", "limit", "node")
    for enumeration in (layouts.SPECIAL_SLOT, layouts.STALL_KIND, layouts.OOM_SCOPE, layouts.OWNER_SPACE):
        numbers = [number for name, number in enumeration.items() if name not in ("SPECIALS", "STALLS")]
        assert numbers == list(range(len(numbers)))


def test_settings_are_the_structures_of_the_headers() -> None:
    sizes = Sizes(cpus=3, cgroups=64, matrix=128, shared=512, stamps=256)
    assert np.frombuffer(sizes.settings(cgroup_v2=True), "u4").tolist() == [1, 63, 3, 0, 127, 255, 3, 512]
    io = IoSizes(cpus=2, rows=1, pairs=64, matrix=128, bios=256, requests=512)
    assert np.frombuffer(io.settings(cgroup_v2=False), "u4").tolist() == [0, 63, 1, 1, 127, 255, 511, 0]
    net = NetSizes(cpus=2, rows=2, owners=64, matrix=128).settings(True, preempt_count=-8)
    assert np.frombuffer(net, "i4").tolist() == [1, 63, 2, 0, 127, -8]


@pytest.mark.parametrize("cpus", [1, 2, 6, 8, 16, 32, 33, 64, 65, 96, 128, 240, 512, 4096])
def test_the_memory_of_the_tables_is_bounded_whatever_the_number_of_cpus(cpus: int) -> None:
    sizes, io, net = Sizes(cpus), IoSizes.of(cpus), NetSizes.of(cpus)
    assert (sizes.rows, io.rows, net.rows) == (min(cpus, 32), min(cpus, 8), min(cpus, 8))
    used = {
        "sched_latency": sum(
            entries * itemsize
            for entries, itemsize in zip(
                sizes.entries().values(),
                (8, layouts.SLOT_STATS.itemsize, layouts.CULPRIT_ENTRY.itemsize, layouts.CPU_STATE.itemsize, 64),
                strict=True,
            )
        ),
        "block_io": io.entries()["stats"] * layouts.IO_STATS.itemsize
        + io.entries()["matrix"] * layouts.CULPRIT_ENTRY.itemsize,
        "net_stall": net.entries()["stats"] * layouts.NET_STATS.itemsize
        + net.entries()["matrix"] * layouts.CULPRIT_ENTRY.itemsize,
    }
    per_cpu = cpus * layouts.CPU_STATE.itemsize
    assert used["sched_latency"] - per_cpu <= 48 << 20
    assert used["block_io"] <= 12 << 20
    assert used["net_stall"] <= 6 << 20


def test_special_keys_have_names_and_cgroup_ids_have_none() -> None:
    assert [key_name(SPECIAL_KEYS[name]) for name in SPECIAL_NAMES] == list(SPECIAL_NAMES)
    assert key_name(1) is None
    assert key_name(-SPECIALS) is None


@pytest.mark.parametrize("cpus", [1, 2, 5, 64])
def test_without_a_shared_part_there_are_as_many_entries_as_fit(cpus: int) -> None:
    entries = Sizes(cpus).entries()["matrix"]
    divided = Sizes(cpus).without_shared()
    assert divided.shared == 0
    assert entries / 2 < divided.entries()["matrix"] <= entries


@pytest.mark.parametrize("cpus", [1, 33, 64, 65, 512, 4096])
def test_rows_of_their_own_are_bounded_too(cpus: int) -> None:
    sizes = Sizes(cpus).without_shared()
    assert sizes.rows == cpus
    assert sizes.rows * sizes.cgroups * layouts.SLOT_STATS.itemsize <= 64 << 20


@pytest.mark.parametrize("wrong", [{"cgroups": 1000}, {"cgroups": 1 << 15}, {"stamps": 1}, {"cpus": 0}], ids=str)
def test_impossible_sizes_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Sizes(**{"cpus": 2, **wrong})

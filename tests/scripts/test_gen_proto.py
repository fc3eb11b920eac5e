"""The generator writes importable modules next to the proto, and only when they are stale."""

import os
import runpy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROTO = "koordlet/api/hooks/api.proto"
OUTPUTS = [f"koordlet/api/hooks/api_pb2{suffix}" for suffix in (".py", ".pyi", "_grpc.py")]
FIRST = "koordlet/api/cri/api.proto"
OTHERS = (
    "koordlet/api/nri/api.proto",
    "koordlet/api/nri/ttrpc.proto",
    "koordlet/api/podresources/api.proto",
)
ALL = [
    *(FIRST.replace(".proto", f"_pb2{suffix}") for suffix in (".py", ".pyi")),
    *OUTPUTS,
    *(other.replace(".proto", f"_pb2{suffix}") for other in OTHERS for suffix in (".py", ".pyi")),
]


@pytest.fixture
def generate() -> Callable[..., Any]:
    result: Callable[..., Any] = runpy.run_path(str(ROOT / "scripts" / "gen_proto.py"))["generate"]
    return result


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for proto in (FIRST, PROTO, *OTHERS):
        (tmp_path / proto).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / proto, tmp_path / proto)
    return tmp_path


def test_writes_next_to_the_proto(generate: Callable[..., Any], tree: Path) -> None:
    assert generate(tree) == ALL
    assert all((tree / name).stat().st_size for name in ALL)
    assert "from koordlet.api.hooks import api_pb2" in (tree / OUTPUTS[2]).read_text()


def test_leaves_fresh_output_alone(generate: Callable[..., Any], tree: Path) -> None:
    generate(tree)
    assert generate(tree) == []
    assert generate(tree, force=True) == ALL


def test_regenerates_after_a_change(generate: Callable[..., Any], tree: Path) -> None:
    generate(tree)
    newer = (tree / OUTPUTS[0]).stat().st_mtime + 10
    os.utime(tree / PROTO, (newer, newer))
    assert generate(tree) == OUTPUTS


def test_broken_proto_is_an_error(generate: Callable[..., Any], tree: Path) -> None:
    (tree / PROTO).write_text("message {")
    with pytest.raises(RuntimeError, match=r"api\.proto"):
        generate(tree)

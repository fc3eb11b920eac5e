"""The generator writes importable modules next to the proto, and only when they are stale."""

import os
import runpy
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROTO = "koordlet/api/hooks/api.proto"
OUTPUTS = [f"koordlet/api/hooks/api_pb2{suffix}" for suffix in (".py", ".pyi", "_grpc.py")]


@pytest.fixture
def generate():
    return runpy.run_path(str(ROOT / "scripts" / "gen_proto.py"))["generate"]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / PROTO).parent.mkdir(parents=True)
    shutil.copy(ROOT / PROTO, tmp_path / PROTO)
    return tmp_path


def test_writes_next_to_the_proto(generate, tree):
    assert generate(tree) == OUTPUTS
    assert all((tree / name).stat().st_size for name in OUTPUTS)
    assert "from koordlet.api.hooks import api_pb2" in (tree / OUTPUTS[2]).read_text()


def test_leaves_fresh_output_alone(generate, tree):
    generate(tree)
    assert generate(tree) == []
    assert generate(tree, force=True) == OUTPUTS


def test_regenerates_after_a_change(generate, tree):
    generate(tree)
    newer = (tree / OUTPUTS[0]).stat().st_mtime + 10
    os.utime(tree / PROTO, (newer, newer))
    assert generate(tree) == OUTPUTS


def test_broken_proto_is_an_error(generate, tree):
    (tree / PROTO).write_text("message {")
    with pytest.raises(RuntimeError, match=r"api\.proto"):
        generate(tree)

"""Directories that `up` creates on the machine: `down` removes these, and none that existed before."""

from __future__ import annotations

from pathlib import Path

import pytest

from control.ctl.node import containers, hostfolders
from control.ctl.node.down import down
from control.ctl.node.parts import PARTS, Layout
from control.ctl.node.state import NodeSettings
from control.ctl.node.supervisor import Supervisor
from control.ctl.progress import TerminalProgress

REGISTRATION = "koordlet.json"


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    directory = tmp_path / "state"
    directory.mkdir()
    return directory


def test_created_directories_are_removed_with_koordlets_registration(state_dir: Path, tmp_path: Path) -> None:
    folder = tmp_path / "etc" / "runtime" / "hookserver.d"
    hostfolders.create(state_dir, folder)
    hostfolders.create(state_dir, folder)  # a second `up`
    (folder / REGISTRATION).touch()
    assert hostfolders.remove(state_dir, REGISTRATION) == [str(folder), str(folder.parent), str(folder.parent.parent)]
    assert sorted(tmp_path.rglob("*")) == [state_dir]


def test_directories_that_existed_stay(state_dir: Path, tmp_path: Path) -> None:
    parent = tmp_path / "runtime"
    parent.mkdir()
    hostfolders.create(state_dir, parent / "hookserver.d")
    assert hostfolders.remove(state_dir, REGISTRATION) == [str(parent / "hookserver.d")]
    assert parent.is_dir()
    (parent / REGISTRATION).touch()
    hostfolders.create(state_dir, parent)
    assert hostfolders.remove(state_dir, REGISTRATION) == []
    assert (parent / REGISTRATION).exists()


def test_foreign_files_keep_their_directory_until_a_later_down(state_dir: Path, tmp_path: Path) -> None:
    folder = tmp_path / "runtime" / "hookserver.d"
    hostfolders.create(state_dir, folder)
    (folder / "other.json").touch()
    assert hostfolders.remove(state_dir, REGISTRATION) == []
    assert (folder / "other.json").exists()
    (folder / "other.json").unlink()
    assert hostfolders.remove(state_dir, REGISTRATION) == [str(folder), str(folder.parent)]


def test_down_removes_what_a_bare_node_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, progress: TerminalProgress
) -> None:
    folder = tmp_path / "runtime" / "hookserver.d"
    monkeypatch.setattr(containers, "HOOK_SERVERS", folder)
    supervisor = Supervisor(tmp_path / "state")
    supervisor.state_dir.mkdir()
    settings = NodeSettings("n", bpf_pin_dir="", runtime="containerd", bare=True)
    supervisor.settle(settings)
    proxy = next(part for part in PARTS if part.name == "runtimeproxy")
    assert proxy.before is not None
    proxy.before(Layout(supervisor.state_dir), settings)
    assert folder.is_dir()
    assert not down(supervisor.state_dir, purge=True, progress=progress)
    assert not folder.parent.exists()


def test_a_directory_in_the_state_directory_is_not_recorded(state_dir: Path) -> None:
    containers.create_hook_servers(state_dir, NodeSettings("n", runtime="containerd"))
    assert list(state_dir.iterdir()) == []

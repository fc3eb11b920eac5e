"""Registration files in a real directory: which count, when changes apply, effects of mistakes."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.hooks.registry import MAX_BYTES, HookServerRegistry, InvalidRegistration, RegisteredServer, parse
from runtimeproxy.hooks.stages import HookFailurePolicy

HOOKS = ["PreRunPodSandbox", "PreCreateContainer"]


def text(endpoint: str = "/run/a.sock", policy: Any = "Ignore", hooks: Any = HOOKS) -> str:
    return json.dumps({"remote-endpoint": endpoint, "failure-policy": policy, "runtime-hooks": hooks})


def endpoints(registry: HookServerRegistry) -> list[str]:
    return [server.endpoint for server in registry.servers()]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("Fail", HookFailurePolicy.FAIL),
        ("Ignore", HookFailurePolicy.IGNORE),
        ("", HookFailurePolicy.IGNORE),
        (None, HookFailurePolicy.IGNORE),
        ("fail", HookFailurePolicy.IGNORE),
    ],
)
def test_policies(policy: Any, expected: HookFailurePolicy) -> None:
    registration = parse("k.json", text(policy=policy).encode())
    assert registration == RegisteredServer("k.json", "/run/a.sock", expected, frozenset(HOOKS))


def test_a_registration_without_hooks_is_valid() -> None:
    assert parse("k.json", b'{"remote-endpoint": "unix:///run/x.sock", "more": 1}') == RegisteredServer(
        "k.json", "/run/x.sock", HookFailurePolicy.IGNORE, frozenset()
    )


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"", "not JSON"), (b"{", "not JSON"), (b"\xff", "not JSON"), (b"[" * 100_000, "not JSON"),
        (b"[]", "not a JSON object"), (b"{}", "remote-endpoint"), (b'{"remote-endpoint": 5}', "remote-endpoint"),
        (text("run/a.sock").encode(), "remote-endpoint"), (text("/" + "a" * 107).encode(), "remote-endpoint"),
        (text("/a\0b").encode(), "remote-endpoint"), (text("/a\ud800").encode(), "remote-endpoint"),
        (text(policy=1).encode(), "failure-policy"),
        (text(hooks="PreRunPodSandbox").encode(), "runtime-hooks"), (text(hooks=[1]).encode(), "runtime-hooks"),
    ],
)  # fmt: skip
def test_mistakes_name_the_field(content: bytes, named: str) -> None:
    with pytest.raises(InvalidRegistration, match=named):
        parse("k.json", content)


def test_the_directory_is_made(tmp_path: Path) -> None:
    directory = tmp_path / "etc/hookserver.d"
    assert HookServerRegistry(directory).servers() == ()
    assert directory.stat().st_mode & 0o777 == 0o755 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_no_directory_can_be_made(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    registry = HookServerRegistry(tmp_path / "file/d")
    assert registry.servers() == registry.servers() == ()
    assert caplog.text.count("Cannot read hook server registrations") == 1


def test_names_and_order(tmp_path: Path) -> None:
    registry = HookServerRegistry(tmp_path)
    for name in ("zjson", "a.json", "m.json", "x.json.bak", ".b.json.new"):
        (tmp_path / name).write_text(text(f"/run/{name}"))
    (tmp_path / "folder.json").mkdir()
    assert endpoints(registry) == ["/run/a.json", "/run/m.json", "/run/zjson"]


def test_every_change_applies_immediately(tmp_path: Path) -> None:
    registry = HookServerRegistry(tmp_path)
    file = tmp_path / "k.json"
    for round_ in range(50):  # faster than time stamps advance
        file.write_text(text(f"/run/{round_:02}.sock"))
        assert endpoints(registry) == [f"/run/{round_:02}.sock"]
    other = tmp_path / "new"
    other.write_text(text("/run/over.sock"))
    other.replace(file)
    assert endpoints(registry) == ["/run/over.sock"]
    (tmp_path / "j.json").symlink_to(file)
    assert endpoints(registry) == ["/run/over.sock"] * 2
    file.unlink()
    assert endpoints(registry) == []  # the link is dangling now


def test_a_settled_file_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "k.json"
    file.write_text(text())
    registry = HookServerRegistry(tmp_path, wall=lambda: file.stat().st_mtime + 60)
    assert endpoints(registry) == ["/run/a.sock"]
    monkeypatch.setattr(Path, "read_bytes", lambda _: pytest.fail("read again"))
    assert endpoints(registry) == ["/run/a.sock"]


@pytest.mark.parametrize("broken", ["{", "{}", "x" * (MAX_BYTES + 1)], ids=["not-json", "empty", "huge"])
def test_an_invalid_file_keeps_its_last_valid_content(
    tmp_path: Path, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    registry = HookServerRegistry(tmp_path)
    file = tmp_path / "k.json"
    file.write_text(broken)
    assert endpoints(registry) == []
    file.write_text(text("/run/good.sock"))
    assert endpoints(registry) == ["/run/good.sock"]
    caplog.clear()
    file.write_text(broken)
    assert endpoints(registry) == endpoints(registry) == ["/run/good.sock"]
    assert caplog.text.count("Invalid hook server registration") == 1
    new = tmp_path / "new"
    new.write_text(broken)
    new.replace(file)  # another inode
    assert endpoints(registry) == ["/run/good.sock"]
    file.unlink()
    assert endpoints(registry) == []
    file.write_text(broken)
    assert endpoints(registry) == []


def test_other_than_regular_files_are_not_opened(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    os.mkfifo(tmp_path / "pipe.json")  # opening it would block until there is a writer
    (tmp_path / "loop.json").symlink_to(tmp_path / "loop.json")
    (tmp_path / "k.json").write_text(text())
    registry = HookServerRegistry(tmp_path)
    assert endpoints(registry) == ["/run/a.sock"]
    assert "not a regular file" in caplog.text
    assert "loop.json" in caplog.text


def test_an_unknown_policy_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    file = tmp_path / "once.json"
    registry = HookServerRegistry(tmp_path)
    for endpoint in ("/run/1", "/run/2"):
        file.write_text(text(endpoint, policy="Perhaps"))
        assert [server.policy for server in registry.servers()] == [HookFailurePolicy.IGNORE]
    assert caplog.text.count("Unknown failure policy") == 1

"""Programs run for their output: slow, verbose and failing ones."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from devicedaemon import tools
from devicedaemon.tools import HostTools
from devicedaemon.vendors.node import ToolError

PATIENCE = 60.0
HOST = Path("/")


def gone(pid: int) -> bool:
    """Ended, possibly not yet reaped by its parent."""
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


async def until_gone(*pids: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while not all(map(gone, pids)):  # noqa: ASYNC110 - there is no notification
            await asyncio.sleep(0.01)


def pids_in(path: Path) -> list[int]:
    return [int(word) for word in path.read_text().split()] if path.exists() else []


async def test_both_streams_are_merged_and_stdin_is_empty() -> None:
    run = HostTools(HOST, PATIENCE).run
    assert await run("sh", "-c", "echo out; echo err >&2; cat; echo $LC_ALL") == "out\nerr\nC\n"


async def test_a_failing_program_and_a_missing_program_raise() -> None:
    run = HostTools(HOST, PATIENCE).run
    with pytest.raises(ToolError, match="sh -c echo no; exit 3: exit status 3: 'no'") as error:
        await run("sh", "-c", "echo no; exit 3")
    assert error.value.output == "no\n"
    with pytest.raises(ToolError, match="absent-tool -x: No such file"):
        await run("absent-tool", "-x")


async def test_a_program_over_its_timeout_is_killed_with_its_children(tmp_path: Path) -> None:
    path = tmp_path / "pids"
    script = f"sleep 1000 & echo $! $$ > {path}; wait"
    with pytest.raises(ToolError, match=r"no end within 0\.5 s"):
        await HostTools(HOST, 0.5).run("sh", "-c", script)
    await until_gone(*pids_in(path))


async def test_a_cancelled_program_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "pids"
    task = asyncio.ensure_future(HostTools(HOST, PATIENCE).run("sh", "-c", f"echo $$ > {path}; exec sleep 1000"))
    async with asyncio.timeout(PATIENCE):
        while not pids_in(path):  # noqa: ASYNC110 - there is no notification
            await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until_gone(*pids_in(path))


async def test_endless_output_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "MAX_OUTPUT_BYTES", 100_000)
    with pytest.raises(ToolError, match="prints more than"):
        await HostTools(HOST, PATIENCE).run("yes")


async def test_a_tool_that_cannot_be_killed_is_not_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def spare(_: asyncio.subprocess.Process) -> None:
        """Like a kernel with a hanging driver."""

    kill = tools._kill
    monkeypatch.setattr(tools, "_kill", spare)
    host = HostTools(HOST, 0.2)
    with pytest.raises(ToolError, match="no end within"):
        await host.run("sleep", "1000")
    with pytest.raises(ToolError, match=r"an earlier sleep .* has not ended"):
        await host.run("sleep", "0")
    (stuck,) = host._stuck.values()
    await kill(stuck)
    await stuck.wait()
    assert await HostTools(HOST, PATIENCE).run("echo", "on") == "on\n"
    host._seconds = PATIENCE
    assert await host.run("sleep", "0") == ""

"""Runs vendors' programs on the host: `chroot /hostfs npu-smi info -m` (spec 08 §1.4).

Run time and output of each are limited; a program over a limit is killed together with its session's processes.
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path

from devicedaemon.vendors.node import ToolError

MAX_OUTPUT_BYTES = 1 << 20
KILL_SECONDS = 2.0
"""A killed program that has not ended after this time is abandoned."""
SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_HOST = Path("/")


class HostTools:
    """A `vendors.node.Tools`."""

    def __init__(self, root: Path, seconds: float) -> None:
        """`root`: the host's file system; `seconds`: timeout of one command."""
        self._root = root
        self._seconds = seconds
        self._stuck: dict[str, asyncio.subprocess.Process] = {}
        """By program: killed but still in the kernel, as when a driver hangs."""

    async def run(self, *command: str) -> str:
        """Standard output and standard error together. Raises ToolError."""
        line = command if self._root == _HOST else ("chroot", str(self._root), *command)
        text = " ".join(command)
        stuck = self._stuck.get(command[0])
        if stuck is not None and stuck.returncode is None:
            raise ToolError(f"{text}: an earlier {command[0]} (pid {stuck.pid}) was killed and has not ended yet")
        try:
            process = await asyncio.create_subprocess_exec(
                *line,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env={**os.environ, "PATH": f"{os.environ.get('PATH', '')}:{SEARCH_PATH}", "LC_ALL": "C"},
                start_new_session=True,
            )
        except OSError as error:
            raise ToolError(f"{text}: {error.strerror}") from error
        try:
            async with asyncio.timeout(self._seconds):
                output = await _output(process, text)
                status = await process.wait()
        except TimeoutError:
            raise ToolError(f"{text}: no end within {self._seconds:g} s") from None
        finally:
            if process.returncode is None:
                self._stuck[command[0]] = process
                await _kill(process)
        if status:
            raise ToolError(f"{text}: exit status {status}: {output.strip()[:300]!r}", output)
        return output


async def _kill(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(TimeoutError):
        async with asyncio.timeout(KILL_SECONDS):
            while process.stdout and await process.stdout.read(1 << 16):
                pass  # the rest of its output: uvloop closes the pipe only at the end of it
            await process.wait()


async def _output(process: asyncio.subprocess.Process, text: str) -> str:
    assert process.stdout is not None
    data = bytearray()
    while piece := await process.stdout.read(1 << 16):
        data += piece
        if len(data) > MAX_OUTPUT_BYTES:
            raise ToolError(f"{text}: prints more than {MAX_OUTPUT_BYTES} bytes")
    return data.decode(errors="replace")

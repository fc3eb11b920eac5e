"""Records what a command prints on a terminal, with its times, as an asciicast (version 2): `make recording`.

    python -m scripts.recording --out docs/demo.cast -- make demo ONCE=1

The file is text; asciinema and its web player play it. Output that comes within a moment becomes one event, and paths
in this checkout become relative; nothing else is changed.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COLUMNS, ROWS = 150, 45
MOMENT_S = 0.2
"""Output is collected for this time."""
LONGEST_PAUSE_S = 2.0
"""Players shorten longer pauses to this."""


def events(terminal: int) -> Iterator[tuple[float, bytes]]:
    """(seconds since the start, output) until the terminal's other end is closed."""
    began = time.monotonic()
    waiting, since = b"", 0.0
    poll = select.poll()  # select() refuses descriptors from 1024 on
    poll.register(terminal, select.POLLIN)
    while True:
        readable = bool(poll.poll(MOMENT_S * 1000))
        now = time.monotonic() - began
        if readable:
            try:
                data = os.read(terminal, 65536)
            except OSError:  # EIO: no process has it open any more
                data = b""
            if not data:
                break
            since = since if waiting else now
            waiting += data
        if waiting and (not readable or now - since >= MOMENT_S):
            yield since, waiting
            waiting = b""
    if waiting:
        yield since, waiting


def record(command: list[str], out: Path) -> int:
    """Run the command and write the recording; the command's exit status."""
    terminal, process_end = pty.openpty()
    fcntl.ioctl(process_end, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    environ = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(ROWS)}
    process = subprocess.Popen(
        command, stdin=process_end, stdout=process_end, stderr=process_end, env=environ, start_new_session=True
    )
    os.close(process_end)
    header = {
        "version": 2, "width": COLUMNS, "height": ROWS, "idle_time_limit": LONGEST_PAUSE_S,
        "title": " ".join(command), "env": {"TERM": "xterm-256color"},
    }  # fmt: skip
    lines = [json.dumps(header)]
    undecoded = b""
    for seconds, data in events(terminal):
        sys.stdout.buffer.write(data)
        sys.stdout.flush()
        text, undecoded = decoded(undecoded + data)
        text = text.replace(f"{ROOT}/", "")
        lines.append(json.dumps([round(seconds, 2), "o", text], ensure_ascii=False))
    os.close(terminal)
    out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return process.wait()


def decoded(data: bytes) -> tuple[str, bytes]:
    """The text, and the bytes of a character whose end has not come yet."""
    for cut in range(4):
        try:
            return data[: len(data) - cut].decode(), data[len(data) - cut :]
        except UnicodeDecodeError:
            continue
    return data.decode(errors="replace"), b""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.recording")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("command", nargs="+")
    args = parser.parse_args(argv)
    return record(args.command, args.out)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""A wall clock that a test steps for the processes it starts (steppedclock.c)."""

from __future__ import annotations

import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("steppedclock.c")


class SteppedClock:
    """`environ` for the processes; `step` moves the wall clock of all of them at once."""

    def __init__(self, folder: Path) -> None:
        self._offset = folder / "clock-offset"
        library = folder / "steppedclock.so"
        flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
        subprocess.run(["gcc", *flags, "-o", library, SOURCE, "-ldl"], check=True)
        self.environ = {"LD_PRELOAD": str(library), "KOORD_CLOCK_OFFSET": str(self._offset)}
        self.seconds = 0.0
        self._offset.write_bytes(bytes(8))

    def step(self, seconds: float) -> None:
        """The clock is now `seconds` ahead of the machine's."""
        self.seconds = seconds
        with self._offset.open("r+b") as file:  # in place: the processes have mapped the file
            file.write(int(seconds * 1e9).to_bytes(8, "little", signed=True))

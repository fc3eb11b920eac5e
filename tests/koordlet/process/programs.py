"""Python programs for `Container.run`."""

from __future__ import annotations

BURN = "while True: pass"
SLEEP = "while True: time.sleep(0.02)"


def duty(busy: float, idle: float) -> str:
    """Work for `busy` seconds of CPU time, then sleep for `idle` seconds."""
    return (
        f"while True:\n end = time.thread_time() + {busy}\n while time.thread_time() < end: pass\n time.sleep({idle})\n"
    )


def touch(mebibytes: int) -> str:
    """Hold that much anonymous memory."""
    return f"held = b'x' * ({mebibytes} << 20)\nwhile True: time.sleep(1)"

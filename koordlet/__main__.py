"""The `koordlet` binary. It sets heap limits and import options before other modules are imported."""

from __future__ import annotations

import sys

from koordlet.app.heap import bound_heap
from koordlet.app.startup import loading


def main() -> int:
    """Runs `koordlet.command.main`."""
    bound_heap()
    with loading():
        from koordlet.command import main as command
    return command()


if __name__ == "__main__":
    sys.exit(main())

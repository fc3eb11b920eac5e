"""The `koord-manager` binary."""

from __future__ import annotations

import os
import sys

from control.manager.options import Options
from koordlet.app.flags import FlagError, parse
from koordlet.app.gates import GateError
from koordlet.app.logging import begin
from koordlet.app.runner import run
from koordlet.kube import ConfigError


async def _start(options: Options) -> int:
    from control.manager.process import Manager  # what it loads finds the settings of `main`

    return await Manager(options, alone=True).run()


def main() -> int:
    """Exit status: 0 after an orderly stop, 1 if a part failed, 2 for a command line that can't be used."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy starts a thread a CPU for algebra that nobody here does
    options = parse(Options, sys.argv[1:], prog="koord-manager", description="Controllers and webhooks of Koordinator.")
    try:
        begin(options)
        return run(_start(options))
    except (FlagError, GateError, ConfigError) as error:
        sys.stderr.write(f"koord-manager: {error}\nRun 'koord-manager --help' for usage.\n")
        return 2


if __name__ == "__main__":
    sys.exit(main())

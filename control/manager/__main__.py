"""The `koord-manager` binary."""

from __future__ import annotations

import os
import sys

from control.manager.options import ManagerOptions
from koordlet.app.flags import FlagError, parse
from koordlet.app.gates import GateError
from koordlet.app.logging import begin
from koordlet.app.runner import run
from koordlet.kube import ConfigError


async def _start(options: ManagerOptions) -> int:
    from control.manager.process import Manager  # imports numpy: `main` must have set the environment before

    return await Manager(options, alone=True).run()


def main() -> int:
    """Exit status: 0 after an orderly stop, 1 if a component failed, 2 for an invalid command line."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # else numpy starts one thread per CPU for unused linear algebra
    options = parse(
        ManagerOptions, sys.argv[1:], prog="koord-manager", description="Controllers and webhooks of Koordinator."
    )
    try:
        begin(options)
        return run(_start(options))
    except (FlagError, GateError, ConfigError) as error:
        sys.stderr.write(f"koord-manager: {error}\nRun 'koord-manager --help' for usage.\n")
        return 2


if __name__ == "__main__":
    sys.exit(main())

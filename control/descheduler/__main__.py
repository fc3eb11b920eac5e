"""The `koord-descheduler` binary."""

from __future__ import annotations

import os
import sys

from control.descheduler.process.options import DeschedulerOptions
from koordlet.app.flags import FlagError, parse
from koordlet.app.gates import GateError
from koordlet.app.logging import begin
from koordlet.app.runner import run
from koordlet.kube import ConfigError


async def _start(options: DeschedulerOptions) -> int:
    from control.descheduler.process.process import Descheduler  # imported after `main` has set the environment

    process = Descheduler(options)
    return await (process.preview() if options.dry_run else process.run())


def main() -> int:
    """Exit status: 0 after a normal stop, 1 for bad configuration, a failed service or lost lease, 2 for bad
    flags."""
    # numpy would start one thread per CPU for linear algebra, which is not used.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    options = parse(
        DeschedulerOptions,
        sys.argv[1:],
        prog="koord-descheduler",
        description="Moves running pods like Koordinator's descheduler.",
    )
    from control.component.errors import ConfigurationError

    try:
        begin(options)
        if options.write_config_to:
            from control.descheduler.process.process import read_settings, write_configuration

            write_configuration(read_settings(options), options.write_config_to)
            return 0
        return run(_start(options))
    except ConfigurationError as error:
        for text in error.errors:
            sys.stderr.write(f"koord-descheduler: {text}\n")
        return 1
    except (FlagError, GateError, ConfigError) as error:
        sys.stderr.write(f"koord-descheduler: {error}\nRun 'koord-descheduler --help' for usage.\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())

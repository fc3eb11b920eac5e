"""The `koord-device-daemon` binary."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from devicedaemon.confinement import confine, numbers
from devicedaemon.daemon import DeviceDaemon
from devicedaemon.options import DeviceDaemonOptions, resolve
from koordlet.app.flags import FlagError, parse
from koordlet.app.logging import begin
from koordlet.app.runner import run

NAME = "koord-device-daemon"


def main() -> int:
    """Exit status: 0 after a signal or one round, 1 for an invalid configuration or an output that cannot be written,
    2 for an invalid command line."""
    argv = sys.argv[1:]
    parse(
        DeviceDaemonOptions, argv, prog=NAME, description="Describes this node's accelerators in a file for koordlet."
    )
    try:
        options = resolve(argv, os.environ)
        keep = numbers(options.keep_capabilities)
        begin(options)
    except (FlagError, ValueError) as error:
        sys.stderr.write(f"{NAME}: {error}\n")
        return 1
    confine(keep, Path(options.host_root_dir))
    return run(DeviceDaemon(options, lambda: resolve(argv, os.environ)).run())


if __name__ == "__main__":
    sys.exit(main())

"""The `koordlet` command: parses flags, sets up logging, runs a `KoordletDaemon`."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

from koordlet.app.flags import FlagError, parse
from koordlet.app.gates import GateError
from koordlet.app.logging import begin, get_logger
from koordlet.app.runner import run
from koordlet.app.syscallfilter import refuse_unused
from koordlet.kube import ConfigError
from koordlet.options import KoordletOptions
from koordlet.system.cpu import timeslice

log = get_logger(__name__)


async def _start(options: KoordletOptions) -> int:
    from koordlet.daemon import KoordletDaemon  # imports numpy, which reads an environment variable that `main` sets

    return await KoordletDaemon(options).run()


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> int:
    """Exit status: 0 after an orderly stop, 1 if a part failed, 2 for an invalid command line."""
    signal.signal(signal.SIGTERM, _interrupt)  # until the loop handles signals, so that pinned maps are unpinned
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # else numpy starts a thread per CPU for linear algebra
    options = parse(
        KoordletOptions, sys.argv[1:], prog="koordlet", description="Watches this node and reports NodeMetric."
    )
    try:
        begin(options)
        options.check(os.environ.get("NODE_NAME", ""))
        if options.syscall_filter:
            refuse_unused()
        if not (shortened := timeslice.shorten()):
            log.info("Tasks that wake up may wait a tick for koordlet", reason=shortened.reason)
        return run(_start(options))
    except (FlagError, GateError, ConfigError) as error:
        sys.stderr.write(f"koordlet: {error}\nRun 'koordlet --help' for usage.\n")
        return 2
    except KeyboardInterrupt:
        return 0

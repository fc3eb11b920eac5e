"""The `koordlet` command: flags, logging, one `Daemon` until it ends."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

from koordlet.app.flags import FlagError, parse
from koordlet.app.gates import GateError
from koordlet.app.logging import begin, get_logger
from koordlet.app.runner import run
from koordlet.kube import ConfigError
from koordlet.options import KoordletOptions
from koordlet.system.cpu import timeslice

log = get_logger(__name__)


async def _start(options: KoordletOptions) -> int:
    from koordlet.daemon import Daemon  # what it loads finds the settings of `main`

    return await Daemon(options).run()


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> int:
    """Exit status: 0 after an orderly stop, 1 if a part failed, 2 for a command line that can't be used."""
    signal.signal(signal.SIGTERM, _interrupt)  # until the loop takes signals: what was pinned meanwhile is unpinned
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy starts a thread a CPU for algebra that nobody here does
    options = parse(
        KoordletOptions, sys.argv[1:], prog="koordlet", description="Watches this node and reports NodeMetric."
    )
    try:
        begin(options)
        options.check(os.environ.get("NODE_NAME", ""))
        if not (shortened := timeslice.shorten()):
            log.info("services that wake up may wait a tick for koordlet", reason=shortened.reason)
        return run(_start(options))
    except (FlagError, GateError, ConfigError) as error:
        sys.stderr.write(f"koordlet: {error}\nRun 'koordlet --help' for usage.\n")
        return 2
    except KeyboardInterrupt:
        return 0

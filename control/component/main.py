"""The `main` of a component's binary."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from control.component.errors import ConfigurationError
from control.component.options import ComponentOptions
from koordlet.app.flags import FlagError, parse
from koordlet.app.gates import GateError
from koordlet.app.logging import begin
from koordlet.app.runner import run
from koordlet.kube import ConfigError

_Options = TypeVar("_Options", bound=ComponentOptions)


def component_main(
    kind: type[_Options],
    *,
    prog: str,
    description: str,
    start: Callable[[_Options], Coroutine[Any, Any, int]],
    write: Callable[[_Options], None],
) -> int:
    """Parse the command line and run. `write` serves `--write-config-to`. Both may import what uses numpy.

    Exit status: 0 after a normal stop, 1 for bad configuration, a failed service or lost lease, 2 for bad flags.
    """
    # numpy would start one thread per CPU for linear algebra, which is not used.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    options = parse(kind, sys.argv[1:], prog=prog, description=description)
    try:
        begin(options)
        if options.write_config_to:
            write(options)
            return 0
        return run(start(options))
    except ConfigurationError as error:
        for text in error.errors:
            sys.stderr.write(f"{prog}: {text}\n")
        return 1
    except (FlagError, GateError, ConfigError) as error:
        sys.stderr.write(f"{prog}: {error}\nRun '{prog} --help' for usage.\n")
        return 1

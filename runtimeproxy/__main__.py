"""The `koord-runtime-proxy` binary."""

from __future__ import annotations

import sys

from koordlet.app.flags import FlagError, parse
from koordlet.app.logging import begin
from koordlet.app.runner import run
from koordlet.app.startup import loaded, loading
from runtimeproxy.options import Options


async def _start(options: Options) -> int:
    with loading():
        from runtimeproxy.server import serve
    loaded()
    return await serve(options)


def main() -> int:
    """Exit status: 0 after an orderly stop, 1 if the runtime or the socket can't be had, 2 for a bad command line."""
    options = parse(Options, sys.argv[1:], prog="koord-runtime-proxy", description="Hooks between kubelet and runtime.")
    try:
        begin(options)
        return run(_start(options))
    except FlagError as error:
        sys.stderr.write(f"koord-runtime-proxy: {error}\nRun 'koord-runtime-proxy --help' for usage.\n")
        return 2


if __name__ == "__main__":
    sys.exit(main())

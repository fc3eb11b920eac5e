"""The `koord-runtime-proxy` binary."""

from __future__ import annotations

import sys

from koordlet.app.flags import FlagError, parse
from koordlet.app.logging import begin
from koordlet.app.runner import run
from koordlet.app.startup import loaded, loading
from runtimeproxy.options import ProxyOptions


async def _start(options: ProxyOptions) -> int:
    with loading():
        from runtimeproxy.server import serve
    loaded()
    return await serve(options)


def main() -> int:
    """Exit status: 0 after an orderly stop, 1 when the runtime or the socket is unavailable, 2 for a bad command
    line."""
    options = parse(
        ProxyOptions, sys.argv[1:], prog="koord-runtime-proxy", description="Hooks between kubelet and runtime."
    )
    try:
        begin(options)
        return run(_start(options))
    except FlagError as error:
        sys.stderr.write(f"koord-runtime-proxy: {error}\nRun 'koord-runtime-proxy --help' for usage.\n")
        return 2


if __name__ == "__main__":
    sys.exit(main())

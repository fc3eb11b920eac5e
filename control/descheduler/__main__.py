"""The `koord-descheduler` binary."""

from __future__ import annotations

import sys

from control.component.main import component_main
from control.descheduler.process.options import DeschedulerOptions


async def _start(options: DeschedulerOptions) -> int:
    from control.descheduler.process.process import Descheduler  # imported after the environment has been set

    process = Descheduler(options)
    return await (process.preview() if options.dry_run else process.run())


def _write(options: DeschedulerOptions) -> None:
    from control.descheduler.process.process import write_configuration

    write_configuration(options)


def main() -> int:
    """See `component_main`."""
    return component_main(
        DeschedulerOptions,
        prog="koord-descheduler",
        description="Moves running pods like Koordinator's descheduler.",
        start=_start,
        write=_write,
    )


if __name__ == "__main__":
    sys.exit(main())

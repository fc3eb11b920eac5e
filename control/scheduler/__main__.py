"""The `koord-scheduler` binary."""

from __future__ import annotations

import sys

from control.component.main import component_main
from control.scheduler.process.options import SchedulerOptions


async def _start(options: SchedulerOptions) -> int:
    from control.scheduler.process.process import Scheduler  # imported after the environment has been set

    return await Scheduler(options).run()


def _write(options: SchedulerOptions) -> None:
    from control.scheduler.process.process import write_configuration

    write_configuration(options)


def main() -> int:
    """See `component_main`."""
    return component_main(
        SchedulerOptions,
        prog="koord-scheduler",
        description="Schedules pods like Koordinator's scheduler.",
        start=_start,
        write=_write,
    )


if __name__ == "__main__":
    sys.exit(main())

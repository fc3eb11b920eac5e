"""`python -m control.ctl.demo [--once]`: run the demo, keep it up until Ctrl-C (or exit), clean up completely.

Exit status 0 only if every step showed the expected result and nothing was left. When interrupted it cleans up; after a
kill, the next run cleans up first. Logs of a failed run are kept in build/demo-logs.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import click

from control.ctl.demo.scenario import Scenario
from control.ctl.errors import CtlError
from control.ctl.node.containers import AUTO, RUNTIMES
from control.ctl.node.down import down
from control.ctl.node.supervisor import CODE_ROOT
from control.ctl.progress import TerminalProgress

BUILD = CODE_ROOT / "build"


class Interrupted(KeyboardInterrupt):
    """A signal to stop. A KeyboardInterrupt, because asyncio passes no other exception out of a callback."""


def _interrupt(number: int, _: FrameType | None) -> None:
    raise Interrupted(signal.Signals(number).name)


def _signals(handler: signal.Handlers | object) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, handler)  # type: ignore[arg-type]


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Lock the parent directory of `folder`, so that a second demo does not treat a running one as dead."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder.parent, os.O_RDONLY | os.O_CLOEXEC)  # a directory: no lock file remains
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise CtlError(f"another demo runs in {folder}", "Stop it first (Ctrl-C in its terminal).") from error
    finally:
        os.close(handle)


def clean_up(folder: Path, progress: TerminalProgress) -> list[str]:
    """Take everything down; returns descriptions of what is left."""
    remaining = down(folder / "state", purge=True, progress=progress)
    for line in remaining.lines():
        (progress.bad if "left:" in line else progress.good)(line)
    if folder.exists():
        shutil.rmtree(folder)
    return [line for line in remaining.lines() if "left:" in line]


def keep_logs(folder: Path) -> Path | None:
    """Copy the parts' logs to a directory that the cleanup does not remove."""
    logs, kept = folder / "state" / "logs", folder.with_name("demo-logs")
    if not logs.is_dir():
        return None
    shutil.rmtree(kept, ignore_errors=True)
    shutil.copytree(logs, kept)
    return kept


def play(folder: Path, progress: TerminalProgress, *, once: bool, runtime: str = AUTO) -> list[str]:
    """Run the scenario and clean up; returns all problems."""
    scenario = Scenario(folder, progress, runtime)
    problems: list[str] = []
    shown = False
    try:
        scenario.run()
        shown = True
        problems += scenario.failures
        progress.say("\nCommands to try:")
        for line in scenario.commands_to_try():
            progress.say(line)
        if not once:
            progress.say("\nThe demo runs until Ctrl-C.")
            while True:
                time.sleep(3600)
    except CtlError as error:
        progress.bad(str(error))
        problems.append(error.message)
    except Interrupted as signal_name:
        progress.say(f"\n{signal_name}: cleaning up")
        if once or not shown:
            problems.append(f"interrupted by {signal_name}")
    finally:
        _signals(signal.SIG_IGN)  # a second Ctrl-C must not interrupt the cleanup
        progress.console.print("\n[bold]Cleaning up[/]", markup=True)
        scenario.stop()
        kept = keep_logs(folder) if problems or sys.exc_info()[0] is not None else None
        problems += clean_up(folder, progress)
        if kept is not None:
            progress.say(f"Logs are kept in {kept}")
    return problems


@click.command()
@click.option("--once", is_flag=True, help="Exit after the last step instead of running until Ctrl-C.")
@click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path, file_okay=False, resolve_path=True),
    default=BUILD / "demo",
    help="The demo's state directory.  [default: build/demo]",
)
@click.option(
    "--runtime", type=click.Choice(RUNTIMES), default=AUTO, help="Container runtime of pods.  [default: auto]"
)
def main(once: bool, folder: Path, runtime: str) -> None:
    """Show a live co-location node on this machine."""
    progress = TerminalProgress()
    _signals(_interrupt)
    began = time.monotonic()
    try:
        with alone(folder):
            if folder.exists():
                progress.console.print("[bold]Cleaning up after an earlier run[/]", markup=True)
                clean_up(folder, progress)
            problems = play(folder, progress, once=once, runtime=runtime)
    except CtlError as error:
        progress.bad(str(error))
        raise SystemExit(1) from error
    except Interrupted:
        raise SystemExit(130) from None
    if problems:
        progress.say(f"\n{len(problems)} checks of the demo failed:")
        for problem in problems:
            progress.bad(problem)
        raise SystemExit(1)
    progress.say(f"\nAll checks passed ({time.monotonic() - began:.0f} s).")


if __name__ == "__main__":
    main()

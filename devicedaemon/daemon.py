"""The loop: ask, write, wait; and what signals mean (spec 08 §1.2).

SIGHUP reads the configuration again and begins a round; the file stays until its successor is there. SIGINT, SIGTERM
and SIGQUIT end the process and take the file away, unless it is told to keep it or runs once. What a round was doing
when a signal came is given up, tools included.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path

from devicedaemon import output
from devicedaemon.options import ConfigError, Options
from devicedaemon.rounds import Rounds
from devicedaemon.tools import HostTools
from devicedaemon.vendors.node import Node
from koordlet.app.flags import FlagError
from koordlet.app.logging import get_logger
from koordlet.system.devices.pci import PciFunction, functions
from koordlet.system.errors import UnreadableFile
from koordlet.system.roots import Roots

log = get_logger(__name__)

AGAIN_SECONDS = 30.0
"""A file that could not be written is tried again so soon, or after the pause if that is shorter."""
ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT)


class Daemon:
    """`load` reads the configuration again: FlagError or ConfigError when it can't be used."""

    def __init__(self, options: Options, load: Callable[[], Options]) -> None:
        self._options, self._load = options, load
        self._rounds = _rounds(options)
        self._signal = asyncio.Event()
        self._ending = False
        self._superseded: Path | None = None
        """The file of an earlier configuration; it goes once its successor is there."""

    async def run(self) -> int:
        """The exit status: 0 after a signal or one round, 1 when the one round could not be written."""
        loop = asyncio.get_running_loop()
        for number in (*ENDS, signal.SIGHUP):
            loop.add_signal_handler(number, self._heard, number)
        self._announce()
        self._sweep()
        while True:
            written = await self._unless_signal(self._round())
            if written is not None and self._options.oneshot:
                return 0 if written else 1
            if written is not None:
                pause = self._options.sleep_interval
                await self._unless_signal(asyncio.sleep(pause if written else min(pause, AGAIN_SECONDS), result=True))
            if self._ending:
                self._leave()
                return 0
            if self._signal.is_set():
                self._signal.clear()
                self._reload()

    async def _round(self) -> bool:
        """Whether the devices could be written."""
        devices = await self._rounds.run()
        path = self._options.path
        try:
            if path is None:
                output.show(devices)
            else:
                output.write(path, devices)
        except OSError as error:
            log.error("devices can't be written", file=self._options.output, error=str(error))
            return False
        log.info("devices written", file=self._options.output, devices=len(devices))
        self._take_away_superseded()
        return True

    async def _unless_signal(self, work: Coroutine[object, object, bool]) -> bool | None:
        """What it returns; None when a signal came first, it has been given up then."""
        task, heard = asyncio.create_task(work), asyncio.create_task(self._signal.wait())
        try:
            await asyncio.wait({task, heard}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            heard.cancel()
            if not task.done():
                task.cancel()
            await asyncio.wait({task, heard})
        return None if task.cancelled() else task.result()

    def _heard(self, number: int) -> None:
        self._ending = self._ending or number in ENDS
        self._signal.set()

    def _reload(self) -> None:
        """A configuration that can't be used leaves the last one in force. Where tools, sysfs and devices are, and
        how to log, only the command line says, which stays."""
        try:
            options = self._load()
        except (FlagError, ConfigError) as error:
            log.error("the configuration stays as it was", error=str(error))
            return
        old, self._options = self._options, options
        self._announce()
        if old.path != options.path and not old.keep_output:
            self._take_away_superseded()
            self._superseded = old.path

    def _announce(self) -> None:
        told = self._options.told()
        if self._options.logging_format == "json":
            log.info("configuration", configuration=told)
        else:
            sys.stderr.write(json.dumps(told, indent=2) + "\n")

    def _sweep(self) -> None:
        path = self._options.path
        try:
            if path is not None:
                output.sweep(path)
        except OSError as error:
            log.warning("what was left half written stays", file=str(path), error=str(error))

    def _take_away_superseded(self) -> None:
        path, self._superseded = self._superseded, None
        if path is not None and path != self._options.path:
            _remove(path)

    def _leave(self) -> None:
        self._take_away_superseded()
        path = self._options.path
        if path is not None and not self._options.oneshot and not self._options.keep_output:
            _remove(path)


def _remove(path: Path) -> None:
    try:
        output.remove(path)
    except OSError as error:
        log.error("the file can't be taken away", file=str(path), error=str(error))


def _rounds(options: Options) -> Rounds:
    roots = replace(Roots.daemonset(), sys=Path(options.sys_root_dir))
    tools = HostTools(Path(options.host_root_dir), options.tool_timeout)
    return Rounds(Node(tools, roots, Path(options.dev_root_dir)), lambda: _functions(roots))


def _functions(roots: Roots) -> tuple[PciFunction, ...]:
    """A machine may have no PCI bus; one without sysfs is a mistake of whoever mounted it. Raises UnreadableFile."""
    try:
        roots.sys.stat()
    except OSError as error:
        raise UnreadableFile(roots.sys, error) from error
    return functions(roots)

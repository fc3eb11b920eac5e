"""The main loop: discover, write, wait; and signal handling (spec 08 §1.2).

SIGHUP reads the configuration again and starts a round; the file stays until its successor is written. SIGINT, SIGTERM
and SIGQUIT end the process and remove the file, except with `--keep-output` or `--oneshot`. A signal cancels the
current round, including its tools.
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
from devicedaemon.options import DaemonConfigError, DeviceDaemonOptions
from devicedaemon.rounds import DiscoveryRounds
from devicedaemon.tools import HostTools
from devicedaemon.vendors.node import HostNode
from koordlet.app.flags import FlagError
from koordlet.app.logging import get_logger
from koordlet.system.devices.pci import PciFunction, functions
from koordlet.system.errors import UnreadableFile
from koordlet.system.roots import Roots

log = get_logger(__name__)

RETRY_SECONDS = 30.0
"""A failed write is retried after this time, or after the normal pause if that is shorter."""
END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT)


class DeviceDaemon:
    """`load` reads the configuration again; raises FlagError or DaemonConfigError if it is invalid."""

    def __init__(self, options: DeviceDaemonOptions, load: Callable[[], DeviceDaemonOptions]) -> None:
        self._options = options
        self._load = load
        self._rounds = _rounds(options)
        self._signal = asyncio.Event()
        self._ending = False
        self._superseded: Path | None = None
        """The file of an earlier configuration; removed once its successor is written."""

    async def run(self) -> int:
        """The exit status: 0 after a signal or one round, 1 when the one round could not be written."""
        loop = asyncio.get_running_loop()
        for number in (*END_SIGNALS, signal.SIGHUP):
            loop.add_signal_handler(number, self._on_signal, number)
        self._print_configuration()
        self._remove_leftovers()
        while True:
            written = await self._unless_signal(self._round())
            if written is not None and self._options.oneshot:
                return 0 if written else 1
            if written is not None:
                pause = self._options.sleep_interval
                await self._unless_signal(asyncio.sleep(pause if written else min(pause, RETRY_SECONDS), result=True))
            if self._ending:
                self._clean_up()
                return 0
            if self._signal.is_set():
                self._signal.clear()
                self._reload()

    async def _round(self) -> bool:
        """Discover and write; whether the devices were written."""
        devices = await self._rounds.run()
        path = self._options.path
        try:
            if path is None:
                output.show(devices)
            else:
                output.write(path, devices)
        except OSError as error:
            log.error("Cannot write devices", file=self._options.output, error=str(error))
            return False
        log.info("Wrote devices", file=self._options.output, devices=len(devices))
        self._remove_superseded()
        return True

    async def _unless_signal(self, work: Coroutine[object, object, bool]) -> bool | None:
        """The result of `work`; None if a signal arrived first, which cancels it."""
        task, signalled = asyncio.create_task(work), asyncio.create_task(self._signal.wait())
        try:
            await asyncio.wait({task, signalled}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            signalled.cancel()
            if not task.done():
                task.cancel()
            await asyncio.wait({task, signalled})
        return None if task.cancelled() else task.result()

    def _on_signal(self, number: int) -> None:
        self._ending = self._ending or number in END_SIGNALS
        self._signal.set()

    def _reload(self) -> None:
        """An invalid configuration leaves the last one in force. The places of tools, sysfs and devices, and the
        logging, are set by the command line only, which does not change."""
        try:
            options = self._load()
        except (FlagError, DaemonConfigError) as error:
            log.error("Invalid configuration; the last one stays in force", error=str(error))
            return
        old, self._options = self._options, options
        self._print_configuration()
        if old.path != options.path and not old.keep_output:
            self._remove_superseded()
            self._superseded = old.path

    def _print_configuration(self) -> None:
        configuration = self._options.document()
        if self._options.logging_format == "json":
            log.info("Configuration", configuration=configuration)
        else:
            sys.stderr.write(json.dumps(configuration, indent=2) + "\n")

    def _remove_leftovers(self) -> None:
        path = self._options.path
        try:
            if path is not None:
                output.sweep(path)
        except OSError as error:
            log.warning("Cannot remove a partly written file", file=str(path), error=str(error))

    def _remove_superseded(self) -> None:
        path, self._superseded = self._superseded, None
        if path is not None and path != self._options.path:
            _remove(path)

    def _clean_up(self) -> None:
        self._remove_superseded()
        path = self._options.path
        if path is not None and not self._options.oneshot and not self._options.keep_output:
            _remove(path)


def _remove(path: Path) -> None:
    try:
        output.remove(path)
    except OSError as error:
        log.error("Cannot remove the file", file=str(path), error=str(error))


def _rounds(options: DeviceDaemonOptions) -> DiscoveryRounds:
    roots = replace(Roots.daemonset(), sys=Path(options.sys_root_dir))
    tools = HostTools(Path(options.host_root_dir), options.tool_timeout)
    return DiscoveryRounds(HostNode(tools, roots, Path(options.dev_root_dir)), lambda: _functions(roots))


def _functions(roots: Roots) -> tuple[PciFunction, ...]:
    """Empty on a machine without a PCI bus. Raises UnreadableFile without sysfs, which is a mounting error."""
    try:
        roots.sys.stat()
    except OSError as error:
        raise UnreadableFile(roots.sys, error) from error
    return functions(roots)

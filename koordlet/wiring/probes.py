"""Opens the probes: those for the first sample before anything runs, the others while koordlet already runs.

They are opened one at a time, because each load blocks the loop for tenths of a second. Stop signals are blocked while
a probe is opened: a stop between two pins would leave the first one behind.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from koordlet.app.logging import get_logger
from koordlet.probes.openprobes import STARTING, ProbeSet, begin_probes
from koordlet.wiring.context import WiringContext

log = get_logger(__name__)

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
PAUSE_S = 0.1
"""Time for other tasks between two loads."""


@contextmanager
def stop_signals_blocked() -> Iterator[None]:
    """Stop signals are delivered after the block."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def begin(context: WiringContext) -> ProbeSet:
    """Open the probes for the first sample. The caller must close the set in any case."""
    options = context.options
    probes = begin_probes(
        context.host,
        options.probes,
        Path(options.bpf_pin_dir) if options.bpf_pin_dir else None,
        mount_bpffs=options.mount_bpffs,
    )
    context.host.mounted_bpffs()
    for name, status in probes.status.items():
        if status != STARTING:
            _log_status(probes, name)
    return probes


def open_others(context: WiringContext, probes: ProbeSet, after: float, opened: Callable[[], None]) -> None:
    """Open the other probes, beginning after `after` seconds; `opened` is called after each."""

    async def one_by_one() -> None:
        await asyncio.sleep(after)
        while STARTING in probes.status.values():
            await asyncio.sleep(PAUSE_S)
            with stop_signals_blocked():
                name = probes.open_next()
            if name is not None:
                _log_status(probes, name)
                opened()

    context.runner.spawn("open-probes", one_by_one, critical=False)


def _log_status(probes: ProbeSet, name: str) -> None:
    status = probes.status[name]
    log.info("Probe opened", name=name, loaded=status.loaded, source=status.source, reason=status.reason)

"""The probes: what the first sample is made of before anything runs, the others beside what runs already.

One at a time, because each load holds up the loop for tenths of a second. Signals to stop wait until a probe is
complete: one that came between two pins would leave them behind.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from koordlet.app.logging import get_logger
from koordlet.probes.openprobes import STARTING, ProbeSet, begin_probes
from koordlet.wiring.context import Context

log = get_logger(__name__)

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
TURN_SECONDS = 0.1
"""Left to everything else between two loads."""


@contextmanager
def signals_held() -> Iterator[None]:
    """Stop signals come when this ends."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def begin(context: Context) -> ProbeSet:
    """What is opened before the first sample. Close it, whatever happens."""
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
            _say(probes, name)
    return probes


def open_others(context: Context, probes: ProbeSet, after: float, opened: Callable[[], None]) -> None:
    """Open the rest from *after* seconds on; *opened* is called after each."""

    async def one_by_one() -> None:
        await asyncio.sleep(after)
        while STARTING in probes.status.values():
            await asyncio.sleep(TURN_SECONDS)
            with signals_held():
                name = probes.open_next()
            if name is not None:
                _say(probes, name)
                opened()

    context.runner.spawn("open-probes", one_by_one, critical=False)


def _say(probes: ProbeSet, name: str) -> None:
    status = probes.status[name]
    log.info("probe", name=name, loaded=status.loaded, source=status.source, reason=status.reason)

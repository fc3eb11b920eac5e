"""A running koordlet tells memory stalls and out-of-memory kills of containers, over its own death, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from koordlet.system.cgroup.naming import KubeQOS
from tests.koordlet.process.patience import until

pytestmark = [pytest.mark.kernel, pytest.mark.timing]

LIMIT = 24 << 20
CYCLE = """
import mmap
memory = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.madvise(mmap.MADV_NOHUGEPAGE)
while True:
    for begin in range(0, len(memory), 1 << 20):
        for i in range(begin, begin + (1 << 20), 4096):
            memory[i] = 1
        memory.madvise(mmap.MADV_FREE, begin, 1 << 20)
        time.sleep(0.01)
"""
GROW = "held = bytearray(64 << 20)\nfor i in range(0, len(held), 4096):\n    held[i] = 1"
STALLED = "koordlet_mem_stall_kind_seconds_total"
KILLED = "koordlet_oom_kills_total"


def test_stalls_and_kills_are_reported(trees: Callable[..., Any], views: Any, koordlets: Any) -> None:
    tree = trees()
    view = views(tree)
    [short], [doomed] = tree.pod(KubeQOS.BURSTABLE), tree.pod(KubeQOS.BESTEFFORT)
    for container in (short, doomed):
        file = "memory.max" if tree.v2 else "memory.limit_in_bytes"
        (container.path("memory") / file).write_text(str(LIMIT))
    koordlet = koordlets(view).wait()
    short.run(CYCLE)
    doomed.run(GROW)

    def stalled(page_container: Any) -> float:
        return float(sum(page_container.values(STALLED, container_id=short.key, kind="own_limit")))

    until(lambda: stalled(koordlet) > 0, "stalls at the container's own limit")
    until(lambda: koordlet.values(KILLED, container_id=doomed.key, scope="limit") == [1.0], "the kill")
    shares = "koordlet_mem_stall_culprit_share"
    until(lambda: koordlet.values(shares, container_id=short.key) == [1.0], "its own allocations as the only cause")
    assert koordlet.values(shares, container_id=short.key, culprit=short.name) == [1.0]
    assert koordlet.log.count("Out of memory: a task was killed") == 1
    before = stalled(koordlet)
    koordlet.kill()
    successor = koordlets(view).wait()
    until(lambda: stalled(successor) > before, "what went before, and more")
    until(lambda: successor.values(KILLED, container_id=doomed.key, scope="limit") == [1.0], "the kill before")

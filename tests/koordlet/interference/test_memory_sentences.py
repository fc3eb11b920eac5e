"""A node short of memory: from the probe's counters to the published sentence."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from koordlet.api.sloconfig.interference import DEFAULT
from koordlet.interference import sources
from koordlet.interference.detector import Detector
from koordlet.interference.model import Cause, Evidence, WaitResource
from koordlet.interference.wording import sentence
from koordlet.metricsadvisor.stalls.memstall import by_subject
from koordlet.probes.culprits.matrix import CulpritMatrix
from koordlet.probes.culprits.slots import SPECIAL_KEYS
from koordlet.probes.memstall.snapshot import KINDS, NODE, MemStallSnapshot, sums_only
from koordlet.statesinformer.pods.cgroupindex import Owner, owner_of
from tests.koordlet.interference.conftest import Make
from tests.koordlet.probes.rows import row_of

WEB, BATCH, SSH, WEBS_LIMIT = 10, 20, 30, 110


def reading(
    kinds: dict[str, int], reclaims: dict[tuple[int, int], tuple[int, int]], wakeups: dict[int, int]
) -> MemStallSnapshot:
    """web's *kinds* -> ms; *reclaims*: (task, limit) -> (ms, count); *wakeups* of kswapd by key."""
    base: MemStallSnapshot = sums_only(dict.fromkeys({WEB, *wakeups}, 0))
    sums, row = base.sum_ns.copy(), row_of(base, WEB)
    for kind, ms in kinds.items():
        sums[row, KINDS.index(kind)] = ms * 1_000_000
    columns = [(task, limit, ms * 1_000_000, count) for (task, limit), (ms, count) in sorted(reclaims.items())]
    task, limit, ns, count = np.array(columns, dtype=np.int64).reshape(-1, 4).T
    return replace(
        base, source="bpf", sum_ns=sums, wakeups=np.array([wakeups.get(int(key), 0) for key in base.keys]),
        limits=CulpritMatrix(task, limit, ns, count),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kinds", "reclaims", "wakeups", "cause", "words", "action"),
    [
        pytest.param(
            {"direct": 900}, {(WEB, NODE): (900, 10), (BATCH, NODE): (2000, 80)}, {BATCH: 10},
            Cause.NEIGHBOUR, "for memory: default/batch/batch 90 %", "suppress-best-effort", id="batch-presses",
        ),
        pytest.param(
            {"direct": 600, "refault": 400}, {(WEB, NODE): (600, 10), (SSH, NODE): (10, 20)}, {SSH: 50, WEB: 20},
            Cause.NEIGHBOUR, "for memory: ssh.service 70 %", "move-system-service", id="a-host-service-presses",
        ),
        pytest.param(
            {"direct": 900}, {(WEB, NODE): (900, 1)}, {SPECIAL_KEYS["kworker"]: 9},
            Cause.NEIGHBOUR, "for memory: kernel:kworker 90 %", "look-at-kernel-work", id="the-kernel-presses",
        ),
        pytest.param(
            {"direct": 900}, {(WEB, NODE): (900, 90)}, {BATCH: 5, WEB: 5},
            Cause.SELF, "caused by itself: it contributed to the pressure on shared memory", "use-less-memory",
            id="it-presses-itself",
        ),
        pytest.param(
            {"own_limit": 800, "direct": 100}, {(WEB, WEBS_LIMIT): (800, 90), (WEB, NODE): (100, 9)}, {WEB: 3},
            Cause.SELF,
            "caused by itself: it was at its own memory limit, it contributed to the pressure on shared memory",
            "raise-memory-limit", id="its-limit-more-than-the-node",
        ),
        pytest.param(
            {"compaction": 900}, {(BATCH, NODE): (2000, 80)}, {},
            Cause.NEIGHBOUR, "for memory: no single culprit", "move-victim", id="fragmentation-has-no-culprit",
        ),
    ],
)  # fmt: skip
def test_the_sentence_names_the_cause_of_memory_stalls(
    make: type[Make],
    kinds: dict[str, int],
    reclaims: dict[tuple[int, int], tuple[int, int]],
    wakeups: dict[int, int],
    cause: Cause,
    words: str,
    action: str,
) -> None:
    web, batch = make.container("web"), make.container("batch", qos="BE")
    owners = {
        WEB: owner_of(web),
        BATCH: owner_of(batch),
        SSH: Owner("system", "ssh.service"),
        WEBS_LIMIT: owner_of(web),
    }
    window = by_subject(reading(kinds, reclaims, wakeups), 1.0, owners.__getitem__, owners.__getitem__)
    frame = SimpleNamespace(
        subjects=(web,),
        keys=(web.key,),
        row_of={web.key: 0},
        ran=np.array([0.1]),
        memory_usage_ratio=np.array([0.5]),
        pressure={},
    )
    evidence = sources.MemorySource(lambda: window, lambda: "bpf").evidence(frame)  # type: ignore[arg-type]
    verdicts = Detector().step(Evidence((web,), 10.0, {WaitResource.MEMORY: evidence}), 0.0, DEFAULT).verdicts  # type: ignore[dict-item]
    verdict = max(verdicts, key=lambda memory_verdict: memory_verdict.lost)
    assert verdict.cause is cause
    assert sentence(verdict).endswith(words)
    assert verdict.action == action

"""Decisions agree with the real kube-scheduler in random worlds: `make test-oracle WORLDS=2000 SEED=1`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.kubernetes.oracle.run import run_worlds

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.kubernetes
async def test_decisions_agree_with_kube_scheduler(tmp_path: Path) -> None:
    worlds = int(os.environ.get("KOORD_ORACLE_WORLDS") or 80)
    seed = int(os.environ.get("KOORD_ORACLE_SEED") or 1)
    programs = ROOT / "build" / "kubernetes" / os.environ.get("KOORD_KUBERNETES", "v1.35") / "bin"
    print(f"seeds {seed} to {seed + worlds - 1}")
    tally = await run_worlds(tmp_path, programs, range(seed, seed + worlds))
    assert tally.worlds == worlds
    assert min(tally.counts[name] for name in ("scored", "unschedulable", "preemptions", "gated")) > 0, tally.counts
    assert not tally.differences, "\n".join(map(str, tally.differences))

"""The embedded API server answers like kube-apiserver: the same requests go to both, and every difference is known."""

from __future__ import annotations

import importlib
import os

import pytest

from tests.kubernetes.apidiff.exchange import differences
from tests.kubernetes.apidiff.known import DELIBERATE, OPEN, KnownDifference
from tests.kubernetes.apidiff.servers import ComparedServer
from tests.kubernetes.apidiff.session import run_calls

VERSION = os.environ.get("KOORD_KUBERNETES", "v1.35")
pytestmark = [pytest.mark.kubernetes] if VERSION == "v1.35" else []  # `known` is about this version
TABLES = ("crud", "patches", "lists", "kinds", "pods", "invalid", "custom", "protocol")
used: set[KnownDifference] = set()


@pytest.mark.parametrize("name", TABLES)
def test_both_servers_answer_alike(servers: tuple[ComparedServer, ComparedServer], name: str) -> None:
    table = importlib.import_module(f"tests.kubernetes.apidiff.cases.{name}")
    unknown, calls = [], 0
    for call, real, embedded in run_calls(table, *servers):
        calls += 1
        where = f"{name}/{call.name}"
        for place, expected, actual in differences(real, embedded):
            rows = [row for row in (*DELIBERATE, *OPEN) if row.covers(where, place)]
            used.update(rows)
            if not rows:
                unknown.append(f"{where}: {place}\n  kube-apiserver {expected!r}\n  embedded       {actual!r}")
    print(f"{name}: {calls} calls")
    assert not unknown, f"{len(unknown)} differences:\n" + "\n".join(unknown)


def test_no_known_difference_is_stale() -> None:
    """Runs after all tables; a row that covered nothing is wrong or has been fixed."""
    stale = [row for row in (*DELIBERATE, *OPEN) if row not in used]
    assert not stale, "\n".join(f"{row.calls}: {row.places}: {row.reason}" for row in stale)

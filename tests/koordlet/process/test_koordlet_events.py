"""What a koordlet process hears from the kernel and writes down: new pods at once, /events, kill -9, a bad disk."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from koordlet.system.cgroup.naming import CgroupDriver, KubeQOS
from tests.koordlet.process.patience import until

pytestmark = [pytest.mark.kernel, pytest.mark.timing]

AUDITED = "--feature-gates=AuditEvents=true,AuditEventsHTTPHandler=true"
NEVER = "--discover-interval=10h"
"""Only the kernel's word makes koordlet look."""


def ask(koordlet: Any, path: str, **headers: str) -> tuple[int, str]:
    """Status and text of an answer, refusals included."""
    request = urllib.request.Request(f"http://127.0.0.1:{koordlet.port}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def reasons(koordlet: Any) -> list[str]:
    status, text = ask(koordlet, "/events")
    assert status == 200, text
    return [json.loads(line)["reason"] for line in text.splitlines()]


def start(koordlets: Any, view: Any, *flags: str) -> Any:
    return koordlets(view, NEVER, f"--audit-log-dir={view.scratch / 'audit/log'}", "--probes=off", *flags).wait()


def rows(koordlet: Any) -> set[str]:
    return {row["id"] for row in koordlet.top().get("rows", [])}


@pytest.mark.parametrize("driver", list(CgroupDriver), ids=lambda driver: driver.value)
def test_pods_are_known_before_the_next_poll(
    trees: Callable[..., Any], views: Any, koordlets: Any, driver: CgroupDriver
) -> None:
    tree = trees(driver)
    koordlet = start(koordlets, views(tree))
    (first,), (second, third) = tree.pod(KubeQOS.BURSTABLE), tree.pod(KubeQOS.BESTEFFORT, 2)  # kubepods is made here
    until(lambda: {first.key, second.key, third.key} <= rows(koordlet), "the new containers in /top")
    third.remove()
    tree.containers.remove(third)
    until(lambda: third.key not in rows(koordlet), "the removed container to leave /top")
    tree.remove_pod(first.pod_uid, KubeQOS.BURSTABLE)
    until(lambda: first.key not in rows(koordlet), "the removed pod to leave /top")
    assert second.key in rows(koordlet)
    assert koordlet.value("koordlet_pleg_events_total", kind="pod-added") == 2
    assert koordlet.value("koordlet_pleg_events_total", kind="container-deleted") == 2
    assert koordlet.value("koordlet_pleg_directories", how="polled") == 0
    assert koordlet.value("koordlet_pleg_overflows_total") == 0
    assert ask(koordlet, "/events")[0] == 404, "the gate is off"
    koordlet.kill()


def test_the_audit_log_outlives_kill_and_a_bad_disk(trees: Callable[..., Any], views: Any, koordlets: Any) -> None:
    view = views(trees())
    directory: Path = view.scratch / "audit"
    directory.write_text("in the way")
    koordlet = start(koordlets, view, AUDITED)
    until(lambda: ask(koordlet, "/readyz?verbose")[1].count("[-]audit"), "the condition")
    assert reasons(koordlet) == []
    directory.unlink()
    assert until(lambda: reasons(koordlet), "the event that waited") == ["KoordletStarted"]
    assert "[+]audit ok" in ask(koordlet, "/readyz?verbose")[1]
    assert koordlet.value("koordlet_audit_events_total", outcome="written") == 1
    assert koordlet.value("koordlet_audit_events_total", outcome="dropped") == 0
    assert koordlet.value("koordlet_audit_written_bytes_total") == (directory / "log/audit.log").stat().st_size
    assert ask(koordlet, "/events?size=-1")[0] == 400
    assert ask(koordlet, "/events?size=2049")[0] == 400
    assert ask(koordlet, "/events?pageToken=x")[0] == 409
    koordlet.kill()
    with (directory / "log/audit.log").open("ab") as log:
        log.write(b'{"createdAt":"torn by a ki')

    koordlet = start(koordlets, view, AUDITED, "--audit-max-events-limit=1000")
    assert reasons(koordlet) == ["KoordletStarted"] * 2
    page = json.loads(ask(koordlet, "/events?size=1", Accept="text/html, application/json")[1])
    assert [event["type"] for event in page["Events"]] == ["node"]
    rest = json.loads(ask(koordlet, f"/events?pageToken={page['NextPageToken']}", Accept="application/json")[1])
    assert (len(rest["Events"]), rest["NextPageToken"]) == (1, "")
    assert ask(koordlet, "/events?size=1001")[0] == 400
    assert koordlet.terminate() == 0

    koordlet = start(koordlets, view, "--feature-gates=AuditEventsHTTPHandler=true")
    assert ask(koordlet, "/events") == (200, "")
    koordlet.kill()
    kept = [
        json.loads(line)["reason"]
        for line in (directory / "log/audit.log").read_text().splitlines()
        if "ki" not in line
    ]
    assert kept == ["KoordletStarted", "KoordletStarted", "KoordletStopped"]

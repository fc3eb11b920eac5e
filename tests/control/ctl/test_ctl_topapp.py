"""The live view, driven without a terminal."""

from __future__ import annotations

import re

import pytest
from textual.widgets import DataTable, Input, Static

from control.ctl.views.koordletclient import KoordletUnreachable
from control.ctl.views.topapp import TopApp
from koordlet.api.pages.top import SchedLatency, Top, TopCulprit, TopRow


class FakeKoordlet:
    """Returns the same data, or does not respond."""

    def __init__(self) -> None:
        self.away = False
        culprit = TopCulprit(
            kind="container", namespace="default", pod="batch", name="burn", qos="BE", share=0.9, wait=0.3
        )
        self.rows = [
            TopRow(kind="container", namespace="default", pod="web", name="serve", qos="LS", cpu=0.1,
                   sched=SchedLatency(p50=0.001, p99=0.01, wait=0.4, count=10, culprits=[culprit])),
            TopRow(kind="container", namespace="default", pod="batch", name="burn", qos="BE", cpu=0.9,
                   sched=SchedLatency(p50=0.002, p99=0.002, wait=0.1, count=9)),
            TopRow(kind="group", name="ssh.service", id="system.slice/ssh.service", cpu=0.01),
        ]  # fmt: skip

    async def __call__(self) -> Top:
        if self.away:
            raise KoordletUnreachable("does not respond", "start one")
        return Top(node="n1", cpus=2, cpu=1.0, memory=1.0, memory_total=2.0, window=10.0, rows=self.rows)


@pytest.fixture
def koordlet() -> FakeKoordlet:
    return FakeKoordlet()


@pytest.fixture
def app(koordlet: FakeKoordlet) -> TopApp:
    return TopApp(koordlet, "http://127.0.0.1:1", interval=3600)


def names(app: TopApp) -> list[str]:
    return [row.name for row in app.shown.values()]


def words(app: TopApp, which: str) -> str:
    return str(app.query_one(which, Static).render())


async def test_rows_are_sorted_by_cpu_and_keys_change_it(app: TopApp) -> None:
    async with app.run_test(size=(200, 40)) as pilot:
        await app.refresh_data()
        assert names(app) == ["burn", "serve", "ssh.service"]
        assert app.query_one("#rows", DataTable).row_count == 3
        assert "n1  3 containers" in words(app, "#head")
        for key, order in (("w", ["serve", "burn", "ssh.service"]), ("p", ["serve", "burn", "ssh.service"])):
            await pilot.press(key)
            assert names(app) == order
        await pilot.press("c", "s")
        assert app.sort == "memory"


async def test_the_details_show_the_culprits_of_the_selected_row(app: TopApp) -> None:
    async with app.run_test(size=(200, 40)) as pilot:
        await app.refresh_data()
        await pilot.press("w", "d")
        assert app.query_one("#details", Static).display
        assert "default/web/serve" in words(app, "#details")
        assert "batch/burn [BE]" in words(app, "#details")
        await pilot.press("down")
        await pilot.pause()
        assert "default/batch/burn" in words(app, "#details")
        assert "no culprits" in words(app, "#details")


async def test_the_selection_follows_its_row_when_the_order_changes(app: TopApp, koordlet: FakeKoordlet) -> None:
    async with app.run_test(size=(200, 40)) as pilot:
        await app.refresh_data()
        await pilot.press("d")
        koordlet.rows[0].cpu = 1.5
        await app.refresh_data()
        await pilot.pause()
        assert names(app) == ["serve", "burn", "ssh.service"]
        assert "default/batch/burn" in words(app, "#details")


async def test_filter_and_back(app: TopApp) -> None:
    async with app.run_test(size=(200, 40)) as pilot:
        await app.refresh_data()
        await pilot.press("slash", "s", "s", "h")
        assert names(app) == ["ssh.service"]
        await pilot.press("enter")
        assert not app.query_one("#find", Input).display
        assert "filter: ssh" in words(app, "#head")
        await pilot.press("escape")
        assert len(names(app)) == 3


async def test_the_view_survives_an_unreachable_koordlet(app: TopApp, koordlet: FakeKoordlet) -> None:
    koordlet.away = True
    async with app.run_test(size=(200, 40)):
        await app.refresh_data()
        assert "waiting for koordlet: does not respond" in words(app, "#state")
        koordlet.away = False
        await app.refresh_data()
        assert not app.query_one("#state", Static).display
        assert len(names(app)) == 3
        koordlet.away = True
        await app.refresh_data()
        assert re.search(r"waiting for koordlet \(data are \d+s old\)", words(app, "#state"))
        assert len(names(app)) == 3


async def test_rows_that_vanish_leave_no_dangling_selection(app: TopApp, koordlet: FakeKoordlet) -> None:
    async with app.run_test(size=(200, 40)) as pilot:
        await app.refresh_data()
        await pilot.press("d", "down", "down")
        koordlet.rows = []
        await app.refresh_data()
        assert "no row is selected" in words(app, "#details")

"""The live view of `koordctl top`.

One task queries koordlet every interval, one request at a time. While koordlet does not respond, the last data stay
with their age, and the view continues when koordlet is back. Keys are in the footer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.widgets import DataTable, Footer, Input, Static

from control.ctl import text
from control.ctl.terminal import printable, printable_lines
from control.ctl.views import toptable
from control.ctl.views.koordletclient import KoordletUnreachable
from koordlet.api.pages.top import Top, TopRow

Fetch = Callable[[], Awaitable[Top]]


class TopApp(App[None]):
    """`fetch` returns the data or raises KoordletUnreachable."""

    TITLE = "koordctl top"
    CSS = """
    #head { height: auto; padding: 0 1; }
    #state { height: auto; padding: 0 1; color: $warning; display: none; }
    #rows { height: 1fr; }
    #details { height: auto; max-height: 9; padding: 0 1; border-top: solid $primary; display: none; }
    #find { display: none; height: 3; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        ("q", "quit", "Quit"),
        ("s", "next_sort", "Sort"),
        ("c", "sort('cpu')", "CPU"),
        ("m", "sort('memory')", "Memory"),
        ("w", "sort('wait')", "Wait"),
        ("p", "sort('p99')", "p99"),
        ("slash", "find", "Filter"),
        ("d", "details", "Culprits"),
        ("escape", "leave", "Back"),
    ]

    def __init__(
        self,
        fetch: Fetch,
        url: str,
        *,
        interval: float,
        sort: str = "cpu",
        namespace: str | None = None,
        wide: bool = False,
    ) -> None:
        super().__init__()
        self._fetch = fetch
        self._url = url
        self._interval = interval
        self._namespace = namespace
        self._columns = toptable.columns(wide=wide)
        self.sort = sort
        self.search = ""
        self.top: Top | None = None
        self.problem = ""
        self.shown: dict[str, TopRow] = {}
        self._fetched = 0.0

    def compose(self) -> ComposeResult:
        yield Static(id="head", markup=False)
        yield Static(id="state", markup=False)
        yield Input(placeholder="text in namespace, pod, name, QoS or culprit; Enter keeps the filter", id="find")
        with Vertical():
            yield DataTable(id="rows", cursor_type="row", zebra_stripes=True)
            yield Static(id="details", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        rows = self._table
        for column in self._columns:
            rows.add_column(column.head, key=column.head)
        rows.focus()
        self._show_state(f"waiting for koordlet at {self._url} …")
        self.run_worker(self._follow(), name="follow", exclusive=True)

    @property
    def _table(self) -> DataTable[Text]:
        return self.query_one("#rows", DataTable)

    # Data

    async def _follow(self) -> None:
        while True:
            await self.refresh_data()
            await asyncio.sleep(self._interval)

    async def refresh_data(self) -> None:
        """Query koordlet once and show the result."""
        try:
            self.top = await self._fetch()
        except KoordletUnreachable as error:
            self.problem = error.message
            old = f" (data are {text.age(time.monotonic() - self._fetched)} old)" if self.top is not None else ""
            self._show_state(f"waiting for koordlet{old}: {error.message}")
            return
        self.problem = ""
        self._fetched = time.monotonic()
        self._show_state("")
        self._show()

    def _show_state(self, line: str) -> None:
        widget = self.query_one("#state", Static)
        widget.update(printable(line))
        widget.display = bool(line)

    def _show(self) -> None:
        if self.top is None:
            return
        rows = toptable.select(self.top.rows, sort=self.sort, namespace=self._namespace, find=self.search)
        searching = f"  filter: {self.search}" if self.search else ""
        head = toptable.node_lines(self.top)
        self.query_one("#head", Static).update(
            printable_lines("\n".join([f"{head[0]}  sort: {self.sort}{searching}", *head[1:]]))
        )
        table = self._table
        selected = self._selected()
        self.shown = {_key(row): row for row in rows}
        table.clear()
        for key, row in self.shown.items():
            # as Text: a name such as `a[/b]` is no markup
            table.add_row(*(Text(printable(column.cell(row))) for column in self._columns), key=key)
        if selected in self.shown:
            table.move_cursor(row=list(self.shown).index(selected))
        self._show_details()

    def _selected(self) -> str:
        table = self._table
        keys = list(self.shown)
        return keys[table.cursor_row] if 0 <= table.cursor_row < len(keys) else ""

    def _show_details(self) -> None:
        row = self.shown.get(self._selected())
        lines = ["no row is selected"] if row is None else toptable.details(row)
        self.query_one("#details", Static).update("\n".join(map(printable, lines)))

    # Keys

    def action_sort(self, by: str) -> None:
        """Change the order and scroll to the top."""
        self.sort = by
        self._table.move_cursor(row=0)
        self.shown = {}
        self._show()

    def action_next_sort(self) -> None:
        self.action_sort(toptable.SORTS[(toptable.SORTS.index(self.sort) + 1) % len(toptable.SORTS)])

    def action_details(self) -> None:
        widget = self.query_one("#details", Static)
        widget.display = not widget.display
        self._show_details()

    def action_find(self) -> None:
        find = self.query_one("#find", Input)
        find.display = True
        find.focus()

    def action_leave(self) -> None:
        """Show all rows again."""
        find = self.query_one("#find", Input)
        find.value, find.display, self.search = "", False, ""
        self._table.focus()
        self._show()

    def on_input_changed(self, event: Input.Changed) -> None:
        self.search = event.value
        self._show()

    def on_input_submitted(self) -> None:
        self.query_one("#find", Input).display = False
        self._table.focus()

    def on_data_table_row_highlighted(self) -> None:
        self._show_details()


def _key(row: TopRow) -> str:
    return "\0".join((row.kind, row.namespace, row.pod, row.name, row.id))

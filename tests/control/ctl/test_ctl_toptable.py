"""The table of `koordctl top`: cells, order, filters, culprits."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from control.ctl.views import toptable
from koordlet.api.pages.interference import Brief
from koordlet.api.pages.top import FeatureState, SchedLatency, Top, TopCulprit, TopPressure, TopRow


def culprit(**fields: object) -> TopCulprit:
    return TopCulprit(**{"kind": "container", "share": 0.87, "wait": 0.4, **fields})  # type: ignore[arg-type]


WEB = TopRow(
    kind="container", namespace="default", pod="web", name="serve", id="c1", qos="LS", priority="koord-prod",
    cpu=0.2, memory=64 << 20, throttled=0.0, pressure=TopPressure(cpu=0.31, memory=0.0, io=0.0004),
    sched=SchedLatency(
        p50=0.0012, p99=0.0043, wait=0.46, throttled=0.0, count=812,
        culprits=[
            culprit(namespace="default", pod="batch-0", name="burn", qos="BE"),
            culprit(kind="kernel", name="softirq", share=0.1, wait=0.05),
            culprit(namespace="default", pod="web", name="serve", share=0.03, wait=0.01),
        ],
    ),
)  # fmt: skip
BATCH = TopRow(kind="container", namespace="jobs", pod="batch-0", name="burn", qos="BE", cpu=0.8, memory=1 << 20)
SSHD = TopRow(kind="group", name="ssh.service", id="system.slice/ssh.service")
ROWS = [SSHD, WEB, BATCH]


def cells(row: TopRow, *, wide: bool = False) -> dict[str, str]:
    return {column.head: column.cell(row) for column in toptable.columns(wide=wide)}


def test_cells_of_a_container() -> None:
    assert cells(WEB) == {
        "NAMESPACE": "default", "POD": "web", "CONTAINER": "serve", "QOS": "LS", "CPU": "200m", "MEM": "64Mi",
        "PSI-CPU%": "31", "PSI-MEM%": "0", "PSI-IO%": "<0.1", "P50": "1.20ms", "P99": "4.30ms", "WAIT%": "46",
        "THROTTLED%": "0", "WORST CULPRIT": "batch-0/burn (87%)", "INTERFERENCE": "-",
    }  # fmt: skip


def test_absent_figures_are_dashes_and_services_show_their_names() -> None:
    shown = cells(SSHD)
    assert shown["CONTAINER"] == "ssh.service"
    assert {value for head, value in shown.items() if head != "CONTAINER"} == {"-"}


def test_wide_adds_columns() -> None:
    extra = set(cells(WEB, wide=True)) - set(cells(WEB))
    assert extra == {"PRIORITY", "KIND", "QUOTA-WAIT%", "WAITS", "ID"}


@pytest.mark.parametrize(
    ("top_culprit", "shown"),
    [
        (culprit(namespace="default", pod="batch-0", name="burn"), "batch-0/burn"),
        (culprit(namespace="other", pod="batch-0", name="burn"), "other/batch-0/burn"),
        (culprit(namespace="default", pod="web", name="serve"), "self"),
        (culprit(namespace="default", pod="web", name="sidecar"), "web/sidecar"),
        (culprit(kind="kernel", name="softirq"), "kernel:softirq"),
        (culprit(kind="unknown", name="older"), "(not recorded)"),
        (culprit(kind="qos", name="besteffort", qos="BE"), "qos:besteffort"),
        (culprit(kind="qos", qos="BE"), "qos:BE"),
        (culprit(kind="system", name="ssh.service"), "ssh.service"),
        (culprit(kind="host-application", name="nginx"), "nginx"),
        (culprit(kind="root"), "(root tasks)"),
        (culprit(kind="gone"), "(ended)"),
        (culprit(kind="idle"), "(idle)"),
        (culprit(kind="system"), "system"),
    ],
)
def test_culprit_names(top_culprit: TopCulprit, shown: str) -> None:
    assert toptable.culprit_name(WEB, top_culprit) == shown


@pytest.mark.parametrize(
    ("sort", "order"),
    [("cpu", ["burn", "serve", "ssh.service"]), ("memory", ["serve", "burn", "ssh.service"]),
     ("wait", ["serve", "ssh.service", "burn"]), ("p99", ["serve", "ssh.service", "burn"]),
     ("name", ["ssh.service", "serve", "burn"])],
)  # fmt: skip
def test_sorting_puts_absent_last_and_ties_by_name(sort: str, order: list[str]) -> None:
    assert [row.name for row in toptable.select(ROWS, sort=sort)] == order


def test_a_service_that_waits_for_itself_is_self() -> None:
    assert toptable.culprit_name(SSHD, culprit(kind="system", name="ssh.service")) == "self"
    assert toptable.culprit_name(SSHD, culprit(kind="system", name="cron.service")) == "cron.service"


def test_every_sort_of_the_command_line_works() -> None:
    assert all(len(toptable.select(ROWS, sort=sort)) == 3 for sort in toptable.SORTS)


def test_namespace_and_text_filters() -> None:
    assert toptable.select(ROWS, namespace="jobs") == [BATCH]
    assert toptable.select(ROWS, find="SSH") == [SSHD]
    assert toptable.select(ROWS, find="batch-0") == [BATCH, WEB]  # web by its culprit
    assert toptable.select(ROWS, find="nothing like it") == []


def test_the_head_has_bars_shares_and_what_is_degraded() -> None:
    top = Top(
        node="n1", cpus=4, cpu=1.0, memory=float(8 << 30), memory_total=float(16 << 30), system_cpu=0.25,
        window=10.0, rows=ROWS, probes=[FeatureState(name="sched_latency", up=False, reason="no BTF")],
    )  # fmt: skip
    assert toptable.node_lines(top, width=8) == [
        "n1  3 containers and services; latency over 10 s",
        "CPU [||      ] 25%  1000m of 4 cores, system 250m",
        "MEM [||||    ] 50%  8Gi of 16Gi, system -",
        "probe sched_latency is not loaded: no BTF",
    ]


def test_the_head_before_the_first_sample() -> None:
    lines = toptable.node_lines(Top(), width=4)
    assert lines[0].startswith("this host  0 containers")
    assert lines[1] == "CPU [    ] -%  - of 0 cores, system -"


def test_details_list_all_culprits() -> None:
    lines = toptable.details(WEB)
    assert lines[0] == "default/web/serve  LS koord-prod"
    assert "812 waits, p50 1.20ms, p99 4.30ms" in lines[1]
    assert [line.split()[-2:] for line in lines[2:]] == [
        ["batch-0/burn", "[BE]"],
        ["50.0ms/s", "kernel:softirq"],
        ["10.0ms/s", "self"],
    ]


def test_details_without_a_probe_and_without_waiting() -> None:
    assert "no schedule latency" in toptable.details(SSHD)[1]
    quiet = TopRow(name="q", sched=SchedLatency())
    assert toptable.details(quiet)[-1] == "no culprits"


def test_the_table_prints_one_line_per_row() -> None:
    out = io.StringIO()
    Console(file=out, width=300).print(toptable.table([WEB, SSHD]))
    lines = out.getvalue().splitlines()
    assert lines[0].split()[:3] == ["NAMESPACE", "POD", "CONTAINER"]
    assert lines[1].split()[-3:] == ["batch-0/burn", "(87%)", "-"]
    assert len(lines) == 3


def test_the_verdict_cell_distinguishes_interference_and_own_trouble() -> None:
    neighbour = Brief(resource="cpu", cause="neighbour", score=2.34)
    lesser, own = Brief(resource="io", cause="neighbour", score=1.1), Brief(resource="cpu", cause="self", score=3.0)
    row = TopRow(verdicts=[own, neighbour, lesser])
    assert toptable.verdict_cell(row) == "cpu self, cpu 2.3x"

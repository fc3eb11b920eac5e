"""`make bench-colocation` without its services: outputs of the programs, the plan, the client, tables and figures.

The samples were recorded from stress-ng 0.15, fio 3.33, ffmpeg 5.1 and pgbench 15, and shortened.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import subprocess
import sys
import threading
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.scale.colocation import client, picture
from tests.scale.colocation_real import batch, outputs, plan, results
from tests.scale.colocation_real.__main__ import chosen, words
from tests.scale.colocation_real.node import CONFIGURATIONS, RealReading, node_slo
from tests.scale.colocation_real.plan import PHASES, PlannedReading
from tests.scale.colocation_real.services import SERVICES, make
from tests.scale.figures import ROOT

STRESS = """metrics:
    - stressor: cpu
      bogo-ops: 179
      bogo-ops-per-second-usr-sys-time: 1723.739455
      bogo-ops-per-second-real-time: 178.648351
      wall-clock-time: 1.001968
    - stressor: sock
      bogo-ops: 386
      bogo-ops-per-second-real-time: 191.151649
"""
FIO = """fio: a message
{"fio version": "fio-3.33", "jobs": [
 {"jobname": "disk", "read": {"bw_bytes": 721216000, "iops": 2}, "write": {"bw_bytes": 1048576}, "trim": {}}
]}
"""
FFMPEG = "frame=1\nfps=0.00\nprogress=continue\nframe=59\nfps=0.00\nspeed=1.27x\nprogress=continue\nframe=  63\n"
PGBENCH = """0 1 1650 0 1795530570 1650 100
3 1 2500 0 1795530570 200000 900
1 2 166240 0 1795530571 166240 120000
"""


def test_rates_of_batch_jobs_are_their_own_figures() -> None:
    assert outputs.stress_rate(STRESS) == pytest.approx(178.648351 + 191.151649)
    assert outputs.fio_rate(FIO) == pytest.approx(721216000 / (1 << 20) + 1)
    assert outputs.ffmpeg_rate(FFMPEG, 3.0) == 21
    assert outputs.compile_rate("compiled\ncompiled\n", 10.0) == 12
    assert outputs.compile_rate("", 10.0) == 0


def test_pgbench_counts_from_the_due_time_without_the_warm_up() -> None:
    assert outputs.pgbench_latencies(PGBENCH, 0.0) == [0.00165, 0.0025, 0.16624]
    assert outputs.pgbench_latencies(PGBENCH, 0.5) == [0.16624]


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (outputs.stress_rate, "metrics:\n...\n"),
        (outputs.fio_rate, "fio: killed"),
        (outputs.fio_rate, '{"jobs": [{"read": {}}]}'),
        (lambda text: outputs.ffmpeg_rate(text, 1.0), "progress=end\n"),
        (lambda text: outputs.pgbench_latencies(text, 0.0), ""),
        (lambda text: outputs.pgbench_latencies(text, 0.0), "0 1 failed 0 1795530570 1650 100\n"),
        (outputs.client_latencies, "Traceback"),
    ],
)
def test_an_output_without_the_figure_is_an_error(read: object, text: str) -> None:
    assert callable(read)
    with pytest.raises(outputs.OutputError, match="no figure in its output"):
        read(text)


def test_a_round_has_every_phase_of_every_class_and_alone_once_for_each_amount_of_memory() -> None:
    planned = plan.readings(["cpu", "disk", "cache"])
    assert planned[:2] == [PlannedReading(plan.ROOMY, plan.ALONE), PlannedReading(plan.SHORT, plan.ALONE)]
    assert planned[1].short_of_memory and not planned[0].short_of_memory
    assert len(planned) == len(set(planned)) == 2 + 3 * (len(PHASES) - 1)
    assert plan.alone("cache") == planned[1]


def test_odd_rounds_are_reversed_and_koordlet_runs_in_its_phases_only() -> None:
    forward, backward = (list(plan.round_blocks(["cpu", "all"], turn)) for turn in (0, 1))
    assert [enforced for enforced, _ in forward] == [None, plan.DEFAULTS, plan.RECOMMENDED]
    flat = [reading for _, block in forward for reading in block]
    assert [reading for _, block in backward for reading in block] == flat[::-1]
    assert sorted(flat, key=repr) == sorted(plan.readings(["cpu", "all"]), key=repr)
    for enforced, block in forward:
        assert all((reading.phase if reading.phase in plan.ENFORCED else None) == enforced for reading in block)


def test_jobs_run_for_the_given_time_and_leave_their_result_in_their_directory(tmp_path: Path) -> None:
    jobs = {job.program: job for kind in batch.CLASSES.values() for job in kind.jobs}
    assert {program.split()[0] for program in jobs} == {"stress-ng", "fio", "ffmpeg", "gcc"}
    for job in jobs.values():
        command = " ".join(job.command(tmp_path, tmp_path / "file", 12.0))
        assert f"{tmp_path / batch.RESULT}" in command
        assert "12" in command


def test_the_compiler_has_a_valid_program() -> None:
    command = ["gcc", "-fsyntax-only", "-x", "c", "-"]
    subprocess.run(command, input=batch.source_text().encode(), check=True, timeout=120)


def test_every_service_has_a_client_and_a_directory(tmp_path: Path) -> None:
    services = make(SERVICES, tmp_path)
    assert [service.name for service in services] == list(SERVICES)
    assert len({service.port for service in services}) == len(services)
    assert all(service.place.is_dir() and service.rate > 0 for service in services)
    assert b"$5\r\nkey:0\r\n" in services[1].request()
    assert services[2].request().startswith(b"get key:0 key:1 ")


@pytest.fixture
def respond() -> Iterator[Callable[[int], int]]:
    """Starts a TCP service that answers 4 bytes with 6, a limited number of times; returns its port."""
    with contextlib.ExitStack() as stack:

        def start(answers: int) -> int:
            listener = socket.create_server(("127.0.0.1", 0))
            stack.callback(listener.close)
            stack.callback(listener.shutdown, socket.SHUT_RDWR)
            left = threading.Semaphore(answers)

            def serve(connection: socket.socket) -> None:
                with connection:
                    while data := connection.recv(4, socket.MSG_WAITALL):
                        assert data == b"ping"
                        left.acquire()
                        connection.sendall(b"answer")

            def accept() -> None:
                while True:
                    try:
                        connection, _ = listener.accept()
                    except OSError:  # the test has ended
                        return
                    threading.Thread(target=serve, args=(connection,), daemon=True).start()

            threading.Thread(target=accept, daemon=True).start()
            port: int = listener.getsockname()[1]
            return port

        yield start


def latencies(port: int, rate: float, seconds: float, connections: int) -> list[float]:
    """Of the client as a process, as in the benchmark: `select` needs descriptors below 1,024."""
    arguments = [str(number) for number in (port, rate, seconds, connections)]
    command = [sys.executable, "-m", "tests.scale.colocation_real.rateclient", *arguments, b"ping".hex()]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, timeout=120)
    measured: list[float] = json.loads(done.stdout)
    return measured


def test_the_client_counts_every_due_request(respond: Callable[[int], int]) -> None:
    measured = latencies(respond(10_000), 200.0, 1.0, 4)
    expected = [due for due in client.due_times(200.0, 1.0) if due >= client.WARM_SECONDS]
    assert len(measured) == len(expected)
    assert min(measured) > 0


def test_requests_that_wait_for_a_connection_or_never_get_a_response_count(respond: Callable[[int], int]) -> None:
    measured = latencies(respond(1), 50.0, 0.5, 2)  # the client's first request tells it the size of the response
    expected = [due for due in client.due_times(50.0, 0.5) if due >= client.WARM_SECONDS]
    assert len(measured) == len(expected)
    end = client.PATIENCE * (0.5 + client.WARM_SECONDS)
    assert min(measured) >= end - max(expected)


def reading(p99: float, rate: float, **disturbance: float) -> RealReading:
    rates: Mapping[str, float] = {"stress-ng --cpu": rate} if rate else {}
    kept = {"stolen": 0.0, "stopped": 0.0, **disturbance}
    return RealReading({"redis": [p99 / 1e3] * 100}, rates, 0.5, 1.0, 0.01, kept["stolen"], kept["stopped"])


def rounds() -> dict[PlannedReading, list[RealReading]]:
    ms = {plan.ORDINARY: 8.0, plan.BEST_EFFORT: 4.0, plan.DEFAULTS: 3.0, plan.RECOMMENDED: 2.1, plan.BATCH_ONLY: 1.0}
    by_phase = {PlannedReading("cpu", phase): [reading(value, 50.0)] * 2 for phase, value in ms.items()}
    by_phase[PlannedReading("cpu", plan.BATCH_ONLY)] = [reading(1.0, 100.0), reading(1.0, 1.0, stolen=0.5)]
    return {plan.alone("cpu"): [reading(2.0, 0), reading(2.0, 0)], **by_phase}


def test_the_table_compares_with_alone_and_with_batch_work_only() -> None:
    lines = results.table(rounds(), ["redis"]).splitlines()
    assert lines[1].split() == ["memory", "free", "alone", "2.00", "ms", "0.50+1.00"]
    assert lines[2].split() == ["cpu", "ordinary", "8.00", "ms", "x4.00", "50%", "0.50+1.00"]
    assert len(lines) == 1 + len(rounds())


def test_figures_have_a_budget_for_the_recommended_profile_and_a_spread() -> None:
    figures = {figure.name: figure for figure in results.figures(rounds(), ["redis"])}
    assert figures["colocation_real_disturbed"].value == 1
    assert figures["colocation_real_cpu_recommended_redis_p99"].verdict == "ok"
    assert figures["colocation_real_cpu_ordinary_redis_p99"].budget is None
    assert figures["colocation_real_cpu_defaults_achieved"].value == 50
    noisy = {**rounds(), plan.alone("cpu"): [reading(1.0, 0), reading(3.0, 0)]}
    figures = {figure.name: figure for figure in results.figures(noisy, ["redis"])}
    assert figures["colocation_real_cpu_recommended_redis_p99"].verdict == "unclear"
    single = {planned: readings[:1] for planned, readings in rounds().items()}
    figures = {figure.name: figure for figure in results.figures(single, ["redis"])}
    assert figures["colocation_real_cpu_recommended_redis_p99"].verdict == "unclear"
    disturbed = {**rounds(), plan.alone("cpu"): [reading(2.0, 0), reading(4.0, 0, stopped=0.5)]}
    figures = {figure.name: figure for figure in results.figures(disturbed, ["redis"])}
    assert figures["colocation_real_cpu_recommended_redis_p99"].verdict == "unclear"


def test_a_reading_is_a_line_and_a_row_of_the_chart() -> None:
    assert words(reading(2.0, 50.0, stolen=0.5)).endswith("stolen 50.0%, stopped 0.0% DISTURBED")
    rows = results.chart_rows(rounds(), "redis")
    assert [phase for _, phase in rows] == list(PHASES[:-1])
    assert rows["cpu", plan.ALONE] == [2.0, 2.0]
    drawing = ElementTree.fromstring(picture.svg("redis", "note", rows))
    assert len(drawing.findall("{http://www.w3.org/2000/svg}circle")) == sum(map(len, rows.values()))


def test_options_select_known_names_only() -> None:
    assert chosen("disk,cpu", list(batch.CLASSES)) == ["cpu", "disk"]
    assert chosen("", ["a", "b"]) == ["a", "b"]
    with pytest.raises(argparse.ArgumentTypeError, match="unknown: gpu"):
        chosen("gpu", list(batch.CLASSES))


def test_the_phases_with_koordlet_differ_by_the_profile() -> None:
    defaults, recommended = (node_slo(CONFIGURATIONS[phase]) for phase in plan.ENFORCED)
    assert defaults["resourceUsedThresholdWithBE"]["cpuSuppressThresholdPercent"] == 65
    assert recommended["resourceUsedThresholdWithBE"]["cpuSuppressThresholdPercent"] == 95
    assert "extensions" not in defaults or not defaults["extensions"]
    assert recommended["extensions"]["Object"]["interferenceStrategy"]["actions"]["io"]["enable"] is True

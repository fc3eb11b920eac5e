"""Pure parts of `make demo-colocation`: due times, evaluation of readings, drawing."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from tests.scale.colocation import client, picture
from tests.scale.colocation.__main__ import complete, undisturbed
from tests.scale.colocation.requests import Request, parts, percentile, seconds_of, spared, together
from tests.scale.colocation.stage import DISTURBED, STOPPED, Reading

ROWS = {
    ("cpu", "alone"): [4.0, 5.0, 6.0],
    ("cpu", "koordlet"): [5.0, 5.5, 50.0],
    ("memory", "alone"): [1.0, 1.0, 1.0],
    ("memory", "koordlet"): [900.0, 1000.0, 1100.0],
}
SHARES = {("cpu", "koordlet"): [0.7, 0.9, 0.8], ("memory", "koordlet"): [0.5, 0.5, 0.5]}
REFAULTS = {key: [10.0, 20.0, 30.0] for key in ROWS}


def test_requests_are_due_at_the_requested_rate_and_equal_in_each_run() -> None:
    due = client.due_times(500.0, 20.0)
    assert due == client.due_times(500.0, 20.0)
    assert due == sorted(due)
    assert len(due) == pytest.approx(500 * (20 + client.WARM_SECONDS), rel=0.05)


def test_a_reading_has_percentiles_and_the_share_of_batch_work() -> None:
    sent = tuple(Request(0.0, 0.0, 0.0, 0.0, 0.0, float(latency)) for latency in range(1, 101))
    reading = Reading(sent, seconds=10.0, service_cpu=6.0, batch_cpu=3.0, refaults=0)
    assert (reading.percentile(50), reading.percentile(99), reading.percentile(100)) == (51, 100, 100)
    assert reading.batch_share == pytest.approx(0.75)
    assert percentile([], 99) == 0.0


def test_a_reading_is_disturbed_by_others_or_by_a_cpu_that_stood_still() -> None:
    def disturbance(others: float, stops: tuple[tuple[float, float], ...]) -> float:
        return Reading((), 10.0, 6.0, 3.0, 0, others, stops=stops).disturbance

    assert disturbance(0.0, ()) == 0.0
    assert disturbance(2 * DISTURBED, ()) == pytest.approx(2.0)
    assert disturbance(0.0, ((1.0, 1.0 + 20 * STOPPED), (3.0, 3.0 + 10 * STOPPED))) == pytest.approx(3.0)


def test_disturbed_readings_are_left_out_while_there_are_others() -> None:
    good, bad = (Reading((), 10.0, 6.0, 3.0, 0, others) for others in (0.0, 2 * DISTURBED))
    assert undisturbed([bad, good, bad, good]) == [good, good]
    assert undisturbed([bad, bad]) == [bad, bad]
    assert complete({("cpu", "alone"): [good, bad, good], ("cpu", "koordlet"): [good, good]}, 2)
    assert not complete({("cpu", "alone"): [good, bad, good], ("cpu", "koordlet"): [good, bad]}, 2)


def test_the_delay_of_a_request_is_split_by_cause() -> None:
    first = Request(due=1.0, sent=1.25, began=1.5, ended=3.5, cpu=1.0, answered=3.75)
    second = Request(due=2.0, sent=2.0, began=4.0, ended=5.0, cpu=1.0, answered=5.0)
    assert parts([first, second]) == {
        "client": [0.25, 0.0], "start": [0.25, 0.5], "away": [1.0, 0.0], "answer": [0.25, 0.0]
    }  # fmt: skip
    assert first.latency == 2.75


def test_a_stop_delays_those_in_flight_and_those_queued_behind_them() -> None:
    def request(due: float, answered: float) -> Request:
        return Request(due, due, due, answered, 0.0, answered)

    before, during, behind, after = request(0.0, 1.0), request(2.0, 6.0), request(5.5, 7.0), request(7.5, 8.0)
    requests = [before, during, behind, after]
    assert spared(requests, [(3.0, 5.0)]) == [before, after]
    assert spared(requests, []) == requests


def test_the_machine_stands_still_when_both_cpus_do() -> None:
    shared = together([(1.0, 3.0), (5.0, 6.0)], [(2.0, 4.0), (6.0, 7.0)])
    assert shared == [(2.0, 3.0)]
    assert seconds_of(shared) == 1.0


def test_the_table_has_medians_beside_alone() -> None:
    lines = [line.split() for line in picture.table(ROWS, SHARES, REFAULTS).splitlines()]
    assert lines[2] == ["cpu", "koordlet", "5.50", "1.10", "50.00", "80", "%"]
    assert lines[4] == ["memory", "koordlet", "1000.00", "1000.00", "1100.00", "50", "%", "20"]


def test_bars_grow_with_the_logarithm() -> None:
    sizes = [line.count("█") for line in picture.bars(ROWS).splitlines()]
    assert sizes[2] < sizes[0] <= sizes[1] < sizes[3] <= picture.BAR


def test_the_chart_has_a_dot_for_every_round_within_its_bounds() -> None:
    drawing = ElementTree.fromstring(picture.svg("a < b", "note", ROWS))
    space = "{http://www.w3.org/2000/svg}"
    height = float(drawing.attrib["viewBox"].split()[3])
    dots = drawing.findall(f"{space}circle")
    assert len(dots) == sum(map(len, ROWS.values()))
    assert all(picture.LEFT <= float(dot.attrib["cx"]) <= picture.WIDTH for dot in dots)
    assert all(0 <= float(dot.attrib["cy"]) <= height for dot in dots)

"""RFC 3339 times and Go durations."""

from __future__ import annotations

import copy
import pickle
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.api.encoding.times import Duration, MicroTime, Time


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("5m", "5m0s"), ("90s", "1m30s"), ("24h", "24h0m0s"), ("1h30m", "1h30m0s"), ("300s", "5m0s"),
        ("0", "0s"), ("0s", "0s"), ("-1.5h", "-1h30m0s"), ("+2s", "2s"), ("1500ms", "1.5s"), ("1ms", "1ms"),
        ("1.5ms", "1.5ms"), ("250us", "250µs"), ("250µs", "250µs"), ("250μs", "250µs"), ("7ns", "7ns"),
        ("1h0.5s", "1h0m0.5s"), (".5s", "500ms"), ("1.s", "1s"), ("4611686018427387903ns", "1281023h53m38.427387903s"),
    ],
)  # fmt: skip
def test_durations_are_normalised(text: str, canonical: str) -> None:
    assert str(Duration(text)) == canonical
    assert Duration(canonical) == Duration(text)


@pytest.mark.parametrize("text", ["", "-", "5", "m", ".s", "5x", "5 m", "1h 2m", "m5", "1e3s", "9999999h", "5m5"])
def test_refuses_other_durations(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        Duration(text)


def test_duration_is_a_value() -> None:
    assert Duration.of(hours=1, minutes=1, seconds=1, milliseconds=1, nanoseconds=1) == Duration("1h1m1.001000001s")
    assert Duration("1m") < Duration("2m") <= Duration("120s") and hash(Duration("1m")) == hash(Duration("60s"))
    assert Duration("90s").seconds == 90.0
    assert Duration("90s").nanoseconds == 90 * 10**9 and not Duration("0s")
    assert pickle.loads(pickle.dumps(Duration("3s"))) == Duration("3s") == copy.deepcopy(Duration("3s"))
    with pytest.raises(AttributeError):
        Duration("1s")._ns = 2


@given(st.integers(-(2**63) + 1, 2**63 - 1))
def test_every_duration_reads_back(nanoseconds: int) -> None:
    duration = Duration.of(nanoseconds=nanoseconds)
    assert Duration(str(duration)) == duration


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("2024-03-05T08:00:00Z", "2024-03-05T08:00:00Z"),
        ("2024-03-05T10:00:00+02:00", "2024-03-05T08:00:00Z"),
        ("2024-03-05T08:00:00.999999999Z", "2024-03-05T08:00:00Z"),
        ("2024-03-05t08:00:00z", "2024-03-05T08:00:00Z"),
        ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00Z"),
    ],
)
def test_times_are_utc_with_whole_seconds(text: str, canonical: str) -> None:
    assert str(Time.parse(text)) == canonical


@pytest.mark.parametrize(
    "text", ["", "yesterday", "2024-03-05", "2024-03-05T08:00:00", "2024-13-05T08:00:00Z", "0001-01-01T00:00:00+01:00"]
)
def test_refuses_other_times(text: str) -> None:
    with pytest.raises(ValueError, match="is not an RFC 3339 time"):
        Time.parse(text)


def test_times_mix_with_datetimes() -> None:
    moment = datetime(2024, 3, 5, 8, 0, 0, 123456, tzinfo=UTC)
    assert Time.of(moment) == moment.replace(microsecond=0) and moment - Time.of(moment) < timedelta(seconds=1)
    assert str(MicroTime.of(moment)) == "2024-03-05T08:00:00.123456Z" == str(MicroTime.parse(str(MicroTime.of(moment))))
    assert Time.from_unix(1709625600.7).unix == 1709625600.0
    assert str(Time.of(moment) + timedelta(hours=1)) == "2024-03-05T09:00:00Z"
    with pytest.raises(ValueError, match="no time zone"):
        Time.of(datetime(2024, 1, 1))


@given(st.datetimes(timezones=st.just(UTC)))
def test_every_time_reads_back(moment: datetime) -> None:
    assert Time.parse(str(Time.of(moment))) == Time.of(moment)
    assert MicroTime.parse(str(MicroTime.of(moment))) == moment

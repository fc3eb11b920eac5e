"""Units and absent values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.ctl import text


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "-"), (float("nan"), "-"), (0.0, "0m"), (0.0004, "0m"), (0.25, "250m"), (1.9996, "2000m"),
     (9.9994, "9999m"), (9.9996, "10.0"), (127.84, "127.8")],
)  # fmt: skip
def test_cores(value: float | None, shown: str) -> None:
    assert text.cores(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "-"), (0, "0"), (512, "512"), (1023, "1023"), (1024, "1Ki"), (1536, "1.5Ki"), (100 * 1024, "100Ki"),
     (1023 * 1024, "1023Ki"), (1024**2 - 1, "1Mi"), (640 << 20, "640Mi"), (24 << 30, "24Gi"), (3 << 60, "3072Pi")],
)  # fmt: skip
def test_size(value: float | None, shown: str) -> None:
    assert text.size(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "-"), (0.0, "0"), (8.5e-7, "850ns"), (9.9996e-7, "1.00µs"), (1.234e-5, "12.3µs"), (0.00456, "4.56ms"),
     (0.0999, "99.9ms"), (0.25, "250ms"), (1.2, "1.20s"), (75.0, "75.0s"), (1234.0, "1234s")],
)  # fmt: skip
def test_seconds(value: float | None, shown: str) -> None:
    assert text.seconds(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "-"), (0.0, "0"), (0.0004, "<0.1"), (0.001, "0.1"), (0.034, "3.4"), (0.05, "5"), (0.0996, "10"),
     (0.57, "57"), (1.8, "180")],
)  # fmt: skip
def test_percent(value: float | None, shown: str) -> None:
    assert text.percent(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "-"), (-3, "0s"), (0.4, "0s"), (119, "119s"), (120, "2m"), (185, "3m5s"), (2700, "45m"),
     (7500, "125m"), (10800, "3h"), (11100, "3h5m"), (40000, "11h"), (273600, "3d4h"), (864000, "10d")],
)  # fmt: skip
def test_age(value: float | None, shown: str) -> None:
    assert text.age(value) == shown


@given(st.none() | st.floats())
def test_a_bar_has_the_requested_width(share: float | None) -> None:
    shown = text.bar(None if share != share else share, 10)
    assert len(shown) == 10
    assert shown.rstrip(" ").strip("|") == ""


@given(st.floats(min_value=0, max_value=1e6), st.floats(min_value=0, max_value=1e6))
def test_no_figure_is_longer_than_its_column(a: float, b: float) -> None:
    assert len(text.seconds(a)) <= 8
    assert len(text.size(b * 1e9)) <= 7

"""Scalars in Go's syntax."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.api.encoding.gosyntax import parse_bool, parse_decimal


@pytest.mark.parametrize("text", ["1", "t", "T", "TRUE", "true", "True"])
def test_true(text: str) -> None:
    assert parse_bool(text) is True


@pytest.mark.parametrize("text", ["0", "f", "F", "FALSE", "false", "False"])
def test_false(text: str) -> None:
    assert parse_bool(text) is False


@pytest.mark.parametrize("text", ["", "yes", "tRUE", " true", "2"])
def test_not_a_boolean(text: str) -> None:
    with pytest.raises(ValueError, match="invalid boolean value"):
        parse_bool(text)


@pytest.mark.parametrize(
    ("text", "value"), [("0.8", 0.8), ("1", 1), ("+.5", 0.5), ("-2.", -2), ("1e-3", 0.001), ("1E2", 100)]
)
def test_decimal(text: str, value: float) -> None:
    assert parse_decimal(text) == value


@pytest.mark.parametrize("text", ["", ".", "abc", "1_0", " 1", "1 ", "0x1p3", "inf", "nan", "1e999", "١", "1e"])
def test_not_a_decimal(text: str) -> None:
    with pytest.raises(ValueError, match="is not a number"):
        parse_decimal(text)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_finite_number_reads_back(value: float) -> None:
    assert parse_decimal(repr(value)) == value

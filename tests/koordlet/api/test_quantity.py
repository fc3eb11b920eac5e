"""Quantities: the table of spec 01 §2, Kubernetes' rounding, and the laws of exact arithmetic."""

from __future__ import annotations

import copy
import pickle
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.api.encoding.quantity import (
    BINARY_SI,
    DECIMAL_EXPONENT,
    DECIMAL_SI,
    ZERO,
    Format,
    Quantity,
    QuantityError,
)

CANONICAL = [
    ("0", "0", DECIMAL_SI),
    ("0Ki", "0", BINARY_SI),
    ("1000", "1k", DECIMAL_SI),
    ("1500m", "1500m", DECIMAL_SI),
    ("1.5", "1500m", DECIMAL_SI),
    ("2000", "2k", DECIMAL_SI),
    ("1024Ki", "1Mi", BINARY_SI),
    ("1536Mi", "1536Mi", BINARY_SI),
    ("0.5Gi", "512Mi", BINARY_SI),
    ("0.5Ki", "512", BINARY_SI),
    ("0.5Mi", "512Ki", BINARY_SI),
    ("0.0001Ki", "102400u", DECIMAL_SI),
    ("1.0001Ki", "1024102400u", BINARY_SI),
    ("1000Ki", "1000Ki", BINARY_SI),
    ("1e3", "1e3", DECIMAL_EXPONENT),
    ("12E4", "120e3", DECIMAL_EXPONENT),
    ("1.5e-3", "1500e-6", DECIMAL_EXPONENT),
    ("1e+2", "100", DECIMAL_EXPONENT),
    ("1E", "1E", DECIMAL_SI),
    ("1000E", "1000E", DECIMAL_SI),
    ("1e100", "10e99", DECIMAL_EXPONENT),
    ("0.1n", "1n", DECIMAL_SI),
    ("1.1n", "2n", DECIMAL_SI),
    ("-1.1n", "-2n", DECIMAL_SI),
    ("1e-20", "1e-9", DECIMAL_EXPONENT),
    ("100Ei", "9223372036854775807", BINARY_SI),
    ("+3", "3", DECIMAL_SI),
    ("-1Gi", "-1Gi", BINARY_SI),
    ("00100", "100", DECIMAL_SI),
    (".5", "500m", DECIMAL_SI),
    ("5.", "5", DECIMAL_SI),
]


@pytest.mark.parametrize(("text", "canonical", "fmt"), CANONICAL, ids=[row[0] for row in CANONICAL])
def test_reads_and_prints_canonically(text: str, canonical: str, fmt: Format) -> None:
    quantity = Quantity(text)
    assert (str(quantity), quantity.fmt) == (canonical, fmt)


@pytest.mark.parametrize(
    "text",
    ["", ".", "+", "m", " 1", "1 ", "1K", "1ki", "1KiB", "1e", "e3", "--1", "1.2.3", "1e3.5", "1_000", "0x10",
     "NaN", "inf", "1mm", "1Em", "٣", "1e1001", "1e-99999999", "1\n"],
)  # fmt: skip
def test_refuses_other_texts(text: str) -> None:
    with pytest.raises(QuantityError) as caught:
        Quantity(text)
    assert repr(text) in str(caught.value)


def test_refuses_endless_digits() -> None:
    with pytest.raises(QuantityError, match="5000 digits"):
        Quantity("9" * 5000)


@pytest.mark.parametrize(
    ("quantity", "text"),
    [
        (Quantity.milli(1500), "1500m"),
        (Quantity.milli(2000), "2"),
        (Quantity.of(2000), "2k"),
        (Quantity.of(2**30, BINARY_SI), "1Gi"),
        (Quantity.of(1000, BINARY_SI), "1k"),
        (Quantity.of(512, BINARY_SI), "512"),
        (Quantity.of(1025, BINARY_SI), "1025"),
        (Quantity.of(-(2**20), BINARY_SI), "-1Mi"),
        (Quantity.milli(1500, BINARY_SI), "1500m"),
        (Quantity.of(0, BINARY_SI), "0"),
    ],
    ids=str,
)
def test_prints_amounts_built_from_integers(quantity: Quantity, text: str) -> None:
    assert str(quantity) == text


@pytest.mark.parametrize(
    ("text", "value", "milli"),
    [
        ("50m", 1, 50),
        ("-50m", -1, -50),
        ("1", 1, 1000),
        ("1.0001", 2, 1001),
        ("1n", 1, 1),
        ("1Gi", 2**30, 2**30 * 1000),
    ],
)
def test_values_round_away_from_zero(text: str, value: int, milli: int) -> None:
    assert (Quantity(text).value(), Quantity(text).milli_value()) == (value, milli)


def test_equality_is_by_amount() -> None:
    assert Quantity("1Gi") == Quantity("1073741824") and hash(Quantity("1Gi")) == hash(Quantity("1073741824"))
    assert Quantity("1") != 1
    assert not ZERO and ZERO.is_zero() and Quantity("1n")
    assert float(Quantity("1500m")) == 1.5


def test_a_sum_from_zero_takes_the_format_of_the_summand() -> None:
    assert str(sum([Quantity("1Gi"), Quantity("1Gi")], start=ZERO)) == "2Gi"
    assert str(ZERO - Quantity("1Gi")) == "-1Gi"
    assert str(Quantity("1Gi") + Quantity("1k")) == str(2**30 + 1000)


def test_is_immutable_and_copies() -> None:
    quantity = Quantity("1500m")
    with pytest.raises(AttributeError):
        quantity._nano = 3
    with pytest.raises(TypeError):
        quantity + 1  # type: ignore[operator]
    assert copy.deepcopy(quantity) is quantity and copy.copy(quantity) is quantity
    restored = pickle.loads(pickle.dumps(Quantity("3Mi")))
    assert (restored, restored.fmt) == (Quantity("3Mi"), BINARY_SI)


FORMATS = st.sampled_from([DECIMAL_SI, BINARY_SI, DECIMAL_EXPONENT])
# In the binary family a text is capped at 2**63-1, so the laws hold below.
QUANTITIES = st.builds(lambda nano, fmt: Quantity(f"{nano}n").with_fmt(fmt), st.integers(-(10**27), 10**27), FORMATS)
SUFFIXES = {"n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000), "": Fraction(1),
            "k": Fraction(10**3), "M": Fraction(10**6), "G": Fraction(10**9), "T": Fraction(10**12),
            "P": Fraction(10**15), "E": Fraction(10**18), "Ki": Fraction(2**10), "Mi": Fraction(2**20),
            "Gi": Fraction(2**30), "Ti": Fraction(2**40), "e3": Fraction(1000), "e-2": Fraction(1, 100)}  # fmt: skip


@given(QUANTITIES)
def test_canonical_text_reads_back(quantity: Quantity) -> None:
    read = Quantity(str(quantity))
    assert read == quantity
    assert str(read.with_fmt(quantity.fmt)) == str(quantity), "a text without suffix does not show the binary family"


@given(QUANTITIES, QUANTITIES, st.integers(-1000, 1000))
def test_arithmetic_is_exact(a: Quantity, b: Quantity, n: int) -> None:
    assert (a + b) - b == a
    assert a + b == b + a
    assert a * n + a == a * (n + 1)
    assert -a == ZERO - a
    assert (a < b) == ((a - b) < ZERO) and (a <= b) == (not b < a) and (a > b) == (b < a) and (a >= b) == (b <= a)


@given(st.integers(0, 10**6), st.integers(0, 10**12), st.sampled_from(sorted(SUFFIXES)), st.booleans())
def test_a_text_means_its_number_rounded_up_to_nano(whole: int, part: int, suffix: str, negative: bool) -> None:
    text = f"{whole}.{part:012d}"
    exact = Fraction(text) * SUFFIXES[suffix] * 10**9
    nano = -(-exact.numerator // exact.denominator) * (-1 if negative else 1)
    assert Quantity(("-" if negative else "") + text + suffix) == Quantity(f"{nano}n")


@given(QUANTITIES)
def test_value_is_the_smallest_integer_that_holds_the_amount(quantity: Quantity) -> None:
    value = quantity.value()
    assert abs(Quantity.of(value).milli_value()) >= abs(quantity.milli_value()) or value == 0
    assert abs(value) - abs(float(quantity)) <= 1 + 1e-9 * abs(value)


def test_equal_texts_share_one_object() -> None:
    # A scheduler holds hundreds of thousands of them.
    assert Quantity("250m") is Quantity("250m")

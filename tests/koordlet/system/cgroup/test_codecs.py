from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.system.cgroup import codecs
from koordlet.system.errors import InvalidValue


@pytest.mark.parametrize(
    ("shares", "weight"),
    [(2, 1), (512, 20), (1000, 39), (1024, 39), (2000, 77), (2048, 79), (50000, 1908), (262144, 10000)],
)
def test_shares_become_weights(shares: int, weight: int) -> None:
    assert codecs.shares_to_weight(shares) == weight


@pytest.mark.parametrize(("weight", "shares"), [(1, 2), (39, 998), (79, 2046), (100, 2597), (10000, 262144)])
def test_weights_become_shares(weight: int, shares: int) -> None:
    assert codecs.weight_to_shares(weight) == shares


@pytest.mark.parametrize("convert", [codecs.shares_to_weight, codecs.weight_to_shares])
@pytest.mark.parametrize("value", [-1, 0, 262145])
def test_values_out_of_range_are_errors(convert: Callable[..., Any], value: int) -> None:
    with pytest.raises(InvalidValue, match=str(value)):
        convert(value)


@pytest.mark.parametrize(("milli", "quota"), [(500, 50000), (5, 1000), (0, -1), (-7, -1), (10, 1000), (11, 1100)])
def test_milli_cores_become_a_quota(milli: int, quota: int) -> None:
    assert codecs.milli_to_quota(milli) == quota


@pytest.mark.parametrize(("milli", "shares"), [(0, 2), (-1, 2), (1, 2), (500, 512), (1000, 1024), (10**6, 262144)])
def test_milli_cores_become_shares(milli: int, shares: int) -> None:
    assert codecs.milli_to_shares(milli) == shares


@pytest.mark.parametrize(
    ("codec", "text", "value"),
    [
        pytest.param(codecs.QUOTA, "max 100000", -1, id="no-quota"),
        pytest.param(codecs.QUOTA, "50000 100000", 50000, id="quota"),
        pytest.param(codecs.PERIOD, "max 100000", 100000, id="period"),
        pytest.param(codecs.V1_LIMIT, "9223372036854771712", -1, id="v1-unlimited"),
        pytest.param(codecs.V1_LIMIT, str(0x7FFFFFFFFFFFEFFF), 0x7FFFFFFFFFFFEFFF, id="v1-just-limited"),
        pytest.param(codecs.V2_LIMIT, "max", -1, id="v2-unlimited"),
        pytest.param(codecs.V2_LIMIT, "4096", 4096, id="v2-limit"),
        pytest.param(codecs.MAXIMUM, "max", 2**63 - 1, id="memory-high-max"),
        pytest.param(codecs.WEIGHT, "39", 998, id="weight"),
        pytest.param(codecs.WEIGHT, "0", 2, id="weight-of-an-idle-group"),
        pytest.param(codecs.CLASSID, "0x00010002", 65538, id="classid-hex"),
    ],
)
def test_file_content_is_decoded(codec: codecs.Codec, text: str, value: int) -> None:
    assert codec.decode(text) == value


@pytest.mark.parametrize(
    ("codec", "value", "current", "text"),
    [
        pytest.param(codecs.QUOTA, -1, "", "max", id="no-quota"),
        pytest.param(codecs.QUOTA, 50000, "", "50000", id="quota-keeps-the-period"),
        pytest.param(codecs.PERIOD, 200000, "50000 100000", "50000 200000", id="period-keeps-the-quota"),
        pytest.param(codecs.PERIOD, 200000, "max 100000", "max 200000", id="period-keeps-unlimited"),
        pytest.param(codecs.PERIOD, -1, "", "max", id="period-unlimited"),
        pytest.param(codecs.V2_LIMIT, -1, "", "max", id="v2-unlimited"),
        pytest.param(codecs.V1_LIMIT, -1, "", "-1", id="v1-unlimited"),
        pytest.param(codecs.WEIGHT, 1024, "", "39", id="shares"),
        pytest.param(codecs.MAXIMUM, 2**63 - 1, "", "max", id="maximum"),
    ],
)
def test_values_are_encoded(codec: codecs.Codec, value: int, current: str, text: str) -> None:
    assert codec.encode(value, current) == text


@pytest.mark.parametrize("text", ["", "max", "1 2 3", "x 100000"])
def test_cpu_max_needs_two_numbers(text: str) -> None:
    with pytest.raises(ValueError):
        codecs.parse_cpu_max(text)


def test_blkio_lines_without_a_device_are_left_out() -> None:
    assert codecs.parse_blkio("253:16 1000\n8:0 rbps=1 wbps=max\nTotal 5\ndefault 100\n") == {
        "253:16": "1000",
        "8:0": "rbps=1 wbps=max",
    }


SHARES = st.integers(2, 262144)


@given(SHARES, SHARES)
def test_weights_are_monotone_and_clamped(left: int, right: int) -> None:
    low, high = sorted((left, right))
    assert 1 <= codecs.shares_to_weight(low) <= codecs.shares_to_weight(high) <= 10000


@given(st.integers(1, 10000))
def test_a_weight_survives_the_round_trip_up_to_truncation(weight: int) -> None:
    shares = codecs.weight_to_shares(weight)
    assert weight - 1 <= codecs.shares_to_weight(shares) <= weight


@given(st.integers(-(10**9), 10**9), st.integers(-(10**9), 10**9))
def test_more_cpu_never_means_fewer_shares(left: int, right: int) -> None:
    low, high = sorted((left, right))
    assert 2 <= codecs.milli_to_shares(low) <= codecs.milli_to_shares(high) <= 262144


@given(st.integers(1, 10**9), st.integers(1, 10**9))
def test_more_cpu_never_means_less_quota(left: int, right: int) -> None:
    low, high = sorted((left, right))
    assert 1000 <= codecs.milli_to_quota(low) <= codecs.milli_to_quota(high)


@given(st.integers(1000, 10**12) | st.just(-1), st.integers(1000, 10**6))
def test_a_formatted_cpu_max_is_parsed_back(quota: int, period: int) -> None:
    assert codecs.parse_cpu_max(codecs.format_cpu_max(quota, period)) == (quota, period)

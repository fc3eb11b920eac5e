"""Go's JSON conventions (spec 01 §2): same bytes out, same leniency in, errors that name the field."""

from __future__ import annotations

import json
import math
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.api.encoding.base import Frozen, Struct
from koordlet.api.encoding.fields import Int32, doc, written
from koordlet.api.encoding.quantity import ZERO, Quantity
from koordlet.api.encoding.wire import (
    Duration,
    IntOrString,
    Time,
    WireError,
    convert,
    decode,
    encode,
    encode_plain,
    format_ratio,
    json_decoder,
    to_builtins,
)


class Inner(Frozen):
    cache_id: int = msgspec.field(default=0, name="cacheID")
    on: bool | None = None


class Doc(Struct):
    zeta: str = ""
    alpha: int = 0
    flag: bool = False
    limit: Int32 | None = None
    ratio: float | None = None
    amount: Quantity | None = None
    total: Quantity = written(lambda: ZERO)
    always: int = written(int)
    since: Time | None = written(lambda: None)
    window: Duration | None = None
    port: IntOrString | None = None
    inner: Inner = msgspec.field(default_factory=Inner)
    maybe: Inner | None = None
    names: list[str] = msgspec.field(default_factory=list)
    items: list[Inner] = msgspec.field(default_factory=list)
    sizes: dict[str, Quantity] = msgspec.field(default_factory=dict)
    counts: dict[str, int] = msgspec.field(default_factory=dict)
    free: Any = None
    bounded: Annotated[int | None, doc("Bounds are for the schema only.", minimum=0, maximum=100)] = None


EMPTY = '{"total":"0","always":0,"since":null,"inner":{}}'


def text(obj: object) -> str:
    return encode(obj).decode()


def test_zero_fields_are_left_out_but_for_the_starred_ones() -> None:
    assert text(Doc()) == EMPTY


def test_nullable_zeros_are_written() -> None:
    doc = Doc(limit=0, ratio=0.0, amount=ZERO, window=Duration("0s"), maybe=Inner(on=False))
    assert text(doc) == (
        '{"limit":0,"ratio":0,"amount":"0","total":"0","always":0,"since":null,"window":"0s",'
        '"inner":{},"maybe":{"on":false}}'
    )


def test_fields_in_declaration_order_and_maps_sorted() -> None:
    doc = Doc(sizes={"b": Quantity("1000"), "a": Quantity("1024Mi"), "B": ZERO}, alpha=1, zeta="z", ratio=2.5)
    assert text(doc).startswith('{"zeta":"z","alpha":1,"ratio":2.5,"total"')
    assert text(doc).endswith('"sizes":{"B":"0","a":"1Gi","b":"1k"}}')
    assert text({"é": 1, "z": 2, "Z": {"y": 1, "x": 2}}) == '{"Z":{"x":2,"y":1},"z":2,"é":1}'


def test_html_characters_are_escaped() -> None:
    assert text({"<k>": 'a&b\u2028\u2029\x01\n"é'}) == r'{"\u003ck\u003e":"a\u0026b\u2028\u2029\u0001\n\"é"}'


@pytest.mark.parametrize(
    ("value", "written_as"),
    [
        (1.0, "1"), (0.1, "0.1"), (-0.5, "-0.5"), (0.0, "0"), (1e20, "100000000000000000000"), (1e21, "1e+21"),
        (1.5e300, "1.5e+300"), (1e-6, "0.000001"), (1.25e-6, "0.00000125"), (9.9e-7, "9.9e-7"), (1e-7, "1e-7"),
        (123456789.123, "123456789.123"), (1.5e16, "15000000000000000"), (-1e-5, "-0.00001"),
    ],
)  # fmt: skip
def test_floats_as_go_writes_them(value: float, written_as: str) -> None:
    assert text([value]) == f"[{written_as}]"


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_float_reads_back(value: float) -> None:
    assert float(json.loads(encode([value]))[0]) == value


@pytest.mark.parametrize("value", [math.nan, math.inf, object()])
def test_values_without_json_form_are_an_error(value: object) -> None:
    with pytest.raises(WireError):
        encode({"x": value})


def test_keys_match_exactly_first_then_without_case() -> None:
    assert decode('{"cacheid":3}', Inner) == Inner(cache_id=3)
    assert decode('{"cacheID":1,"cacheid":3}', Inner) == decode('{"CACHEID":3,"cacheID":1}', Inner) == Inner(cache_id=1)
    assert decode('{"unknown":{"x":[1]},"ON":true}', Inner) == Inner(on=True)


def test_null_leaves_fields_unset() -> None:
    nulls = dict.fromkeys(("zeta", "alpha", "limit", "amount", "total", "inner", "names", "sizes", "since"))
    assert convert(nulls, Doc) == Doc()
    assert decode("null", Doc) == Doc()
    assert decode('{"names":[null],"items":[null],"counts":{"a":null}}', Doc) == Doc(
        names=[""], items=[Inner()], counts={"a": 0}
    )


def test_custom_scalars() -> None:
    doc: Doc = decode(
        '{"amount":1.5,"total":2000,"since":"2024-03-05T09:00:00+01:00","window":"5m","port":"80%",'
        '"sizes":{"a":" 1Gi "}}',
        Doc,
    )
    assert (doc.amount, doc.total, doc.port) == (Quantity("1500m"), Quantity("2k"), "80%")
    assert text(doc).startswith(
        '{"amount":"1500m","total":"2k","always":0,"since":"2024-03-05T08:00:00Z","window":"5m0s"'
    )
    assert decode('{"port":8080}', Doc).port == 8080


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("", "pod a/b: is not valid JSON"),
        ("{", "pod a/b: is not valid JSON"),
        ("[]", "pod a/b: must be an object, not an array"),
        ('{"alpha":"1"}', "pod a/b: alpha: must be an integer, not the string '1'"),
        ('{"alpha":1.0}', "pod a/b: alpha: must be an integer, not the number 1.0"),
        ('{"alpha":true}', "pod a/b: alpha: must be an integer, not a boolean"),
        ('{"alpha":9223372036854775808}', "pod a/b: alpha: 9223372036854775808 does not fit into int64"),
        ('{"limit":2147483648}', "pod a/b: limit: 2147483648 does not fit into int32"),
        ('{"flag":1}', "pod a/b: flag: must be a boolean, not the number 1"),
        ('{"inner":{"cacheid":[]}}', "pod a/b: inner.cacheid: must be an integer, not an array"),
        ('{"items":[{},{"on":"yes"}]}', "pod a/b: items[1].on: must be a boolean, not the string 'yes'"),
        ('{"counts":{"a.b/c":{}}}', "pod a/b: counts[a.b/c]: must be an integer, not an object"),
        ('{"sizes":{"cpu":"1x"}}', "pod a/b: sizes[cpu]: '1x' is not a quantity"),
        ('{"amount":true}', "pod a/b: amount: a quantity is a string or a number, not a boolean"),
        ('{"since":5}', "pod a/b: since: a time is a string, not the number 5"),
        ('{"since":"noon"}', "pod a/b: since: 'noon' is not an RFC 3339 time"),
        ('{"window":"5"}', "pod a/b: window: '5' is not a duration"),
        ('{"names":"a"}', "pod a/b: names: must be an array, not the string 'a'"),
    ],
)
def test_errors_name_the_object_and_the_field(document: str, message: str) -> None:
    with pytest.raises(WireError) as caught:
        decode(document, Doc, where="pod a/b")
    assert str(caught.value).startswith(message)


def test_deep_nesting_is_an_error_and_not_a_crash() -> None:
    with pytest.raises(WireError):
        decode("[" * 100_000, Any)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(Doc.__struct_encode_fields__), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(Doc.__struct_encode_fields__), JSON), st.data())
def test_any_document_reads_or_is_a_wire_error(document: dict[str, Any], data: st.DataObject) -> None:
    text = json.dumps(document)
    damaged = text[: data.draw(st.integers(0, len(text)))]
    for candidate in (text, damaged):
        try:
            assert isinstance(decode(candidate, Doc), Doc)
        except WireError as error:
            assert error.reason


@pytest.mark.parametrize("number", ["1e400", "-1e400", "9" * 5000, "1e-400"])
def test_huge_numbers(number: str) -> None:
    for field in ("ratio", "amount", "alpha", "port", "free"):
        try:
            decode(f'{{"{field}":{number}}}', Doc)
        except WireError as error:
            assert error.reason


class Strict(Struct):
    name: str
    seconds: int = 0


def test_required_fields() -> None:
    with pytest.raises(WireError, match=r"^r: name: is required$"):
        decode("{}", Strict, where="r")


def test_schema_bounds_do_not_bind_the_reader() -> None:
    assert decode('{"bounded":250}', Doc).bounded == 250


def test_fast_decoder_falls_back_to_the_lenient_reader() -> None:
    decoder = json_decoder(Doc)
    assert decoder is json_decoder(Doc)
    assert decoder.decode('{"alpha":3,"sizes":{"cpu":"2"}}') == Doc(alpha=3, sizes={"cpu": Quantity("2")})
    assert decoder.decode('{"alpha":3,"names":null}') == Doc(alpha=3)
    with pytest.raises(WireError, match=r"node n: alpha: must be an integer"):
        decoder.decode('{"alpha":"x"}', where="node n")


def test_yaml_objects_convert() -> None:
    assert convert({"alpha": 1, "inner": {"cacheID": 2}}, Doc) == Doc(alpha=1, inner=Inner(cache_id=2))
    with pytest.raises(WireError, match="key that is not a string"):
        convert({"counts": {1: 1}}, Doc)
    assert to_builtins(Doc(limit=0)) == {"limit": 0, "total": "0", "always": 0, "since": None, "inner": {}}


@given(
    st.builds(
        Doc,
        zeta=st.text(),
        alpha=st.integers(-(2**63), 2**63 - 1),
        limit=st.none() | st.integers(-(2**31), 2**31 - 1),
        # + 0.0 takes the sign from a zero: JSON's -0 is read as the integer 0 (see below)
        ratio=st.none() | st.floats(allow_nan=False, allow_infinity=False).map(lambda ratio: ratio + 0.0),
        names=st.lists(st.text()),
        counts=st.dictionaries(st.text(), st.integers(-1000, 1000)),
        maybe=st.none() | st.builds(Inner, cache_id=st.integers(0, 9), on=st.none() | st.booleans()),
    )
)
def test_documents_read_back(doc: Doc) -> None:
    data = encode(doc)
    assert decode(data, Doc) == json_decoder(Doc).decode(data) == doc
    assert encode(decode(data, Doc)) == data
    assert decode(encode_plain(doc), Doc) == doc


def test_negative_zero_is_written_as_go_does_and_read_as_zero() -> None:
    data = encode(Doc(ratio=-0.0))
    assert b'"ratio":-0,' in data
    assert decode(data, Doc).ratio == 0


@pytest.mark.parametrize("value", ["\udc80", {"a": "\udc80"}, Doc(zeta="\udc80"), [1.5, "\udc80"]], ids=repr)
def test_invalid_unicode_cannot_be_encoded(value: object) -> None:
    with pytest.raises(WireError, match="cannot be written as JSON"):
        encode(value)


def test_too_deep_nesting_cannot_be_encoded() -> None:
    value: list[object] = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(WireError, match="recursion"):
        encode(value)


def test_fast_decoder_refuses_bytes_that_are_not_utf8() -> None:
    with pytest.raises(WireError, match="node n: is not valid JSON"):
        json_decoder(Doc).decode(b'{"zeta":"\xff"}', where="node n")


@pytest.mark.parametrize(
    ("value", "ratio"), [(1.2, "1.20"), (3.1415926, "3.14"), (1.0, "1.00"), (0.125, "0.12"), (1.005, "1.00")]
)
def test_ratios_have_two_decimals(value: float, ratio: str) -> None:
    assert format_ratio(value) == ratio

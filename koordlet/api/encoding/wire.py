"""JSON encoding and decoding of msgspec structs, compatible with Go's encoding/json. No I/O; caches per type.

Koordinator's components compare annotation strings, so the output must equal Go's byte for byte: struct fields in
declaration order, map keys sorted, `<`, `>` and `&` escaped, floats in Go's notation, zero values omitted (see
`koordlet.api.encoding.base`). Decoding is as lenient as Go: keys match case-insensitively if no field has the exact
name, unknown keys are ignored, `null` leaves a field unset. It is also as strict: an integer is not a float, and int32
has a range (spec 01 §2).

`encode` and `decode` are for annotations, ConfigMaps and other texts written by people. `json_decoder(type)` is for
streams of API objects: msgspec decodes directly from bytes to structs with exact keys, and the lenient reader is used
only for a document that msgspec rejects.
"""

from __future__ import annotations

import math
from datetime import datetime
from functools import cache
from typing import Annotated, Any, Generic, TypeVar, cast

import msgspec
from msgspec import Meta

from koordlet.api.encoding.nesting import decode_any_depth
from koordlet.api.encoding.overlay import overlay
from koordlet.api.encoding.quantity import Quantity, QuantityError
from koordlet.api.encoding.quoting import QUOTED_CHARS, bounded
from koordlet.api.encoding.reader import ReadError, json_type, reader_for
from koordlet.api.encoding.shape import has_floats
from koordlet.api.encoding.times import Duration, MicroTime, Time

__all__ = [
    "Duration",
    "IntOrString",
    "JSONObject",
    "MicroTime",
    "Time",
    "WireError",
    "convert",
    "dec_hook",
    "decode",
    "enc_hook",
    "encode",
    "encode_plain",
    "format_ratio",
    "json_decoder",
    "overlay",
    "to_builtins",
]

T = TypeVar("T")

IntOrString = Annotated[int | str, Meta(extra_json_schema={"x-kubernetes-int-or-string": True})]
"""A JSON number or string, not converted."""

JSONObject = dict[str, Any]
"""An object without a schema (PRESERVE in spec 01 §3)."""


MAX_REASON_CHARS = 600
"""Of an error: a sentence, and one quoted text."""


class WireError(ValueError):
    """A document cannot be decoded or encoded.

    `where` is the caller's name for the object, `path` the field in it (`spec.owners[0].object`, empty for the document
    itself), `reason` the error. Path and reason may contain text of the document, so they are bounded in length.
    """

    def __init__(self, reason: str, *, where: str = "", path: str = "") -> None:
        reason, path = bounded(reason, MAX_REASON_CHARS), bounded(path, QUOTED_CHARS)
        super().__init__(": ".join(part for part in (where, path, reason) if part))
        self.where = where
        self.path = path
        self.reason = reason


def enc_hook(value: object) -> str:
    """Encodes Quantity, Time and Duration for msgspec."""
    if isinstance(value, Quantity | Time | Duration):
        return str(value)
    if isinstance(value, datetime):
        return str(Time.of(value))
    raise NotImplementedError(f"objects of type {type(value).__name__} have no wire form")


def dec_hook(kind: type, value: object) -> object:
    """Decodes Quantity, Time and Duration for msgspec. Raises ValueError, to which msgspec adds the path."""
    if kind is Quantity:
        if isinstance(value, str):
            return Quantity(value.strip())
        if isinstance(value, int | float) and not isinstance(value, bool):
            return Quantity(_go_float(value) if isinstance(value, float) else str(value))
        raise QuantityError(f"a quantity is a string or a number, not {json_type(value)}")
    if issubclass(kind, Time | Duration):
        if not isinstance(value, str):
            raise ValueError(f"a {kind.__name__.lower()} is a string, not {json_type(value)}")
        return kind.parse(value) if issubclass(kind, Time) else kind(value)
    raise NotImplementedError(f"objects of type {kind.__name__} have no wire form")


def encode(obj: object) -> bytes:
    """`obj` as compact JSON bytes, identical to Go's output. Raises WireError if it has no JSON form."""
    data = _written(obj, as_go=True)
    for raw, escape in _ESCAPES:
        if raw in data:
            data = data.replace(raw, escape)
    return data


def encode_plain(obj: object) -> bytes:
    """`obj` as compact JSON that is not compared byte for byte (pages): the same fields as `encode`, but floats in
    Python's notation and only JSON's own escapes. Raises WireError if it has no JSON form."""
    return _written(obj, as_go=False)


def _written(obj: object, *, as_go: bool) -> bytes:
    """`obj` as JSON, floats in Go's or in Python's notation. Raises WireError."""
    try:
        kind: Any = type(obj)
        if as_go and has_floats(kind):
            # to_builtins has sorted the maps already; sorting again would also sort the fields of structs.
            return msgspec.json.encode(_go_floats(to_builtins(obj)))
        return _ENCODER.encode(obj)
    except (TypeError, NotImplementedError, OverflowError, UnicodeEncodeError, RecursionError) as error:
        raise WireError(f"cannot be written as JSON: {error}") from error


def decode(data: bytes | bytearray | str, type: type[T] | Any, *, where: str = "") -> T:
    """Decode one JSON document leniently. `where` names it in errors. Raises WireError."""
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise WireError(f"is not valid JSON: {error}", where=where) from error
    result: T = convert(value, type, where=where)
    return result


def convert(value: object, type: type[T] | Any, *, where: str = "") -> T:
    """Convert plain Python objects (from JSON or YAML) leniently, like `decode`. Raises WireError."""
    try:
        result: T = reader_for(cast(Any, type), dec_hook)(value)
    except ReadError as error:
        raise WireError(error.reason, where=where, path=error.path) from error
    return result


def to_builtins(obj: object) -> Any:
    """`obj` as dicts, lists and scalars; zero values are omitted as in JSON."""
    return msgspec.to_builtins(obj, enc_hook=enc_hook, order="deterministic")


class FastDecoder(Generic[T]):
    """Decodes many documents of one type; see `json_decoder`."""

    def __init__(self, type: type[T] | Any) -> None:
        self._type = type
        self._fast: msgspec.json.Decoder[T] = msgspec.json.Decoder(type, dec_hook=dec_hook)

    def decode(self, data: bytes | bytearray | str, *, where: str = "") -> T:
        """Decode one document; values that are nested too deep are left empty. Raises WireError."""
        try:
            return decode_any_depth(self._fast, data)
        # msgspec raises invalid UTF-8 and too deep nesting as plain UnicodeDecodeError and RecursionError
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            result: T = decode(data, self._type, where=where)
            return result


@cache
def json_decoder(type: Any) -> FastDecoder[Any]:
    """A decoder for streams of API objects: exact keys only, with the lenient reader as fallback."""
    return FastDecoder(type)


def format_ratio(value: float) -> str:
    """Two decimals, the binary value rounded half to even: `1.2` is `1.20`."""
    return f"{value:.2f}"


_ENCODER = msgspec.json.Encoder(enc_hook=enc_hook, order="deterministic")
# These bytes occur only inside strings of a JSON document, so replacing them anywhere is safe.
_ESCAPES = (
    (b"<", rb"\u003c"),
    (b">", rb"\u003e"),
    (b"&", rb"\u0026"),
    ("\u2028".encode(), rb"\u2028"),
    ("\u2029".encode(), rb"\u2029"),
)


def _go_floats(value: Any) -> Any:
    if isinstance(value, float):
        return msgspec.Raw(_go_float(value).encode())
    if isinstance(value, dict):
        return {key: _go_floats(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_go_floats(item) for item in value]
    return value


def _go_float(value: float) -> str:
    """A float64 in the shortest form that is parsed to the same value, with Go's rule for exponents."""
    if not math.isfinite(value):
        raise WireError(f"{value} has no JSON form")
    mantissa, _, exponent = f"{value!r}".partition("e")
    if value == 0 or 1e-6 <= abs(value) < 1e21:
        if not exponent:
            return mantissa.removesuffix(".0")
        whole, _, part = mantissa.lstrip("-").partition(".")
        shift = int(exponent)
        digits = whole + part
        text = digits.ljust(shift + 1, "0") if shift > 0 else "0." + "0" * (-shift - 1) + digits
        return ("-" if value < 0 else "") + text
    # Outside this range Python also writes an exponent: its range without exponent is narrower.
    return f"{mantissa.removesuffix('.0')}e{'+' if int(exponent) > 0 else ''}{int(exponent)}"

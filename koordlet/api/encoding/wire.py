"""JSON as Go's encoding/json writes and reads it, over msgspec structs.

Koordinator's components compare annotation strings for equality, so what we write must be the same
bytes: struct fields in declaration order, map keys sorted, `<`, `>` and `&` escaped, floats in Go's
notation, zero values left out (`koordlet.api.encoding.base` says how structs declare that). What we read is as
lenient as Go: keys match case-insensitively when no field has the exact name, unknown keys are ignored,
`null` leaves a field unset; and as strict: an integer is not a float, int32 has a range (spec 01 §2).

`encode`/`decode` are for annotations, ConfigMaps and everything that people write. `json_decoder(type)`
is for streams of API objects: msgspec straight from bytes to structs, exact keys, and the lenient
reader only for a document that does not fit. Called by everybody; no I/O, no state but per-type caches.
"""

from __future__ import annotations

import math
from datetime import datetime
from functools import cache
from typing import Annotated, Any, Generic, TypeVar, cast

import msgspec
from msgspec import Meta

from koordlet.api.encoding.overlay import overlay
from koordlet.api.encoding.quantity import Quantity, QuantityError
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
"""A JSON number or string, kept as it came."""

JSONObject = dict[str, Any]
"""An object without a schema (PRESERVE in spec 01 §3)."""


class WireError(ValueError):
    """A document that cannot be read or written.

    `where` names the object as the caller knows it, `path` the field inside (`spec.owners[0].object`,
    empty for the document itself), `reason` what is wrong.
    """

    def __init__(self, reason: str, *, where: str = "", path: str = "") -> None:
        super().__init__(": ".join(part for part in (where, path, reason) if part))
        self.where, self.path, self.reason = where, path, reason


def enc_hook(value: object) -> str:
    """How msgspec writes our own scalar types."""
    if isinstance(value, Quantity | Time | Duration):
        return str(value)
    if isinstance(value, datetime):
        return str(Time.of(value))
    raise NotImplementedError(f"objects of type {type(value).__name__} have no wire form")


def dec_hook(kind: type, value: object) -> object:
    """How msgspec reads our own scalar types. Raises ValueError, which msgspec dresses with the path."""
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
    """`obj` as compact JSON bytes, equal to what Go writes. Raises WireError for what has no JSON form."""
    data = _written(obj, as_go=True)
    for raw, escape in _ESCAPES:
        if raw in data:
            data = data.replace(raw, escape)
    return data


def encode_plain(obj: object) -> bytes:
    """`obj` as compact JSON for pages that nobody compares byte by byte: the same fields as `encode`, floats in
    Python's notation, nothing escaped that JSON would not escape. Raises WireError for what has no JSON form."""
    return _written(obj, as_go=False)


def _written(obj: object, *, as_go: bool) -> bytes:
    """As JSON, floats in Go's notation or in Python's. Raises WireError."""
    try:
        kind: Any = type(obj)
        if as_go and has_floats(kind):
            # to_builtins has put maps in order already; sorting again would shuffle structs.
            return msgspec.json.encode(_go_floats(to_builtins(obj)))
        return _ENCODER.encode(obj)
    except (TypeError, NotImplementedError, OverflowError, UnicodeEncodeError, RecursionError) as error:
        raise WireError(f"cannot be written as JSON: {error}") from error


def decode(data: bytes | str, type: type[T] | Any, *, where: str = "") -> T:
    """Read one JSON document leniently. `where` names it in errors. Raises WireError."""
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise WireError(f"is not valid JSON: {error}", where=where) from error
    result: T = convert(value, type, where=where)
    return result


def convert(value: object, type: type[T] | Any, *, where: str = "") -> T:
    """Read plain Python objects (of JSON or YAML) leniently, as `decode` does. Raises WireError."""
    try:
        result: T = reader_for(cast(Any, type), dec_hook)(value, "")
    except ReadError as error:
        raise WireError(error.reason, where=where, path=error.path) from error
    return result


def to_builtins(obj: object) -> Any:
    """`obj` as dicts, lists and scalars, with zero values left out as on the wire."""
    return msgspec.to_builtins(obj, enc_hook=enc_hook, order="deterministic")


class FastDecoder(Generic[T]):
    """Decodes many documents of one type; see `json_decoder`."""

    def __init__(self, type: type[T] | Any) -> None:
        self._type = type
        self._fast: msgspec.json.Decoder[T] = msgspec.json.Decoder(type, dec_hook=dec_hook)

    def decode(self, data: bytes | str, *, where: str = "") -> T:
        """Read one document. Raises WireError."""
        try:
            return self._fast.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # bad UTF-8 and depth are not dressed
            result: T = decode(data, self._type, where=where)
            return result


@cache
def json_decoder(type: Any) -> FastDecoder[Any]:
    """A decoder for streams of API objects: exact keys only, and the lenient reader as second try."""
    return FastDecoder(type)


def format_ratio(value: float) -> str:
    """Two decimals, half to even on the binary value: `1.2` is `1.20`."""
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
    """A float64 in the shortest form that reads back, with Go's rule for exponents."""
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
    # Outside that window Python writes an exponent too: its own window is narrower.
    return f"{mantissa.removesuffix('.0')}e{'+' if int(exponent) > 0 else ''}{int(exponent)}"

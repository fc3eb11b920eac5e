"""Bounds the nesting of JSON from the API server and the kubelet. Pure.

Tenants write values of any depth, for example the parameters of a ResourceClaim or `managedFields`: a Kubernetes API
server accepts 10,000 levels. Decoders use one level of the stack per level of JSON, and Python allows 1000. No field
that this project reads is nested that deep, so deeper values are left empty instead of refused with their object.
"""

from __future__ import annotations

import re
from itertools import zip_longest
from typing import Final, TypeVar

import msgspec
import numpy as np

T = TypeVar("T")

MAX_LEVELS: Final = 100
_CHUNK_BYTES: Final = 1 << 20
_ESCAPED: Final = re.compile(rb"\\.", re.DOTALL)
_OPENING, _CLOSING, _QUOTE = 1, 2, 3
_CODES: Final = bytes(
    _OPENING if char in b"{[" else _CLOSING if char in b"}]" else _QUOTE if char in b'"' else 0 for char in range(256)
)


def shallow(data: bytes) -> bytes:
    """The document, in which objects and lists on level `MAX_LEVELS` are empty. Of text that is no JSON only a part may
    remain."""
    text = _ESCAPED.sub(b"__", data) if b"\\" in data else data
    level, is_string = 0, False
    starts: list[int] = []
    ends: list[int] = []
    for offset in range(0, len(text), _CHUNK_BYTES):
        codes = np.frombuffer(text[offset : offset + _CHUNK_BYTES].translate(_CODES), np.int8)
        at = np.flatnonzero(codes)
        codes = codes[at]
        quotes = np.cumsum(codes == _QUOTE) + is_string
        outside = (codes != _QUOTE) & (quotes % 2 == 0)
        at, is_opening = at[outside] + offset, codes[outside] == _OPENING
        levels = np.cumsum(np.where(is_opening, 1, -1)) + level
        starts += (at[is_opening & (levels == MAX_LEVELS)] + 1).tolist()
        ends += at[~is_opening & (levels == MAX_LEVELS - 1)].tolist()
        level = int(levels[-1]) if len(levels) else level
        is_string = bool(quotes[-1] % 2) if len(quotes) else is_string
    if not starts:
        return data
    kept = [data[end:start] for start, end in zip_longest(starts, [0, *ends], fillvalue=len(data))]
    return b"".join(kept)


def decode_any_depth(decoder: msgspec.json.Decoder[T], data: bytes | str | msgspec.Raw) -> T:
    """`decoder.decode`; values that are nested too deep for it are left empty. Raises what it raises for other text."""
    try:
        return decoder.decode(data)
    except RecursionError:
        return decoder.decode(shallow(data.encode() if isinstance(data, str) else bytes(data)))

"""A netlink socket for short requests, and the attributes of messages (netlink(7), RFC 3549).

The kernel answers within the call, so a request takes about ten microseconds and needs no event loop. A socket stays in
the network namespace in which it was opened. Sockets of pyroute2 cannot be used in this process: its synchronous calls
start an event loop of their own, and its asynchronous calls need an endpoint that uvloop refuses (docs/decisions.md).
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator

ROUTE = 0
NETFILTER = 12
REQUEST = 1
ACK = 4
ECHO = 8
DUMP = 0x300
REPLACE = 0x100
EXCLUSIVE = 0x200
CREATE = 0x400
NESTED = 0x8000
_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_ERROR = struct.Struct("=i")
_TYPE_ERROR = 2
_TYPE_DONE = 3
_TIMEOUT_S = 2
_BUFFER_BYTES = 1 << 17


class NetlinkError(OSError):
    """The kernel refused a request with `errno`."""


class Netlink:
    """One socket. `family` is ROUTE or NETFILTER. The constructor raises OSError when it cannot be opened."""

    def __init__(self, family: int = ROUTE) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, family)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", _TIMEOUT_S, 0))
        self._socket.bind((0, 0))
        self._serial = 0

    def close(self) -> None:
        """Close the descriptor."""
        self._socket.close()

    def request(self, kind: int, flags: int, body: bytes) -> list[tuple[int, bytes]]:
        """(type, body) of all answers. Raises NetlinkError."""
        self._serial = self._serial + 1 & 0xFFFFFFFF
        length = _HEADER.size + len(body)
        self._socket.send(_HEADER.pack(length, kind, flags | REQUEST | ACK, self._serial, 0) + body)
        answers: list[tuple[int, bytes]] = []
        while True:
            data = self._socket.recv(_BUFFER_BYTES)
            at = 0
            while at < len(data):
                length, kind, _, serial, _ = _HEADER.unpack_from(data, at)
                content = data[at + _HEADER.size : at + length]
                at += length + 3 & ~3
                if serial != self._serial:  # the rest of the answer to an earlier request that failed
                    continue
                if kind == _TYPE_ERROR:
                    code = -_ERROR.unpack_from(content)[0]
                    if code:
                        raise NetlinkError(code, os.strerror(code) if code < 4096 else f"netlink error {code}")
                    return answers
                if kind == _TYPE_DONE:
                    return answers
                answers.append((kind, content))


def attribute(kind: int, body: bytes) -> bytes:
    """An attribute, padded to four bytes."""
    return _ATTRIBUTE.pack(4 + len(body), kind) + body + b"\0" * (-len(body) % 4)


def nested(kind: int, *inner: bytes) -> bytes:
    """An attribute of attributes."""
    return attribute(kind | NESTED, b"".join(inner))


def text(kind: int, value: str) -> bytes:
    """A string attribute, terminated by a zero byte."""
    return attribute(kind, value.encode() + b"\0")


def attributes(data: bytes, at: int = 0) -> Iterator[tuple[int, bytes]]:
    """(type without flags, content) of each attribute, up to the first that is truncated."""
    while at + 4 <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        if length < 4:
            return
        yield kind & 0x3FFF, data[at + 4 : at + length]
        at += length + 3 & ~3

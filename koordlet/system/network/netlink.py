"""A netlink socket for short questions and orders, and the attributes they are made of (netlink(7), RFC 3549).

The kernel answers in the call itself, so a request takes some ten microseconds and needs no loop; a socket stays in the
network namespace it was made in. Sockets of pyroute2 can't be used in this process: its synchronous calls start an
event loop of their own, and its asynchronous ones need an endpoint that uvloop refuses (docs/decisions.md).
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator

ROUTE, NETFILTER = 0, 12
REQUEST, ACK, ECHO, DUMP = 1, 4, 8, 0x300
CREATE, REPLACE, EXCLUSIVE = 0x400, 0x100, 0x200
NESTED = 0x8000
_HEADER, _ATTRIBUTE, _ERROR = struct.Struct("=IHHII"), struct.Struct("=HH"), struct.Struct("=i")
_TYPE_ERROR, _TYPE_DONE = 2, 3
_SECONDS = 2
_BUFFER = 1 << 17


class NetlinkError(OSError):
    """The kernel's refusal; `errno` says which."""


class Netlink:
    """One socket. `family` is ROUTE or NETFILTER. Raises OSError when it can't be opened."""

    def __init__(self, family: int = ROUTE) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, family)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", _SECONDS, 0))
        self._socket.bind((0, 0))
        self._serial = 0

    def close(self) -> None:
        """Give the descriptor back."""
        self._socket.close()

    def request(self, kind: int, flags: int, body: bytes) -> list[tuple[int, bytes]]:
        """(type, body) of all answers. Raises NetlinkError."""
        self._serial = self._serial + 1 & 0xFFFFFFFF
        length = _HEADER.size + len(body)
        self._socket.send(_HEADER.pack(length, kind, flags | REQUEST | ACK, self._serial, 0) + body)
        found: list[tuple[int, bytes]] = []
        while True:
            data, at = self._socket.recv(_BUFFER), 0
            while at < len(data):
                length, answer, _, serial, _ = _HEADER.unpack_from(data, at)
                content = data[at + _HEADER.size : at + length]
                at += length + 3 & ~3
                if serial != self._serial:  # the rest of a question that was given up
                    continue
                if answer == _TYPE_ERROR:
                    code = -_ERROR.unpack_from(content)[0]
                    if code:
                        raise NetlinkError(code, os.strerror(code) if code < 4096 else f"netlink error {code}")
                    return found
                if answer == _TYPE_DONE:
                    return found
                found.append((answer, content))


def attribute(kind: int, body: bytes) -> bytes:
    """Padded to four bytes."""
    return _ATTRIBUTE.pack(4 + len(body), kind) + body + b"\0" * (-len(body) % 4)


def nested(kind: int, *inner: bytes) -> bytes:
    """An attribute of attributes."""
    return attribute(kind | NESTED, b"".join(inner))


def text(kind: int, value: str) -> bytes:
    """A string with its end."""
    return attribute(kind, value.encode() + b"\0")


def attributes(data: bytes, at: int = 0) -> Iterator[tuple[int, bytes]]:
    """(type without flags, content); what is cut off ends them."""
    while at + 4 <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        if length < 4:
            return
        yield kind & 0x3FFF, data[at + 4 : at + length]
        at += length + 3 & ~3

"""Queueing disciplines, HTB classes and filters of an interface: what rtnetlink says of them and takes for them.

Pure but for the questions that `Traffic` asks of its socket. Rates are bits a second, on the wire bytes. IPv4 only, as
in the original. Source: tc(8), include/uapi/linux/pkt_sched.h and pkt_cls.h.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address

from koordlet.system.network.netlink import (
    CREATE,
    DUMP,
    ECHO,
    EXCLUSIVE,
    REPLACE,
    Netlink,
    NetlinkError,
    attribute,
    attributes,
    nested,
    text,
)

ROOT = 0xFFFFFFFF
MAJOR = 0x10000
"""`1:`, the handle of our root; its classes are MAJOR + minor."""
HTB, U32, CGROUP = "htb", "u32", "cgroup"
LEAST_BURST = 3_200
"""Bytes: two full frames."""
LEAST_QUANTUM, MOST_QUANTUM = 1_000, 200_000
"""Bytes that a class sends before its equals have their turn; the kernel's own bounds, of which it warns."""
LEAST_TICKS = 200
"""Of buffer and cbuffer (spec 03 §4.12)."""

_NEWLINK, _GETLINK = 16, 18
_NEWQDISC, _DELQDISC, _GETQDISC = 36, 37, 38
_NEWCLASS, _DELCLASS, _GETCLASS = 40, 41, 42
_NEWFILTER, _DELFILTER, _GETFILTER = 44, 45, 46
_KIND, _OPTIONS = 1, 2
_LINK, _TC = struct.Struct("=BxHiII"), struct.Struct("=BxxxiIII")
_HTB_CLASS, _HTB_ROOT, _RATE = struct.Struct("=12s12sIIIII"), struct.Struct("=IIIII"), struct.Struct("=BBHhHI")
_HTB_PARMS, _HTB_INIT, _HTB_RATE64, _HTB_CEIL64 = 1, 2, 6, 7
_U32_CLASSID, _U32_SEL = 1, 5
_SELECTOR = struct.Struct("=BBBxHHhhI")
_KEY = struct.Struct("=4s4sii")
_SOURCE = 12
"""Offset of the source address in an IPv4 header."""
_IFNAME = 3
_TICKS_A_MICROSECOND = 15.625
"""1000 ns / 64, what /proc/net/psched has said since the clock of packets is 64 ns wide (2.6.31)."""
_UINT32 = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class HtbClass:
    """`rate` is guaranteed, `ceil` the most with what others leave; both bits a second, multiples of eight."""

    rate: int
    ceil: int
    prio: int


class Traffic:
    """Asks and orders about one namespace's interfaces. Absent things are None; the rest is NetlinkError."""

    def __init__(self, link: Netlink) -> None:
        self._link = link

    def index(self, interface: str) -> int | None:
        """The interface's number."""
        try:
            answers = self._link.request(_GETLINK, 0, _LINK.pack(0, 0, 0, 0, 0) + text(_IFNAME, interface))
        except NetlinkError as error:
            if error.errno == errno.ENODEV:
                return None
            raise
        return next((_LINK.unpack_from(body)[2] for kind, body in answers if kind == _NEWLINK), None)

    def root(self, index: int) -> tuple[str, int, int]:
        """(kind, handle, default class) of the root discipline; handle 0 is one that the kernel chose."""
        for _, body in self._link.request(_GETQDISC, DUMP, _tc(index, 0, 0)):
            _, found, handle, parent, _ = _TC.unpack_from(body)
            if found == index and parent == ROOT:
                kind, options = _told(body)
                inner = dict(attributes(options)) if kind == HTB else {}
                default = _HTB_ROOT.unpack_from(inner[_HTB_INIT])[2] if _HTB_INIT in inner else 0
                return kind, handle, default
        return "", 0, 0

    def make_root(self, index: int, default: int) -> None:
        """`htb 1: default <minor>`; there is none with a handle of its own."""
        options = nested(_OPTIONS, attribute(_HTB_INIT, _HTB_ROOT.pack(3, 10, default, 0, 0)))
        body = _tc(index, MAJOR, ROOT) + text(_KIND, HTB) + options
        self._link.request(_NEWQDISC, CREATE | EXCLUSIVE, body)

    def make_plain_root(self, index: int, kind: str) -> None:
        """A discipline with its kind's defaults."""
        self._link.request(_NEWQDISC, CREATE | REPLACE, _tc(index, 0, ROOT) + text(_KIND, kind))

    def remove_root(self, index: int) -> None:
        """The kernel puts its own in place; classes and filters go along."""
        self._link.request(_DELQDISC, 0, _tc(index, 0, ROOT))

    def htb_class(self, index: int, minor: int) -> HtbClass | None:
        """Of our root."""
        try:
            answers = self._link.request(_GETCLASS, ECHO, _tc(index, MAJOR + minor, 0))  # else only listeners are told
        except NetlinkError as error:
            if error.errno in (errno.ENOENT, errno.EINVAL):  # no such class, or no root that has classes
                return None
            raise
        for _, body in answers:
            inner = dict(attributes(_told(body)[1]))
            if _HTB_PARMS in inner:
                rate, ceil, _, _, _, _, prio = _HTB_CLASS.unpack_from(inner[_HTB_PARMS])
                return HtbClass(_bits(rate, inner.get(_HTB_RATE64)), _bits(ceil, inner.get(_HTB_CEIL64)), prio)
        return None

    def set_class(self, index: int, minor: int, wanted: HtbClass) -> None:
        """Made or changed; 1:1 below the root, the others below 1:1."""
        rate, ceil = wanted.rate // 8, wanted.ceil // 8
        quantum = min(max(rate // 10, LEAST_QUANTUM), MOST_QUANTUM)
        parameters = _HTB_CLASS.pack(_rate(rate), _rate(ceil), _ticks(rate), _ticks(ceil), quantum, 0, wanted.prio)
        wide = b"".join(
            attribute(kind, struct.pack("=Q", value))
            for kind, value in ((_HTB_RATE64, rate), (_HTB_CEIL64, ceil))
            if value > _UINT32
        )
        parent = MAJOR if minor == 1 else MAJOR + 1
        options = nested(_OPTIONS, attribute(_HTB_PARMS, parameters), wide)
        self._link.request(_NEWCLASS, CREATE, _tc(index, MAJOR + minor, parent) + text(_KIND, HTB) + options)

    def remove_class(self, index: int, minor: int) -> None:
        """One that has no filters and no classes below."""
        self._link.request(_DELCLASS, 0, _tc(index, MAJOR + minor, 0))

    def cgroup_filters(self, index: int) -> dict[int, int]:
        """prio -> handle of filters that take the class from a task's net_cls.classid."""
        return {prio: handle for prio, handle, kind, _ in self._filters(index) if kind == CGROUP and handle}

    def add_cgroup_filter(self, index: int, prio: int, handle: int) -> None:
        """`protocol ip prio <prio> parent 1: handle <handle>: cgroup`."""
        body = _tc(index, handle, MAJOR, _info(prio)) + text(_KIND, CGROUP) + nested(_OPTIONS)
        self._link.request(_NEWFILTER, CREATE | EXCLUSIVE, body)

    def remove_filters(self, index: int, prio: int) -> None:
        """All of that prio."""
        self._link.request(_DELFILTER, 0, _tc(index, 0, MAJOR, _info(prio)))

    def source_filters(self, index: int, prio: int) -> dict[str, tuple[int, int]]:
        """Source address -> (minor of its class, handle) of the u32 filters of that prio."""
        found = {}
        for own, handle, kind, options in self._filters(index):
            inner = dict(attributes(options)) if own == prio and kind == U32 else {}
            if _U32_SEL not in inner or _U32_CLASSID not in inner:
                continue
            selector = inner[_U32_SEL]
            mask, value, offset, _ = _KEY.unpack_from(selector, _SELECTOR.size)
            if offset == _SOURCE and mask == b"\xff" * 4:
                classid = struct.unpack("=I", inner[_U32_CLASSID])[0]
                found[str(IPv4Address(value))] = (classid - MAJOR, handle)
        return found

    def add_source_filter(self, index: int, prio: int, address: str, minor: int) -> None:
        """Packets from an address go to the class."""
        key = _KEY.pack(b"\xff" * 4, IPv4Address(address).packed, _SOURCE, 0)
        selector = _SELECTOR.pack(1, 0, 1, 0, 0, 0, 0, 0) + key
        options = nested(
            _OPTIONS, attribute(_U32_CLASSID, struct.pack("=I", MAJOR + minor)), attribute(_U32_SEL, selector)
        )
        self._link.request(_NEWFILTER, CREATE, _tc(index, 0, MAJOR, _info(prio)) + text(_KIND, U32) + options)

    def remove_source_filter(self, index: int, prio: int, handle: int) -> None:
        """One that `source_filters` told of."""
        self._link.request(_DELFILTER, 0, _tc(index, handle, MAJOR, _info(prio)) + text(_KIND, U32))

    def _filters(self, index: int) -> Iterator[tuple[int, int, str, bytes]]:
        """(prio, handle, kind, options) below our root."""
        try:
            answers = self._link.request(_GETFILTER, DUMP, _tc(index, 0, MAJOR))
        except NetlinkError as error:
            if error.errno in (errno.ENOENT, errno.EINVAL):
                return
            raise
        for _, body in answers:
            _, _, handle, _, info = _TC.unpack_from(body)
            yield info >> 16, handle, *_told(body)


def _tc(index: int, handle: int, parent: int, info: int = 0) -> bytes:
    return _TC.pack(socket.AF_UNSPEC, index, handle, parent, info)


def _info(prio: int) -> int:
    return prio << 16 | socket.htons(0x0800)


def _told(body: bytes) -> tuple[str, bytes]:
    """(kind, options)."""
    found = dict(attributes(body, _TC.size))
    return found.get(_KIND, b"").rstrip(b"\0").decode(), found.get(_OPTIONS, b"")


def _rate(bytes_a_second: int) -> bytes:
    linklayer_ethernet = 1
    return _RATE.pack(0, linklayer_ethernet, 0, 0, 0, min(bytes_a_second, _UINT32))


def _ticks(bytes_a_second: int) -> int:
    """Of the time in which a burst may pass: a millisecond's bytes."""
    burst = max(bytes_a_second // 1000, LEAST_BURST)
    return min(max(int(burst / bytes_a_second * 1_000_000 * _TICKS_A_MICROSECOND), LEAST_TICKS), _UINT32)


def _bits(rate: bytes, wide: bytes | None) -> int:
    if wide is not None:
        return int(struct.unpack("=Q", wide)[0]) * 8
    return int(_RATE.unpack_from(rate)[5]) * 8

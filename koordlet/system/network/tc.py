"""Queueing disciplines, HTB classes and filters of an interface, read and changed through rtnetlink.

Rates are bits per second here and bytes per second in messages. IPv4 only, as in Koordinator. Source: tc(8),
include/uapi/linux/pkt_sched.h and pkt_cls.h.
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
"""`1:`, the handle of koordlet's root; its classes are MAJOR + minor."""
HTB = "htb"
U32 = "u32"
CGROUP = "cgroup"
MIN_BURST_BYTES = 3_200
"""Two full frames."""
MIN_QUANTUM_BYTES = 1_000
MAX_QUANTUM_BYTES = 200_000
"""A class sends one quantum before the next class of its priority. Outside these bounds the kernel warns."""
MIN_BUFFER_TICKS = 200
"""Minimum of buffer and cbuffer (spec 03 §4.12)."""

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
_TICKS_PER_MICROSECOND = 15.625
"""1000 ns / 64: the tick of the packet scheduler is 64 ns since 2.6.31 (/proc/net/psched)."""
_UINT32 = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class HtbClass:
    """`rate` is guaranteed, `ceil` the maximum including what other classes leave; bits per second, multiples of
    eight."""

    rate: int
    ceil: int
    prio: int


class Traffic:
    """Traffic control of the interfaces of one network namespace. Absent objects are None; other failures raise
    NetlinkError."""

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
        """(kind, handle, default class) of the root discipline; handle 0 marks one that the kernel created."""
        for _, body in self._link.request(_GETQDISC, DUMP, _tc(index, 0, 0)):
            _, interface, handle, parent, _ = _TC.unpack_from(body)
            if interface == index and parent == ROOT:
                kind, options = _kind_and_options(body)
                inner = dict(attributes(options)) if kind == HTB else {}
                default = _HTB_ROOT.unpack_from(inner[_HTB_INIT])[2] if _HTB_INIT in inner else 0
                return kind, handle, default
        return "", 0, 0

    def make_root(self, index: int, default: int) -> None:
        """Add `htb 1: default <minor>`. Fails if there is a root discipline that the kernel did not create."""
        options = nested(_OPTIONS, attribute(_HTB_INIT, _HTB_ROOT.pack(3, 10, default, 0, 0)))
        body = _tc(index, MAJOR, ROOT) + text(_KIND, HTB) + options
        self._link.request(_NEWQDISC, CREATE | EXCLUSIVE, body)

    def make_plain_root(self, index: int, kind: str) -> None:
        """Set a root discipline with the defaults of its kind."""
        self._link.request(_NEWQDISC, CREATE | REPLACE, _tc(index, 0, ROOT) + text(_KIND, kind))

    def remove_root(self, index: int) -> None:
        """Remove the root discipline with its classes and filters; the kernel sets its default one."""
        self._link.request(_DELQDISC, 0, _tc(index, 0, ROOT))

    def htb_class(self, index: int, minor: int) -> HtbClass | None:
        """A class of koordlet's root."""
        try:
            answers = self._link.request(
                _GETCLASS, ECHO, _tc(index, MAJOR + minor, 0)
            )  # without ECHO only listeners get the answer
        except NetlinkError as error:
            if error.errno in (errno.ENOENT, errno.EINVAL):  # no such class, or no root that has classes
                return None
            raise
        for _, body in answers:
            inner = dict(attributes(_kind_and_options(body)[1]))
            if _HTB_PARMS in inner:
                rate, ceil, _, _, _, _, prio = _HTB_CLASS.unpack_from(inner[_HTB_PARMS])
                return HtbClass(_bits(rate, inner.get(_HTB_RATE64)), _bits(ceil, inner.get(_HTB_CEIL64)), prio)
        return None

    def set_class(self, index: int, minor: int, desired: HtbClass) -> None:
        """Add or change a class; 1:1 is below the root, the others below 1:1."""
        rate = desired.rate // 8
        ceil = desired.ceil // 8
        quantum = min(max(rate // 10, MIN_QUANTUM_BYTES), MAX_QUANTUM_BYTES)
        parameters = _HTB_CLASS.pack(_rate(rate), _rate(ceil), _ticks(rate), _ticks(ceil), quantum, 0, desired.prio)
        wide = b"".join(
            attribute(kind, struct.pack("=Q", value))
            for kind, value in ((_HTB_RATE64, rate), (_HTB_CEIL64, ceil))
            if value > _UINT32
        )
        parent = MAJOR if minor == 1 else MAJOR + 1
        options = nested(_OPTIONS, attribute(_HTB_PARMS, parameters), wide)
        self._link.request(_NEWCLASS, CREATE, _tc(index, MAJOR + minor, parent) + text(_KIND, HTB) + options)

    def remove_class(self, index: int, minor: int) -> None:
        """Remove a class that has no filters and no classes below it."""
        self._link.request(_DELCLASS, 0, _tc(index, MAJOR + minor, 0))

    def cgroup_filters(self, index: int) -> dict[int, int]:
        """Priority -> handle of the filters that take the class from a task's net_cls.classid."""
        return {prio: handle for prio, handle, kind, _ in self._filters(index) if kind == CGROUP and handle}

    def add_cgroup_filter(self, index: int, prio: int, handle: int) -> None:
        """Add `protocol ip prio <prio> parent 1: handle <handle>: cgroup`."""
        body = _tc(index, handle, MAJOR, _info(prio)) + text(_KIND, CGROUP) + nested(_OPTIONS)
        self._link.request(_NEWFILTER, CREATE | EXCLUSIVE, body)

    def remove_filters(self, index: int, prio: int) -> None:
        """Remove all filters of that priority."""
        self._link.request(_DELFILTER, 0, _tc(index, 0, MAJOR, _info(prio)))

    def source_filters(self, index: int, prio: int) -> dict[str, tuple[int, int]]:
        """Source address -> (minor of its class, handle) of the u32 filters of that priority."""
        filters = {}
        for priority, handle, kind, options in self._filters(index):
            inner = dict(attributes(options)) if priority == prio and kind == U32 else {}
            if _U32_SEL not in inner or _U32_CLASSID not in inner:
                continue
            selector = inner[_U32_SEL]
            mask, value, offset, _ = _KEY.unpack_from(selector, _SELECTOR.size)
            if offset == _SOURCE and mask == b"\xff" * 4:
                classid = struct.unpack("=I", inner[_U32_CLASSID])[0]
                filters[str(IPv4Address(value))] = (classid - MAJOR, handle)
        return filters

    def add_source_filter(self, index: int, prio: int, address: str, minor: int) -> None:
        """Direct packets from an address to the class."""
        key = _KEY.pack(b"\xff" * 4, IPv4Address(address).packed, _SOURCE, 0)
        selector = _SELECTOR.pack(1, 0, 1, 0, 0, 0, 0, 0) + key
        options = nested(
            _OPTIONS, attribute(_U32_CLASSID, struct.pack("=I", MAJOR + minor)), attribute(_U32_SEL, selector)
        )
        self._link.request(_NEWFILTER, CREATE, _tc(index, 0, MAJOR, _info(prio)) + text(_KIND, U32) + options)

    def remove_source_filter(self, index: int, prio: int, handle: int) -> None:
        """Remove a filter that `source_filters` returned."""
        self._link.request(_DELFILTER, 0, _tc(index, handle, MAJOR, _info(prio)) + text(_KIND, U32))

    def _filters(self, index: int) -> Iterator[tuple[int, int, str, bytes]]:
        """(priority, handle, kind, options) below koordlet's root."""
        try:
            answers = self._link.request(_GETFILTER, DUMP, _tc(index, 0, MAJOR))
        except NetlinkError as error:
            if error.errno in (errno.ENOENT, errno.EINVAL):
                return
            raise
        for _, body in answers:
            _, _, handle, _, info = _TC.unpack_from(body)
            yield info >> 16, handle, *_kind_and_options(body)


def _tc(index: int, handle: int, parent: int, info: int = 0) -> bytes:
    return _TC.pack(socket.AF_UNSPEC, index, handle, parent, info)


def _info(prio: int) -> int:
    return prio << 16 | socket.htons(0x0800)


def _kind_and_options(body: bytes) -> tuple[str, bytes]:
    values = dict(attributes(body, _TC.size))
    return values.get(_KIND, b"").rstrip(b"\0").decode(), values.get(_OPTIONS, b"")


def _rate(bytes_per_second: int) -> bytes:
    linklayer_ethernet = 1
    return _RATE.pack(0, linklayer_ethernet, 0, 0, 0, min(bytes_per_second, _UINT32))


def _ticks(bytes_per_second: int) -> int:
    """Time in which a burst passes; a burst is the bytes of one millisecond."""
    burst = max(bytes_per_second // 1000, MIN_BURST_BYTES)
    return min(max(int(burst / bytes_per_second * 1_000_000 * _TICKS_PER_MICROSECOND), MIN_BUFFER_TICKS), _UINT32)


def _bits(rate: bytes, wide: bytes | None) -> int:
    if wide is not None:
        return int(struct.unpack("=Q", wide)[0]) * 8
    return int(_RATE.unpack_from(rate)[5]) * 8

"""Traffic control of an interface as settings (spec 03 §4.12); rates are bits a second.

tc.qdisc[eth0]       "htb 1: default 2"            the root; a foreign one is replaced, and made again from its kind
tc.total[eth0]       "prio 0 rate 8000 ceil 8000"  class 1:1
tc.class[eth0 1:3]   "prio 2 rate 800 ceil 8000"   a class below it; the minor is hexadecimal, as everywhere in tc
tc.cgroup[eth0]      "on"                          the three filters that read a task's net_cls.classid
tc.sources[eth0]     "10.0.0.1=1:3 10.0.0.2=1:4"   packets by their source address
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cached_property
from ipaddress import AddressValueError, IPv4Address

from koordlet.resourceexecutor.settings import Setting, Value
from koordlet.resourceexecutor.stores import ABSENT
from koordlet.system.errors import InvalidValue, KernelFileError
from koordlet.system.network.netlink import Netlink
from koordlet.system.network.tc import HTB, MAJOR, HtbClass, Traffic
from koordlet.system.write import write_error

QDISC, TOTAL, CLASS, BY_CGROUP, SOURCES = "tc.qdisc", "tc.total", "tc.class", "tc.cgroup", "tc.sources"
DEFAULT_MINOR = 2
ROOT, ON = f"htb 1: default {DEFAULT_MINOR}", "on"
CGROUP_FILTERS = {1: 2, 2: 3, 3: 4}
"""prio -> handle."""
SOURCE_PRIO = 4
_CLASS = re.compile(r"prio ([0-7]) rate ([1-9][0-9]*) ceil ([1-9][0-9]*)")
_SOURCE = re.compile(r"([0-9.]+)=1:([0-9a-f]{1,4})")


def class_text(wanted: HtbClass) -> str:
    """As a setting holds it."""
    return f"prio {wanted.prio} rate {wanted.rate} ceil {wanted.ceil}"


class TrafficStore:
    """`link` opens a socket in the namespace of the interfaces, when it is first needed."""

    resources = (QDISC, TOTAL, CLASS, BY_CGROUP, SOURCES)

    def __init__(self, link: Callable[[], Netlink] = Netlink) -> None:
        self._open = link

    @cached_property
    def _traffic(self) -> Traffic:
        return Traffic(self._open())

    def check(self, setting: Setting, value: Value) -> Value:
        """What it means is the kernel's to judge; what it says must be readable."""
        text = str(value)
        if setting.resource in (QDISC, BY_CGROUP):
            if text not in (ROOT if setting.resource == QDISC else ON, ABSENT):
                raise InvalidValue(setting.label, text, "unknown")
        elif setting.resource == SOURCES:
            return _sources_text(_sources(setting, text))
        else:
            _class(setting, text)
        return text

    def read(self, setting: Setting) -> Value | None:
        """None while the interface, or our root on it, is not there."""
        interface, minor = _place(setting)
        try:
            index = self._traffic.index(interface)
            if index is None:
                return None
            if setting.resource == QDISC:
                return self._root(index)
            if setting.resource in (TOTAL, CLASS):
                found = self._traffic.htb_class(index, minor)
                if found is not None:
                    return class_text(found)
            if self._root(index) != ROOT:
                return None
            if setting.resource == BY_CGROUP:
                return ON if self._traffic.cgroup_filters(index) == CGROUP_FILTERS else ABSENT
            if setting.resource == SOURCES:
                given = self._traffic.source_filters(index, SOURCE_PRIO)
                return _sources_text({address: number for address, (number, _) in given.items()})
            return ABSENT
        except OSError as error:
            raise KernelFileError(setting.label, f"{setting.label}: {error.strerror}") from error

    def gone(self, setting: Setting) -> bool:
        """The interface left, or its root is to be made."""
        try:
            return self.read(setting) is None
        except KernelFileError:  # what can't be looked at has not gone
            return False

    def holds(self, setting: Setting, asked: Value) -> bool | None:
        """Values can be compared."""
        return None

    def period(self, setting: Setting) -> float | None:
        """As everything."""
        return None

    def write(self, setting: Setting, value: Value) -> None:
        """As the module says."""
        text, (interface, minor) = str(value), _place(setting)
        try:
            index = self._traffic.index(interface)
            if index is None:
                raise write_error(setting.label, text, 19)
            if setting.resource == QDISC:
                self._write_root(index, text)
            elif setting.resource == BY_CGROUP:
                self._write_cgroup_filters(index, text)
            elif setting.resource == SOURCES:
                self._write_sources(index, _sources(setting, text))
            elif text == ABSENT:
                self._traffic.remove_class(index, minor)
            else:
                self._traffic.set_class(index, minor, _class(setting, text))
        except OSError as error:
            raise write_error(setting.label, text, error.errno or 5, error.strerror or "") from error

    def _root(self, index: int) -> str:
        kind, handle, default = self._traffic.root(index)
        if (kind, handle, default) == (HTB, MAJOR, DEFAULT_MINOR):
            return ROOT
        return kind if handle else ABSENT

    def _write_root(self, index: int, text: str) -> None:
        """A foreign HTB's classes can't be made again: what comes back in its place is the kernel's own root."""
        if self._traffic.root(index)[1]:
            self._traffic.remove_root(index)
        if text == ROOT:
            self._traffic.make_root(index, DEFAULT_MINOR)
        elif text not in (ABSENT, HTB):
            self._traffic.make_plain_root(index, text)

    def _write_cgroup_filters(self, index: int, text: str) -> None:
        for prio in self._traffic.cgroup_filters(index):
            self._traffic.remove_filters(index, prio)
        for prio, handle in CGROUP_FILTERS.items() if text == ON else ():
            self._traffic.add_cgroup_filter(index, prio, handle)

    def _write_sources(self, index: int, wanted: dict[str, int]) -> None:
        """Only what differs."""
        given = self._traffic.source_filters(index, SOURCE_PRIO)
        if not wanted and given:
            self._traffic.remove_filters(index, SOURCE_PRIO)
            return
        for address, (minor, handle) in given.items():
            if wanted.get(address) != minor:
                self._traffic.remove_source_filter(index, SOURCE_PRIO, handle)
        for address, minor in wanted.items():
            if given.get(address, (None, 0))[0] != minor:
                self._traffic.add_source_filter(index, SOURCE_PRIO, address, minor)


def _place(setting: Setting) -> tuple[str, int]:
    """(interface, minor); class 1:1 for the total."""
    interface, _, handle = setting.device.partition(" ")
    return interface, int(handle.partition(":")[2] or "1", 16)


def _class(setting: Setting, text: str) -> HtbClass:
    found = _CLASS.fullmatch(text)
    if found is None:
        raise InvalidValue(setting.label, text, "expected prio <0-7> rate <bit/s> ceil <bit/s>")
    prio, rate, ceil = map(int, found.groups())
    if rate % 8 or ceil % 8:
        raise InvalidValue(setting.label, text, "rates are whole bytes a second")
    return HtbClass(rate, ceil, prio)


def _sources(setting: Setting, text: str) -> dict[str, int]:
    found = {}
    for word in text.split():
        match = _SOURCE.fullmatch(word)
        try:
            if match is None:
                raise AddressValueError(f"{word!r} is not <address>=1:<minor>")
            found[str(IPv4Address(match[1]))] = int(match[2], 16)
        except AddressValueError as error:
            raise InvalidValue(setting.label, text, str(error)) from error
    return found


def _sources_text(sources: dict[str, int]) -> str:
    return " ".join(f"{address}=1:{minor:x}" for address, minor in sorted(sources.items()))

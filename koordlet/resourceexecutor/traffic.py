"""Traffic control of an interface as settings (spec 03 §4.12); rates are bits per second.

tc.qdisc[eth0]       "htb 1: default 2"            the root; another one is replaced, and restored from its kind
tc.total[eth0]       "prio 0 rate 8000 ceil 8000"  class 1:1
tc.class[eth0 1:3]   "prio 2 rate 800 ceil 8000"   a class below it; the minor is hexadecimal, as everywhere in tc
tc.cgroup[eth0]      "on"                          the three filters that use a task's net_cls.classid
tc.sources[eth0]     "10.0.0.1=1:3 10.0.0.2=1:4"   classes by source address
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cached_property
from ipaddress import AddressValueError, IPv4Address

from koordlet.resourceexecutor.settings import Setting, Value
from koordlet.resourceexecutor.stores import ABSENT, SettingStore
from koordlet.system.errors import InvalidValue, KernelFileError
from koordlet.system.network.netlink import Netlink
from koordlet.system.network.tc import HTB, MAJOR, HtbClass, Traffic
from koordlet.system.write import write_error

QDISC = "tc.qdisc"
TOTAL = "tc.total"
CLASS = "tc.class"
BY_CGROUP = "tc.cgroup"
SOURCES = "tc.sources"
DEFAULT_MINOR = 2
ROOT = f"htb 1: default {DEFAULT_MINOR}"
ON = "on"
CGROUP_FILTERS = {1: 2, 2: 3, 3: 4}
"""Priority -> handle."""
SOURCE_PRIO = 4
_CLASS = re.compile(r"prio ([0-7]) rate ([1-9][0-9]*) ceil ([1-9][0-9]*)")
_SOURCE = re.compile(r"([0-9.]+)=1:([0-9a-f]{1,4})")


def class_text(parameters: HtbClass) -> str:
    """The value of a class setting."""
    return f"prio {parameters.prio} rate {parameters.rate} ceil {parameters.ceil}"


class TrafficStore(SettingStore):
    """`link` opens a socket in the network namespace of the interfaces, at first use."""

    resources = (QDISC, TOTAL, CLASS, BY_CGROUP, SOURCES)

    def __init__(self, link: Callable[[], Netlink] = Netlink) -> None:
        self._open = link

    @cached_property
    def _traffic(self) -> Traffic:
        return Traffic(self._open())

    def check(self, setting: Setting, value: Value) -> Value:
        """Checks the form; the kernel checks the meaning."""
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
        """None while the interface, or koordlet's root on it, does not exist."""
        interface, minor = _place(setting)
        try:
            index = self._traffic.index(interface)
            if index is None:
                return None
            if setting.resource == QDISC:
                return self._root(index)
            if setting.resource in (TOTAL, CLASS):
                parameters = self._traffic.htb_class(index, minor)
                if parameters is not None:
                    return class_text(parameters)
            if self._root(index) != ROOT:
                return None
            if setting.resource == BY_CGROUP:
                return ON if self._traffic.cgroup_filters(index) == CGROUP_FILTERS else ABSENT
            if setting.resource == SOURCES:
                filters = self._traffic.source_filters(index, SOURCE_PRIO)
                return _sources_text({address: number for address, (number, _) in filters.items()})
            return ABSENT
        except OSError as error:
            raise KernelFileError(setting.label, f"{setting.label}: {error.strerror}") from error

    def gone(self, setting: Setting) -> bool:
        """Whether the interface, or koordlet's root on it, does not exist."""
        try:
            return self.read(setting) is None
        except KernelFileError:  # unreadable is not gone
            return False

    def write(self, setting: Setting, value: Value) -> None:
        """Raises WriteError."""
        text = str(value)
        interface, minor = _place(setting)
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
        """The classes of another HTB cannot be created again, so it is restored as the kernel's default root."""
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

    def _write_sources(self, index: int, desired: dict[str, int]) -> None:
        """Writes only the differences."""
        current = self._traffic.source_filters(index, SOURCE_PRIO)
        if not desired and current:
            self._traffic.remove_filters(index, SOURCE_PRIO)
            return
        for address, (minor, handle) in current.items():
            if desired.get(address) != minor:
                self._traffic.remove_source_filter(index, SOURCE_PRIO, handle)
        for address, minor in desired.items():
            if current.get(address, (None, 0))[0] != minor:
                self._traffic.add_source_filter(index, SOURCE_PRIO, address, minor)


def _place(setting: Setting) -> tuple[str, int]:
    """(interface, minor); class 1:1 for the total."""
    interface, _, handle = setting.device.partition(" ")
    return interface, int(handle.partition(":")[2] or "1", 16)


def _class(setting: Setting, text: str) -> HtbClass:
    match = _CLASS.fullmatch(text)
    if match is None:
        raise InvalidValue(setting.label, text, "expected prio <0-7> rate <bit/s> ceil <bit/s>")
    prio, rate, ceil = map(int, match.groups())
    if rate % 8 or ceil % 8:
        raise InvalidValue(setting.label, text, "rates must be whole bytes per second")
    return HtbClass(rate, ceil, prio)


def _sources(setting: Setting, text: str) -> dict[str, int]:
    classes = {}
    for word in text.split():
        match = _SOURCE.fullmatch(word)
        try:
            if match is None:
                raise AddressValueError(f"{word!r} is not <address>=1:<minor>")
            classes[str(IPv4Address(match[1]))] = int(match[2], 16)
        except AddressValueError as error:
            raise InvalidValue(setting.label, text, str(error)) from error
    return classes


def _sources_text(sources: dict[str, int]) -> str:
    return " ".join(f"{address}=1:{minor:x}" for address, minor in sorted(sources.items()))

"""Address sets and the packet rules that read them, as settings (spec 03 §4.12).

    ipset[be_class]      "hash:ip 10.0.0.1 10.0.0.2"
    iptables[be_class]   "1:4"     mangle/POSTROUTING: who is in the set by source goes to that class

Sets go through netlink; rules through the `iptables` of the host, because it alone knows which of the two packet
filters the host uses. A call takes some two milliseconds and is made when rules are looked at: once a minute.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from ipaddress import AddressValueError, IPv4Address

from koordlet.resourceexecutor.settings import Setting, Value
from koordlet.resourceexecutor.stores import ABSENT
from koordlet.system.errors import InvalidValue, KernelFileError
from koordlet.system.network.ipset import TYPE, IPSets
from koordlet.system.network.netlink import NETFILTER, Netlink
from koordlet.system.write import WriteError, write_error

SET, RULE = "ipset", "iptables"
COMMAND = ("iptables", "-w", "2", "-t", "mangle")
SECONDS, FRESH_SECONDS = 5.0, 1.0
"""How long a command may take, and how long its answer counts."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,31}")
_CLASS = re.compile(r"1:([0-9a-f]{1,4})")
_SHOWN = re.compile(r"-A POSTROUTING -m set --match-set (\S+) src -j CLASSIFY --set-class 0*1:0*([0-9a-fA-F]+)")


class RuleError(Exception):
    """iptables said no; the message is its own."""


class AddressStore:
    """`link` opens a socket in the namespace of the sets when it is first needed; `prefix` leads commands there."""

    resources = (SET, RULE)

    def __init__(self, link: Callable[[], Netlink] = lambda: Netlink(NETFILTER), prefix: Sequence[str] = ()) -> None:
        self._open, self._prefix = link, tuple(prefix)
        self._known: dict[str, str] = {}
        self._asked = float("-inf")

    @cached_property
    def _sets(self) -> IPSets:
        return IPSets(self._open())

    def probe(self) -> str:
        """Why addresses can't be matched this way here; empty when they can."""
        try:
            link = self._open()
            try:
                missing = IPSets(link).probe()
            finally:
                link.close()
            if not missing:
                self._run("-S", "POSTROUTING")
        except (OSError, RuleError) as error:
            return str(error)
        return missing

    def check(self, setting: Setting, value: Value) -> Value:
        """Addresses in order."""
        text = str(value)
        if not _NAME.fullmatch(setting.device):
            raise InvalidValue(setting.label, text, "not a set's name")
        if setting.resource == RULE:
            if text != ABSENT and not _CLASS.fullmatch(text):
                raise InvalidValue(setting.label, text, "expected 1:<minor>")
            return text
        kind, *addresses = text.split() or [TYPE]
        if kind != TYPE:
            raise InvalidValue(setting.label, text, f"expected {TYPE} and addresses")
        try:
            return _text({str(IPv4Address(address)) for address in addresses}) if text else ABSENT
        except AddressValueError as error:
            raise InvalidValue(setting.label, text, str(error)) from error

    def read(self, setting: Setting) -> Value | None:
        """Never None: sets and rules need no place."""
        try:
            if setting.resource == RULE:
                return self._rules().get(setting.device, ABSENT)
            members = self._sets.members(setting.device)
        except (OSError, RuleError) as error:
            raise KernelFileError(setting.label, f"{setting.label}: {error}") from error
        return ABSENT if members is None else _text(members)

    def write(self, setting: Setting, value: Value) -> None:
        """Only what differs."""
        text, name = str(value), setting.device
        try:
            if setting.resource == RULE:
                self._write_rule(name, text)
            else:
                self._write_set(name, text)
        except OSError as error:
            raise write_error(setting.label, text, error.errno or 5, error.strerror or "") from error
        except RuleError as error:
            raise WriteError(setting.label, text, 5, str(error)) from error

    def gone(self, setting: Setting) -> bool:
        """Never."""
        return False

    def holds(self, setting: Setting, asked: Value) -> bool | None:
        """Values can be compared."""
        return None

    def period(self, setting: Setting) -> float | None:
        """As everything."""
        return None

    def _write_set(self, name: str, text: str) -> None:
        members = self._sets.members(name)
        if text == ABSENT:
            self._sets.destroy(name)
            return
        if members is None:
            self._sets.create(name)
        wanted, given = set(text.split()[1:]), members or set()
        self._sets.remove(name, sorted(given - wanted))
        self._sets.add(name, sorted(wanted - given))

    def _write_rule(self, name: str, text: str) -> None:
        rules = self._rules()
        given = rules.pop(name, None)
        if given is not None:
            self._run("-D", *_rule(name, given))
        if text != ABSENT:
            self._run("-A", *_rule(name, text))
            rules[name] = text

    def _rules(self) -> dict[str, str]:
        """Set -> class. Asked once for all rules of a pass; what is written is known without asking."""
        now = time.monotonic()
        if now >= self._asked + FRESH_SECONDS:
            told = _SHOWN.findall(self._run("-S", "POSTROUTING"))
            self._known, self._asked = {name: f"1:{minor.lower()}" for name, minor in told}, now
        return self._known

    def _run(self, *arguments: str) -> str:
        command = [*self._prefix, *COMMAND, *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
        except subprocess.TimeoutExpired as error:
            raise RuleError(f"{' '.join(command)}: no answer in {SECONDS:g} s") from error
        if done.returncode != 0:
            self._asked = float("-inf")
            raise RuleError(f"{' '.join(command)}: {done.stderr.strip() or f'exit {done.returncode}'}")
        return done.stdout


def _rule(name: str, target: str) -> tuple[str, ...]:
    return ("POSTROUTING", "-m", "set", "--match-set", name, "src", "-j", "CLASSIFY", "--set-class", target)


def _text(addresses: set[str]) -> str:
    return " ".join((TYPE, *sorted(addresses)))

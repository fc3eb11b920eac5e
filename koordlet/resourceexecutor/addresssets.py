"""Address sets and the packet rules that use them, as settings (spec 03 §4.12).

    ipset[be_class]      "hash:ip 10.0.0.1 10.0.0.2"
    iptables[be_class]   "1:4"     mangle/POSTROUTING: packets whose source is in the set go to that class

Sets are changed through netlink, rules through the `iptables` command of the host, because only the command knows which
of the two packet filters the host uses. A call takes about 2 ms; rules are listed when they are checked, once a minute.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from ipaddress import AddressValueError, IPv4Address

from koordlet.resourceexecutor.settings import Setting, Value
from koordlet.resourceexecutor.stores import ABSENT, SettingStore
from koordlet.system.errors import InvalidValue, KernelFileError
from koordlet.system.network.ipset import TYPE, IPSets
from koordlet.system.network.netlink import NETFILTER, Netlink
from koordlet.system.write import WriteError, write_error

SET = "ipset"
RULE = "iptables"
COMMAND = ("iptables", "-w", "2", "-t", "mangle")
COMMAND_TIMEOUT_S = 5.0
RULES_TTL_S = 1.0
"""How long the list of rules is used again."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,31}")
_CLASS = re.compile(r"1:([0-9a-f]{1,4})")
_SHOWN = re.compile(r"-A POSTROUTING -m set --match-set (\S+) src -j CLASSIFY --set-class 0*1:0*([0-9a-fA-F]+)")


class RuleError(Exception):
    """The iptables command failed; the message is its own."""


class AddressStore(SettingStore):
    """`link` opens a socket in the network namespace of the sets, at first use; `prefix` of a command runs it there."""

    resources = (SET, RULE)

    def __init__(self, link: Callable[[], Netlink] = lambda: Netlink(NETFILTER), prefix: Sequence[str] = ()) -> None:
        self._open = link
        self._prefix = tuple(prefix)
        self._known: dict[str, str] = {}
        self._listed_at = float("-inf")

    @cached_property
    def _sets(self) -> IPSets:
        return IPSets(self._open())

    def probe(self) -> str:
        """Why this host cannot match addresses this way; empty when it can."""
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
        """Addresses are sorted."""
        text = str(value)
        if not _NAME.fullmatch(setting.device):
            raise InvalidValue(setting.label, text, "not the name of a set")
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
        """Never None: sets and rules can always be created."""
        try:
            if setting.resource == RULE:
                return self._rules().get(setting.device, ABSENT)
            members = self._sets.members(setting.device)
        except (OSError, RuleError) as error:
            raise KernelFileError(setting.label, f"{setting.label}: {error}") from error
        return ABSENT if members is None else _text(members)

    def write(self, setting: Setting, value: Value) -> None:
        """Writes only the differences."""
        text = str(value)
        name = setting.device
        try:
            if setting.resource == RULE:
                self._write_rule(name, text)
            else:
                self._write_set(name, text)
        except OSError as error:
            raise write_error(setting.label, text, error.errno or 5, error.strerror or "") from error
        except RuleError as error:
            raise WriteError(setting.label, text, 5, str(error)) from error

    def _write_set(self, name: str, text: str) -> None:
        members = self._sets.members(name)
        if text == ABSENT:
            self._sets.destroy(name)
            return
        if members is None:
            self._sets.create(name)
        desired = set(text.split()[1:])
        current = members or set()
        self._sets.remove(name, sorted(current - desired))
        self._sets.add(name, sorted(desired - current))

    def _write_rule(self, name: str, text: str) -> None:
        rules = self._rules()
        current = rules.pop(name, None)
        if current is not None:
            self._run("-D", *_rule(name, current))
        if text != ABSENT:
            self._run("-A", *_rule(name, text))
            rules[name] = text

    def _rules(self) -> dict[str, str]:
        """Set -> class. Listed once for all rules of a pass; rules that are written are known without listing."""
        now = time.monotonic()
        if now >= self._listed_at + RULES_TTL_S:
            rules = _SHOWN.findall(self._run("-S", "POSTROUTING"))
            self._known = {name: f"1:{minor.lower()}" for name, minor in rules}
            self._listed_at = now
        return self._known

    def _run(self, *arguments: str) -> str:
        command = [*self._prefix, *COMMAND, *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired as error:
            raise RuleError(f"{' '.join(command)}: no answer within {COMMAND_TIMEOUT_S:g} s") from error
        if done.returncode != 0:
            self._listed_at = float("-inf")
            raise RuleError(f"{' '.join(command)}: {done.stderr.strip() or f'exit {done.returncode}'}")
        return done.stdout


def _rule(name: str, target: str) -> tuple[str, ...]:
    return ("POSTROUTING", "-m", "set", "--match-set", name, "src", "-j", "CLASSIFY", "--set-class", target)


def _text(addresses: set[str]) -> str:
    return " ".join((TYPE, *sorted(addresses)))

"""Network bandwidth on the real kernel: two network namespaces that the test creates, a veth pair, real HTB. The
settings are compared with the output of `tc`, `ipset` and `iptables`."""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyroute2 import IPRoute

from koordlet.prometheus import Registries
from koordlet.resourceexecutor.addresssets import AddressStore
from koordlet.resourceexecutor.executor import Executor
from koordlet.resourceexecutor.kernelfiles import KernelFiles
from koordlet.resourceexecutor.settings import DesiredSetting, Setting
from koordlet.resourceexecutor.traffic import BY_CGROUP, QDISC, ROOT, SOURCES, TrafficStore
from koordlet.runtimehooks.hooks.netqos import NetQoS
from koordlet.system.errors import InvalidValue
from koordlet.system.network.netlink import NETFILTER, Netlink
from tests.koordlet.qosmanager.conftest import make_pod, make_view
from tests.koordlet.resourceexecutor.conftest import Recorder, ledger_at

pytestmark = pytest.mark.kernel

CLONE_NEWNET = 0x40000000
MB = 1_000_000
LIMIT = 8 * MB
"""Limit of best effort in the transfer in bit/s: one million bytes per second."""
ADDRESSES = {"ls": "10.9.0.4", "be": "10.9.0.5", "own": "10.9.0.6"}
CLASS = re.compile(r"class htb (\S+) (root|parent \S+) (?:leaf \S+ )?(?:prio (\d+) )?rate (\S+) ceil (\S+)")
_serial = itertools.count()
_libc = ctypes.CDLL(None, use_errno=True)

RECEIVER = """
import socket, sys, time
server = socket.create_server(("10.9.0.2", 7000))
print("listening", flush=True)
peer, _ = server.accept()
got = 0
while data := peer.recv(1 << 16):
    got += len(data)
print(got, time.monotonic(), flush=True)
"""
SENDER = """
import socket, sys, time
peer = socket.create_connection(("10.9.0.2", 7000), source_address=(sys.argv[1], 0))
peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
print(time.monotonic(), flush=True)
peer.sendall(b"x" * int(sys.argv[2]))
peer.close()
"""


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@dataclass(frozen=True)
class Space:
    """The namespace of the node; `other` is the remote end of the veth pair."""

    name: str
    other: str

    def inside(self, *command: str) -> str:
        return run("ip", "netns", "exec", self.name, *command)

    def socket(self, family: int = 0) -> Netlink:
        """Created in the namespace; it stays there."""
        own, there = os.open("/proc/self/ns/net", os.O_RDONLY), os.open(f"/run/netns/{self.name}", os.O_RDONLY)
        try:
            assert _libc.setns(there, CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
            try:
                return Netlink(family)
            finally:
                assert _libc.setns(own, CLONE_NEWNET) == 0
        finally:
            os.close(own)
            os.close(there)

    def configuration(self) -> dict[str, Any]:
        """Everything that a test may change, from the output of the tools."""
        return {
            "qdisc": json.loads(self.inside("tc", "-j", "qdisc", "show", "dev", "up0")),
            "classes": self.classes(),
            "filters": self.inside("tc", "filter", "show", "dev", "up0"),
            "sets": self.inside("ipset", "list", "-name"),
            "rules": self.inside("iptables", "-t", "mangle", "-S", "POSTROUTING"),
        }

    def sent(self, handle: str) -> int:
        """Byte counter of a class."""
        figures = self.inside("tc", "-s", "class", "show", "dev", "up0", "classid", handle)
        return int(figures.split("Sent ")[1].split()[0])

    def classes(self) -> dict[str, tuple[str, int, int, int]]:
        """Handle -> parent, rate, ceil (bit/s), prio."""
        state = CLASS.findall(self.inside("tc", "class", "show", "dev", "up0"))
        return {
            handle: (parent.removeprefix("parent "), bits(rate), bits(ceil), int(prio or 0))
            for handle, parent, prio, rate, ceil in state
        }


def bits(text: str) -> int:
    """A rate in the format of tc."""
    number = text.rstrip("GMKbit")
    return int(number) * {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}[text[len(number) :].removesuffix("bit")]


@pytest.fixture
def space() -> Iterator[Space]:
    stem = f"koord-test-{os.getpid()}-{next(_serial)}"
    namespace = Space(f"{stem}-a", f"{stem}-b")
    for name in (namespace.name, namespace.other):
        run("ip", "netns", "add", name)
    try:
        run(
            "ip",
            "-n",
            namespace.name,
            "link",
            "add",
            "up0",
            "type",
            "veth",
            "peer",
            "name",
            "up1",
            "netns",
            namespace.other,
        )
        for name, interface, addresses in (
            (namespace.name, "up0", ["10.9.0.1", *ADDRESSES.values()]), (namespace.other, "up1", ["10.9.0.2"])
        ):  # fmt: skip
            for address in addresses:
                run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", interface)
            run("ip", "-n", name, "link", "set", interface, "up")
        yield namespace
    finally:
        for name in (namespace.name, namespace.other):
            run("ip", "netns", "del", name)


@dataclass
class Bench:
    space: Space
    ledger: Path
    stores: tuple[TrafficStore, AddressStore]

    def executor(self) -> Executor:
        """As after kill -9 if an executor existed before."""
        files = KernelFiles(None, None, self.stores)  # type: ignore[arg-type]
        return Executor(files, ledger_at(self.ledger), Recorder(), Registries())


@pytest.fixture
def bench(space: Space, tmp_path: Path) -> Iterator[Bench]:
    links: list[Netlink] = []

    def link(family: int) -> Callable[[], Netlink]:
        def make() -> Netlink:
            links.append(space.socket(family))
            return links[-1]

        return make

    inside = ("ip", "netns", "exec", space.name)
    yield Bench(space, tmp_path / "ledger.json", (TrafficStore(link(0)), AddressStore(link(NETFILTER), inside)))
    for interface in links:
        interface.close()


def pods() -> tuple[Any, ...]:
    spaces = []
    for name, address in ADDRESSES.items():
        qos = "LS" if name == "ls" else "BE"
        annotations = {"koordinator.sh/networkQOS": '{"egressLimit":"4M"}'} if name == "own" else {}
        pod = make_pod(name, qos=qos, annotations=annotations)
        assert pod.meta.pod is not None
        pod.meta.pod.status.pod_ip = address
        spaces.append(pod)
    return tuple(spaces)


def settings_of(
    sets: str = "", interface: str = "up0", some: tuple[Any, ...] | None = None
) -> tuple[DesiredSetting, ...]:
    classes = {
        "lsClass": {"networkQOS": {"enable": True, "egressRequest": "400M", "egressLimit": "900M"}},
        "beClass": {"networkQOS": {"enable": True, "egressRequest": 0, "egressLimit": str(LIMIT)}},
    }
    slo = {"resourceQOSStrategy": classes, "systemStrategy": {"totalNetworkBandwidth": "1G"}}
    decision = NetQoS(lambda: interface, lambda *_: False, sets).decide(
        make_view(slo=slo, pods=pods() if some is None else some)
    )
    assert decision is not None
    return decision.updates


@pytest.mark.parametrize("sets", ["", "no sets"], ids=["sets", "filters"])
def test_the_tools_show_the_settings_and_restoring_removes_them(bench: Bench, sets: str) -> None:
    before = bench.space.configuration()
    executor = bench.executor()
    executor.declare("netqos", settings_of(sets))
    result = executor.apply()
    assert (result.problems, result.waiting) == ({}, [])
    state = bench.space.configuration()
    assert [(q["kind"], q["handle"], q["options"]["default"]) for q in state["qdisc"]] == [("htb", "1:", "0x2")]
    own = next(handle for handle in state["classes"] if int(handle[2:], 16) > 4)
    assert state["classes"] == {
        "1:1": ("root", 1000 * MB, 1000 * MB, 0),
        "1:2": ("1:1", 600 * MB, 1000 * MB, 1),
        "1:3": ("1:1", 400 * MB, 900 * MB, 2),
        "1:4": ("1:1", 8_000, LIMIT, 3),
        own: ("1:1", 4 * MB, 4 * MB, 3),
    }
    flows = {line.split("flowid ")[1].split()[0] for line in state["filters"].splitlines() if "flowid" in line}
    assert flows == ({own} if not sets else {own, "1:3", "1:4"})
    if not sets:
        assert set(state["sets"].split()) == {"system_class", "ls_class", "be_class"}
        assert bench.space.inside("ipset", "list", "be_class").split("Members:")[1].split() == [ADDRESSES["be"]]
        assert state["rules"].count("-j CLASSIFY") == 3
        assert "-A POSTROUTING -m set --match-set be_class src -j CLASSIFY --set-class 0001:0004" in state["rules"]
    assert bench.executor().apply().written, "as after kill -9: no owner desires it any more"
    assert bench.space.configuration() == before


def test_changed_pods_cause_only_their_own_writes(bench: Bench) -> None:
    executor = bench.executor()
    ls, be, own = pods()
    executor.declare("netqos", settings_of(some=(ls, own)))
    executor.apply()
    executor.declare("netqos", settings_of(some=(ls, be)))
    changed = {change.setting.resource for change in executor.apply().written}
    assert changed == {"ipset", "tc.class", SOURCES}
    state = bench.space.configuration()
    assert "flowid" not in state["filters"]
    assert len(state["classes"]) == 4
    assert executor.apply().written == []
    assert executor.restore_everything().problems == {}


@pytest.mark.parametrize("sets", ["", "no sets"], ids=["sets", "filters"])
def test_best_effort_gets_at_most_its_limit(bench: Bench, spawn: Any, sets: str) -> None:
    executor = bench.executor()
    executor.declare("netqos", settings_of(sets))
    assert executor.apply().problems == {}
    took = {name: transfer(bench.space, spawn, ADDRESSES[name], 2 * MB) for name in ("be", "ls")}
    assert took["be"] >= 1.6, "two million bytes at one million a second, what the sockets hold taken off"
    assert bench.space.sent("1:4") >= 2 * MB
    assert bench.space.sent("1:3") >= 2 * MB
    assert bench.space.sent("1:2") < MB, "answers to ARP and the like"
    assert executor.restore_everything().problems == {}


def transfer(space: Space, spawn: Any, source: str, count: int) -> float:
    """Seconds from before the first byte is sent to the arrival of the last one; any stall makes it longer."""
    receiver = spawn(["ip", "netns", "exec", space.other, sys.executable, "-S", "-c", RECEIVER])
    assert receiver.stdout.readline() == "listening\n"
    sender = spawn(["ip", "netns", "exec", space.name, sys.executable, "-S", "-c", SENDER, source, str(count)])
    begin = float(sender.stdout.readline())
    received, end = receiver.stdout.readline().split()
    receiver.wait(timeout=120)
    assert int(received) == count
    return float(end) - begin


def test_a_foreign_root_qdisc_is_replaced_and_restored(bench: Bench) -> None:
    bench.space.inside("tc", "qdisc", "add", "dev", "up0", "root", "handle", "20:", "pfifo")
    executor = bench.executor()
    executor.declare("netqos", settings_of())
    assert executor.apply().problems == {}
    assert bench.space.configuration()["qdisc"][0]["kind"] == "htb"
    assert executor.restore_everything().problems == {}
    assert [qdisc["kind"] for qdisc in bench.space.configuration()["qdisc"]] == ["pfifo"]


def test_a_foreign_htb_is_replaced(bench: Bench) -> None:
    bench.space.inside("tc", "qdisc", "add", "dev", "up0", "root", "handle", "1:", "htb", "default", "7")
    executor = bench.executor()
    executor.declare("netqos", settings_of())
    assert executor.apply().problems == {}
    assert bench.space.configuration()["qdisc"][0]["options"]["default"] == "0x2"
    assert executor.restore_everything().problems == {}
    assert bench.space.configuration()["classes"] == {}


def test_the_settings_of_a_removed_interface_are_dropped(bench: Bench) -> None:
    executor = bench.executor()
    executor.declare("netqos", settings_of())
    executor.apply()
    bench.space.inside("ip", "link", "del", "up0")
    assert executor.restore_everything().problems == {}
    assert bench.space.inside("ipset", "list", "-name") == ""


def test_settings_wait_for_an_interface_that_does_not_exist_yet(bench: Bench) -> None:
    executor = bench.executor()
    executor.declare("netqos", settings_of(interface="later0", some=()))
    result = executor.apply()
    assert {setting.device.split()[0] for setting in result.waiting} == {"later0"}
    bench.space.inside("ip", "link", "add", "later0", "type", "veth")
    assert executor.apply().waiting == []
    assert executor.restore_everything().problems == {}


def test_filters_by_task_on_kernels_that_support_them(bench: Bench) -> None:
    """On other kernels they are a problem that affects no other setting."""
    executor = bench.executor()
    by_task = Setting(BY_CGROUP, device="up0")
    executor.declare("netqos", [*settings_of(), DesiredSetting(by_task, "on", neutral="")])
    result = executor.apply()
    assert set(result.problems) <= {by_task}
    there = re.findall(r"pref (\d) cgroup chain 0 handle 0x(\d)", bench.space.configuration()["filters"])
    assert there == ([] if result.problems else [("1", "2"), ("2", "3"), ("3", "4")])
    assert bench.stores[0].read(by_task) == ("" if result.problems else "on")
    assert executor.restore_everything().problems == {}
    assert bench.space.configuration()["filters"] == ""


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        (Setting(QDISC, device="up0"), "fq"),
        (Setting("tc.class", device="up0 1:2"), "prio 1 rate 0 ceil 8"),
        (Setting("tc.class", device="up0 1:2"), "prio 1 rate 9 ceil 16"),
        (Setting("tc.class", device="up0 1:2"), "fast"),
        (Setting(SOURCES, device="up0"), "10.0.0.300=1:2"),
        (Setting(SOURCES, device="up0"), "10.0.0.3"),
        (Setting("ipset", device="be_class"), "hash:ip fd00::1"),
        (Setting("ipset", device="be class"), "hash:ip"),
        (Setting("iptables", device="be_class"), "2:1"),
    ],
)
def test_invalid_settings_are_refused_without_a_write(bench: Bench, setting: Setting, value: str) -> None:
    store = next(store for store in bench.stores if setting.resource in store.resources)
    with pytest.raises(InvalidValue):
        store.check(setting, value)


def test_rates_above_32_bits(bench: Bench) -> None:
    executor, place = bench.executor(), Setting("tc.total", device="up0")
    executor.declare(
        "x",
        [
            DesiredSetting(Setting(QDISC, device="up0"), ROOT),
            DesiredSetting(place, f"prio 0 rate {80_000 * MB} ceil {96_000 * MB}"),
        ],
    )
    assert executor.apply().problems == {}
    assert bench.space.classes() == {"1:1": ("root", 80_000 * MB, 96_000 * MB, 0)}
    assert executor.restore_everything().problems == {}


def test_this_kernel_supports_matching_addresses_by_sets(bench: Bench) -> None:
    assert bench.stores[1].probe() == ""


def test_pyroute2_reads_the_same_values(bench: Bench) -> None:
    """pyroute2's decoding of qdiscs and classes compared with koordlet's."""
    executor = bench.executor()
    executor.declare("netqos", settings_of(some=()))
    assert executor.apply().problems == {}
    with IPRoute(netns=bench.space.name) as other:
        index = other.link_lookup(ifname="up0")[0]
        kinds = {q.get_attr("TCA_KIND") for q in other.get_qdiscs(index)}
        parameters = {
            traffic_class["handle"] & 0xFFFF: traffic_class.get_attr("TCA_OPTIONS").get_attr("TCA_HTB_PARMS")
            for traffic_class in other.get_classes(index)
        }
    assert kinds == {"htb"}
    for minor in (2, 3, 4):
        place = Setting("tc.class", device=f"up0 1:{minor}")
        figures = parameters[minor]
        assert (
            bench.stores[0].read(place)
            == f"prio {figures['prio']} rate {figures['rate'] * 8} ceil {figures['ceil'] * 8}"
        )
        assert min(figures["buffer"], figures["cbuffer"]) >= 200
    assert executor.restore_everything().problems == {}

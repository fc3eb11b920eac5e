"""Which devices are looked for and reported is what the gates say, each alone."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from koordlet.app.flags import read
from koordlet.metriccache.facts import FACT_GPU, FACT_GPU_DRIVER, FACT_RDMA, FACT_XPU, GpuInfo
from koordlet.metricsadvisor.conditions import CollectorConditions
from koordlet.options import KoordletOptions
from koordlet.statesinformer.devices.status import Inventory
from koordlet.statesinformer.pods.model import Workloads
from koordlet.wiring import context as wiring
from koordlet.wiring.context import MIN_FACT_LIFETIME_S, WiringContext
from koordlet.wiring.deviceminors import device_minors
from koordlet.wiring.devices import collect, inventory
from koordlet.wiring.podresources import accelerators


def context(*flags: str, **gates: bool) -> WiringContext:
    named = ",".join(f"{name}={str(on).lower()}" for name, on in gates.items())
    return WiringContext(read(KoordletOptions, ["--node-name=n1", f"--feature-gates={named}", *flags]))


def store_devices(wiring: WiringContext, at: float) -> None:
    """Store what collectors would have stored; strings stand for devices."""
    for key, value in ((FACT_XPU, ("x",)), (FACT_GPU, ("g",)), (FACT_GPU_DRIVER, "550"), (FACT_RDMA, ("r",))):
        wiring.cache.facts.set(key, value, at)


def names_of(devices: Sequence[object] | None) -> tuple[str, ...] | None:
    """The strings that stand for the devices."""
    return None if devices is None else tuple(str(device) for device in devices)


GATES = {
    "none": ({}, (), ()),
    "accelerators": ({"Accelerators": True}, ("x",), ()),
    "nics": ({"RDMADevices": True}, (), ("r",)),
    "both": ({"Accelerators": True, "RDMADevices": True}, ("x",), ("r",)),
}


@pytest.mark.parametrize(("gates", "xpus", "rdma"), GATES.values(), ids=GATES)
def test_what_a_gate_has_switched_off_is_not_there(
    monkeypatch: pytest.MonkeyPatch, gates: dict[str, bool], xpus: tuple[str, ...], rdma: tuple[str, ...]
) -> None:
    monkeypatch.setattr(wiring, "boot_clock", lambda: 1000.0)
    wired = context(**gates)
    store_devices(wired, 1000.0)
    assert names_of(inventory(wired).xpus) == xpus
    assert names_of(inventory(wired).rdma) == rdma
    assert names_of(inventory(wired).gpus) == (("g",) if "Accelerators" in gates else ())


MINORS = {
    "no gate": ({}, [], [], (None, None)),
    "accelerators": ({"Accelerators": True}, [4], [], ({4}, None)),
    "none of a kind": ({"Accelerators": True, "RDMADevices": True}, [], [], (set(), set())),
    "no figures": ({"Accelerators": True, "RDMADevices": True}, None, None, (None, None)),
    "nics": ({"RDMADevices": True}, [4], [1], (None, {1})),
}


@pytest.mark.parametrize(("gates", "gpus", "nics", "expected"), MINORS.values(), ids=MINORS)
def test_the_devices_of_the_node(
    monkeypatch: pytest.MonkeyPatch, gates: dict[str, bool], gpus: Any, nics: Any, expected: Any
) -> None:
    monkeypatch.setattr(wiring, "boot_clock", lambda: 1000.0)
    wired = context(**gates)
    if gpus is not None:
        wired.cache.facts.set(FACT_XPU, (), 1000.0)
        wired.cache.facts.set(FACT_GPU, tuple(GpuInfo(minor, "u", 1) for minor in gpus), 1000.0)
    if nics is not None:
        wired.cache.facts.set(FACT_RDMA, tuple(SimpleNamespace(minor=minor) for minor in nics), 1000.0)
    assert (device_minors(wired, "gpu"), device_minors(wired, "rdma")) == expected
    assert device_minors(wired, "fpga") is None


def test_nvml_is_not_opened_if_only_files_are_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wiring, "boot_clock", lambda: 1000.0)
    wired = context("--xpu-enforce-collect-from-device-infos", Accelerators=True)
    store_devices(wired, 1000.0)
    assert names_of(inventory(wired).xpus) == ("x",)
    assert names_of(inventory(wired).gpus) == ()


def test_stale_facts_are_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(wiring, "boot_clock", lambda: now)
    wired = context(Accelerators=True, RDMADevices=True)
    assert inventory(wired) == Inventory(None, None, None)
    store_devices(wired, now)
    now += MIN_FACT_LIFETIME_S
    assert inventory(wired) == Inventory(("x",), ("g",), ("r",), "550")  # type: ignore[arg-type]
    now += 1
    assert inventory(wired) == Inventory(None, None, None)


@pytest.mark.parametrize(
    ("flags", "gpus", "xpus"),
    [
        pytest.param(["--feature-gates=Accelerators=true"], ("g",), ("x",), id="both"),
        pytest.param(["--feature-gates=PodResourcesProxy=true"], (), (), id="gate off"),
        pytest.param(
            ["--feature-gates=Accelerators=true", "--xpu-enforce-collect-from-device-infos"],
            (),
            ("x",),
            id="files alone",
        ),
    ],
)
def test_the_pod_resources_proxy_knows_those_of_the_device(
    monkeypatch: pytest.MonkeyPatch, flags: list[str], gpus: tuple[str, ...], xpus: tuple[str, ...]
) -> None:
    now = 1000.0
    monkeypatch.setattr(wiring, "boot_clock", lambda: now)
    wired = WiringContext(read(KoordletOptions, ["--node-name=n1", "--collect-res-used-interval=1m", *flags]))
    store_devices(wired, now)
    now += 5 * 60
    assert (names_of(accelerators(wired).gpus), names_of(accelerators(wired).xpus)) == (gpus, xpus)
    now += 1
    assert (names_of(accelerators(wired).gpus), names_of(accelerators(wired).xpus)) == ((), ())


@pytest.mark.parametrize(
    ("gates", "off"), [({}, {"gpu", "xpu", "rdma"}), ({"RDMADevices": True}, {"gpu", "xpu"})]
)  # fmt: skip
def test_a_collector_that_is_switched_off_has_a_condition(gates: dict[str, bool], off: set[str]) -> None:
    wiring = context(**gates)
    conditions = CollectorConditions(wiring.registries)
    collect(wiring, conditions, lambda: Workloads(1, MappingProxyType({}), ()))
    assert {name for name, state in conditions.states.items() if "is off" in state.reason} == off

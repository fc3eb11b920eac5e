"""Feature gates: precedence, stages and refusals."""

import pytest

from koordlet.api.gates import Gate
from koordlet.app.gates import FeatureGates, GateError

KNOWN = {
    "CPUBurst": Gate(True, "beta"),
    "CPIC": Gate(False, "alpha"),
    "Stable": Gate(True, "ga"),
    "Another": Gate(False, "alpha"),
}


@pytest.mark.parametrize(
    ("value", "on"),
    [
        ("", {"CPUBurst", "Stable"}),
        ("CPUBurst=false", {"Stable"}),
        ("AllAlpha=true", {"CPUBurst", "Stable", "CPIC", "Another"}),
        ("CPIC=false,AllAlpha=true", {"CPUBurst", "Stable", "Another"}),
        ("AllAlpha=true,CPIC=false", {"CPUBurst", "Stable", "Another"}),
        ("AllBeta=false, CPIC=1", {"Stable", "CPIC"}),
        ("Stable=true", {"CPUBurst", "Stable"}),
    ],
)
def test_values(value: str, on: set[str]) -> None:
    gates = FeatureGates(KNOWN)
    gates.set(value)
    assert {name for name, enabled in gates.values().items() if enabled} == on
    assert str(gates) == ",".join(sorted(on))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("CPUBurts=true", "unknown feature gate CPUBurts, did you mean CPUBurst"),
        ("CPUBurst", "missing bool value"),
        ("CPUBurst=yes", "invalid value of feature gate CPUBurst"),
        ("Stable=false", "cannot set feature gate Stable to false"),
    ],
)
def test_refusals_apply_nothing(value: str, message: str) -> None:
    gates = FeatureGates(KNOWN)
    before = gates.values()
    with pytest.raises(GateError, match=message):
        gates.set(f"CPIC=true,{value}")
    assert gates.values() == before


def test_repeating_accumulates_and_takes_mappings() -> None:
    gates = FeatureGates(KNOWN)
    gates.set("CPIC=true")
    gates.set({"CPUBurst": False})
    assert gates.enabled("CPIC") and not gates.enabled("CPUBurst")


def test_asking_for_an_unknown_gate_is_an_error() -> None:
    with pytest.raises(GateError, match="unknown"):
        FeatureGates(KNOWN).enabled("Nope")

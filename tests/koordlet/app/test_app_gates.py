"""Feature gates: precedence, stages and refusals."""

import enum
from dataclasses import dataclass

import pytest

from koordlet.app.gates import FeatureGates, Gate, GateError


class Stage(enum.Enum):
    ALPHA = "Alpha"
    BETA = "Beta"


@dataclass(frozen=True)
class EnumGate:
    default: bool
    stage: Stage


KNOWN = {
    "CPUBurst": Gate(True, "beta"),
    "CPIC": Gate(False, "alpha"),
    "Stable": Gate(True, "GA"),
    "WithEnum": EnumGate(False, Stage.ALPHA),
}


@pytest.mark.parametrize(
    ("value", "on"),
    [
        ("", {"CPUBurst", "Stable"}),
        ("CPUBurst=false", {"Stable"}),
        ("AllAlpha=true", {"CPUBurst", "Stable", "CPIC", "WithEnum"}),
        ("CPIC=false,AllAlpha=true", {"CPUBurst", "Stable", "WithEnum"}),
        ("AllAlpha=true,CPIC=false", {"CPUBurst", "Stable", "WithEnum"}),
        ("AllBeta=false, CPIC=1", {"Stable", "CPIC"}),
        ("Stable=true", {"CPUBurst", "Stable"}),
    ],
)
def test_values(value, on):
    gates = FeatureGates(KNOWN)
    gates.set(value)
    assert {name for name, enabled in gates.values().items() if enabled} == on


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("CPUBurts=true", "unknown feature gate CPUBurts, did you mean CPUBurst"),
        ("CPUBurst", "missing bool value"),
        ("CPUBurst=yes", "invalid value of feature gate CPUBurst"),
        ("Stable=false", "cannot set feature gate Stable to false"),
    ],
)
def test_refusals_apply_nothing(value, message):
    gates = FeatureGates(KNOWN)
    before = gates.values()
    with pytest.raises(GateError, match=message):
        gates.set(f"CPIC=true,{value}")
    assert gates.values() == before


def test_repeating_accumulates_and_takes_mappings():
    gates = FeatureGates(KNOWN)
    gates.set("CPIC=true")
    gates.set({"CPUBurst": False})
    assert gates.enabled("CPIC") and not gates.enabled("CPUBurst")


def test_asking_for_an_unknown_gate_is_an_error():
    with pytest.raises(GateError, match="unknown"):
        FeatureGates(KNOWN).enabled("Nope")


def test_help_lines():
    assert "CPUBurst=true|false (BETA - default=true)" in FeatureGates(KNOWN).help_lines()

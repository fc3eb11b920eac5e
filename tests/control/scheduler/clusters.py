"""Random nodes and pods for properties of whole cycles."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from koordlet.api.core import Node, Pod
from tests.control.scheduler.build import node, pod

ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"

apps = st.sampled_from(["web", "db", "job"])
zones = st.sampled_from(["z1", "z2", "z3", None])
effects = st.sampled_from(["NoSchedule", "PreferNoSchedule", "NoExecute"])


@st.composite
def nodes(draw: st.DrawFn, number: int) -> Node:
    labels = {"disk": draw(st.sampled_from(["ssd", "hdd"])), "rank": str(draw(st.integers(0, 3)))}
    zone = draw(zones)
    if zone is not None:
        labels[ZONE] = zone
    taints = draw(st.lists(st.builds(lambda e: {"key": "dedicated", "value": "x", "effect": e}, effects), max_size=1))
    return node(
        f"n{number}",
        cpu=str(draw(st.integers(1, 8))),
        memory=f"{draw(st.integers(1, 16))}Gi",
        pods=draw(st.integers(1, 6)),
        labels=labels,
        taints=taints,
        unschedulable=draw(st.integers(0, 9)) == 5,
    )


def _term(app: str, key: str) -> dict[str, Any]:
    return {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": key}


@st.composite
def specs(draw: st.DrawFn, app: str) -> dict[str, Any]:
    spec: dict[str, Any] = {}
    if draw(st.booleans()):
        spec["tolerations"] = [{"key": "dedicated", "operator": "Exists", "effect": draw(effects)}]
    affinity: dict[str, Any] = {}
    match draw(st.integers(0, 7)):
        case 0:
            spec["nodeSelector"] = {"disk": draw(st.sampled_from(["ssd", "hdd"]))}
        case 1:
            expression = {"key": "rank", "operator": draw(st.sampled_from(["Gt", "Lt"])), "values": ["1"]}
            required = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
            affinity["nodeAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": required}
        case 2:
            preference = {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}
            weighted = [{"weight": draw(st.integers(1, 100)), "preference": preference}]
            affinity["nodeAffinity"] = {"preferredDuringSchedulingIgnoredDuringExecution": weighted}
    key = draw(st.sampled_from([ZONE, HOST]))
    match draw(st.integers(0, 7)):
        case 0:
            affinity["podAntiAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": [_term(draw(apps), key)]}
        case 1:
            affinity["podAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": [_term(draw(apps), key)]}
        case 2:
            weighted_terms = [{"weight": draw(st.integers(1, 100)), "podAffinityTerm": _term(draw(apps), key)}]
            kind = draw(st.sampled_from(["podAffinity", "podAntiAffinity"]))
            affinity[kind] = {"preferredDuringSchedulingIgnoredDuringExecution": weighted_terms}
    if affinity:
        spec["affinity"] = affinity
    if draw(st.integers(0, 3)) == 0:
        spec["topologySpreadConstraints"] = [
            {
                "maxSkew": draw(st.integers(1, 2)),
                "topologyKey": key,
                "whenUnsatisfiable": draw(st.sampled_from(["DoNotSchedule", "ScheduleAnyway"])),
                "labelSelector": {"matchLabels": {"app": app}},
            }
        ]
    return spec


@st.composite
def pods(draw: st.DrawFn) -> Pod:
    app = draw(apps)
    return pod(
        cpu=draw(st.sampled_from([None, "100m", "500m", "1", "3"])),
        memory=draw(st.sampled_from([None, "128Mi", "1Gi", "6Gi"])),
        labels={"app": app},
        spec=draw(specs(app)),
    )

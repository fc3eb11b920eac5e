"""The rights of koord-manager that depend on its feature gates (`control.component.rights`). Data, one pure function.

`deploy/manager` grants what every manager needs. Features that are off by default write workloads and pods of users, so
their rights are granted with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from control.manifestfiles import OptionalRights, purpose, rule
from koordlet.app.gates import FeatureGates

_READ = ["list", "watch"]


@dataclass(frozen=True)
class GatedRights(OptionalRights):
    """`gate`: the feature gate that needs the rights."""

    gate: str


FEATURES: Final = (
    GatedRights(
        "colocation-profile",
        "colocationProfile",
        gate="ColocationProfileController",
        purposes=(purpose("colocationprofile: changes pods that wait for a node", rule("", ["pods"], ["patch"])),),
    ),
    GatedRights(
        "recommender",
        "recommender",
        gate="Recommender",
        purposes=(
            purpose(
                "recommender: who stands above a pod, what is recommended, and pods that are replaced for it",
                rule("apps", ["replicasets"], ["get", *_READ]),
                rule("batch", ["jobs"], ["get", *_READ]),
                rule("analysis.koordinator.sh", ["recommendations"], _READ),
                rule("analysis.koordinator.sh", ["recommendations/status"], ["patch"]),
                rule("", ["pods/eviction"], ["create"]),
            ),
        ),
    ),
    GatedRights(
        "job-queueing",
        "jobQueueing",
        gate="JobQueueing",
        purposes=(
            purpose(
                "queue and queuejobs: jobs that wait for their quota are suspended and resumed",
                rule("scheduling.x-k8s.io", ["queues"], _READ),
                rule("scheduling.x-k8s.io", ["queueunits"], ["get", *_READ, "create", "patch"]),
                rule("scheduling.x-k8s.io", ["queues/status", "queueunits/status"], ["patch"]),
                rule("batch", ["jobs"], [*_READ, "patch"]),
            ),
        ),
    ),
)


def needed(gates: FeatureGates) -> list[GatedRights]:
    """The features whose gates are on."""
    return [each for each in FEATURES if gates.enabled(each.gate)]

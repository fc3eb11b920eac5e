"""Synthetic evidence: containers that lose given fractions of their time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from koordlet.interference.model import Evidence, ResourceEvidence, WaitResource
from koordlet.metricsadvisor.stalls.attribution import CulpritTime
from koordlet.statesinformer.pods.cgroupindex import Owner, owner_of
from koordlet.statesinformer.pods.model import Subject, SubjectKind


def container(name: str, *, qos: str = "LS", pod: str = "") -> Subject:
    pod = pod or name
    return Subject(
        SubjectKind.CONTAINER,
        f"containerd://{name}",
        f"kubepods/{name}",
        name,
        qos=qos,
        pod_uid=f"uid-{pod}",
        pod_name=pod,
        namespace="default",
    )


class Node:
    """The same containers at every step."""

    def __init__(self, *subjects: Subject) -> None:
        self.subjects = subjects

    def evidence(
        self,
        others: Sequence[float],
        own: Sequence[float] | None = None,
        *,
        resource: WaitResource = WaitResource.CPU,
        blames: Mapping[int, Sequence[CulpritTime]] | None = None,
        parts: Mapping[str, Sequence[float]] | None = None,
        source: str = "bpf",
        window: float = 3.0,
    ) -> Evidence:
        measured = ResourceEvidence(
            source=source,
            others=np.array(others, dtype=float),
            own=np.array(own if own is not None else np.zeros(len(others)), dtype=float),
            parts={name: np.array(column, dtype=float) for name, column in (parts or {}).items()},
            culprits=lambda row: (blames or {}).get(row, ()),
            named=blames is not None,
        )
        return Evidence(self.subjects, window, {resource: measured})


def because_of(subject: Subject, seconds: float) -> CulpritTime:
    return CulpritTime(owner_of(subject), seconds, 10)


def because_of_kernel(name: str, seconds: float) -> CulpritTime:
    return CulpritTime(Owner("kernel", name), seconds, 10)


class Make:
    """Helpers that the tests of this folder share."""

    node = Node
    container = staticmethod(container)
    because_of = staticmethod(because_of)
    because_of_kernel = staticmethod(because_of_kernel)


@pytest.fixture(scope="session")
def make() -> type[Make]:
    return Make

"""QoS classes (spec 01 §4.2): from the label, and from the Kubernetes QoS class as the default. Pure.

Callers use either the raw or the defaulted class; the difference is intended. `raw_qos` is for callers that have only
labels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from koordlet.api.core import Pod, pod_qos_class
from koordlet.api.names import LABEL_QOS_CLASS

LSE: Final = "LSE"
LSR: Final = "LSR"
LS: Final = "LS"
BE: Final = "BE"
SYSTEM: Final = "SYSTEM"
NONE: Final = ""

CLASSES: Final = (LSE, LSR, LS, BE, SYSTEM)

_BY_KUBE_QOS: Final[dict[str, str]] = {"Guaranteed": LSR, "Burstable": LS, "BestEffort": BE}


def parse_qos(text: str) -> str:
    """`text` if it is the name of a class (case-sensitive), else `NONE`."""
    return text if text in CLASSES else NONE


def raw_qos(labels: Mapping[str, str]) -> str:
    """The class in the label; `NONE` when it is absent or unknown."""
    return parse_qos(labels.get(LABEL_QOS_CLASS, ""))


def qos_of_kube(kube_qos: str) -> str:
    """The default class for a Kubernetes QoS class; `NONE` for an unknown one."""
    return _BY_KUBE_QOS.get(kube_qos, NONE)


def raw_qos_class(pod: Pod) -> str:
    """`raw_qos` of a pod."""
    return raw_qos(pod.metadata.labels)


def qos_class(pod: Pod) -> str:
    """The pod's class with the default for its Kubernetes QoS class; never `NONE`."""
    return raw_qos(pod.metadata.labels) or qos_of_kube(pod_qos_class(pod))

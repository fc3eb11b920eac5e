"""QoS classes (spec 01 §4.2): the label, and the class that Kubernetes' own QoS implies.

Consumers differ on purpose in whether they use the raw or the defaulted class; their documentation says
which. `raw_qos` and `qos_or_default` are for callers that hold labels only, the rest take a pod.
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
    """`text` if it names a class (case matters), else `NONE`."""
    return text if text in CLASSES else NONE


def raw_qos(labels: Mapping[str, str]) -> str:
    """The class that the label names; `NONE` when it is absent or unknown."""
    return parse_qos(labels.get(LABEL_QOS_CLASS, ""))


def qos_of_kube(kube_qos: str) -> str:
    """The class that stands for a Kubernetes QoS class; `NONE` for an unknown one."""
    return _BY_KUBE_QOS.get(kube_qos, NONE)


def qos_or_default(labels: Mapping[str, str], kube_qos: str) -> str:
    """The raw class, or the one that the Kubernetes QoS class implies."""
    return raw_qos(labels) or qos_of_kube(kube_qos)


def raw_qos_class(pod: Pod) -> str:
    """`raw_qos` of a pod."""
    return raw_qos(pod.metadata.labels)


def qos_class(pod: Pod) -> str:
    """The pod's class with the default from Kubernetes QoS; never `NONE`."""
    return raw_qos(pod.metadata.labels) or qos_of_kube(pod_qos_class(pod))

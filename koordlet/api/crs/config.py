"""ClusterColocationProfile (config.koordinator.sh/v1alpha1): changes that admission applies to pods.

Cluster scoped. Its two selectors match everything when *absent*, unlike all other selectors (spec 01 §3.8).
"""

from typing import Annotated, Any

import msgspec

from koordlet.api.encoding.base import Struct
from koordlet.api.encoding.fields import Int32, doc
from koordlet.api.encoding.wire import IntOrString
from koordlet.api.meta import ApiObject, LabelSelector


class ClusterColocationProfileSpec(Struct):
    """`spec` of a ClusterColocationProfile; members are applied in this order from `labels` on."""

    namespace_selector: Annotated[LabelSelector | None, doc("Namespaces; absent matches everything.")] = None
    selector: Annotated[LabelSelector | None, doc("Pods; absent matches everything.")] = None
    probability: Annotated[
        IntOrString | None, doc("Share of matching pods in percent: a number or N%; absent is 100.")
    ] = None
    labels: Annotated[dict[str, str], doc("Labels to set.")] = {}
    annotations: Annotated[dict[str, str], doc("Annotations to set.")] = {}
    label_keys_mapping: Annotated[
        dict[str, str], doc("Labels to copy: the value of the key goes to the key named by the value.")
    ] = {}
    annotation_keys_mapping: Annotated[
        dict[str, str], doc("Annotations to copy: the value of the key goes to the key named by the value.")
    ] = {}
    label_suffixes: Annotated[dict[str, str], doc("Suffixes for labels that exist.")] = {}
    scheduler_name: Annotated[str, doc("Scheduler to set.")] = ""
    qos_class: Annotated[str, doc("QoS class to set.", enum=("LSE", "LSR", "LS", "BE", "SYSTEM"))] = ""
    priority_class_name: Annotated[str, doc("PriorityClass to set, with its value and preemption policy.")] = ""
    koordinator_priority: Annotated[Int32 | None, doc("Sub-priority label to set.")] = None
    patch: Annotated[dict[str, Any] | None, doc("Strategic merge patch of the pod.", preserve=True)] = None


class ClusterColocationProfileStatus(Struct):
    """Empty."""


class ClusterColocationProfile(ApiObject, api_version="config.koordinator.sh/v1alpha1"):
    """Changes that admission applies to matching pods."""

    spec: Annotated[ClusterColocationProfileSpec, doc("Selectors of pods, and the changes.")] = msgspec.field(
        default_factory=ClusterColocationProfileSpec
    )
    status: Annotated[ClusterColocationProfileStatus, doc("Empty.")] = msgspec.field(
        default_factory=ClusterColocationProfileStatus
    )

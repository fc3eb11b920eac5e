"""What NodeSLO and pods say about network bandwidth, in bits a second (spec 03 §4.12, §4.13). Pure."""

from __future__ import annotations

from dataclasses import dataclass

from koordlet.api.annotations.pod import NetworkLimits, network_limits
from koordlet.api.encoding.quantity import Quantity, QuantityError
from koordlet.api.encoding.wire import IntOrString, WireError
from koordlet.api.sloconfig.resourceqos import NET_POLICY_TC, NetworkQOS, ResourceQOSStrategy
from koordlet.app.logging import get_logger
from koordlet.qosmanager.engine.view import NodeView, PodView

log = get_logger(__name__)

FIELDS = ("ingress_request", "ingress_limit", "egress_request", "egress_limit")


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Of one class; 0 is nothing guaranteed, or no limit."""

    ingress_request: int = 0
    ingress_limit: int = 0
    egress_request: int = 0
    egress_limit: int = 0
    enabled: bool = False


def total(view: NodeView) -> int:
    """Of the node; 0 when nobody said."""
    system = view.slo.system_strategy
    given = None if system is None else system.total_network_bandwidth
    return 0 if given is None else max(given.value(), 0)


def policy(strategy: ResourceQOSStrategy | None) -> str:
    """Which mechanism shall do it; tc when nobody said."""
    policies = None if strategy is None else strategy.policies
    return (policies.net_qos_policy if policies is not None else None) or NET_POLICY_TC


def of_class(strategy: ResourceQOSStrategy | None, name: str, whole: int) -> Bandwidth:
    """Of `ls_class` or `be_class` on a node of that bandwidth. Raises ValueError for a value that is none, or that is
    more than the node has."""
    given = None if strategy is None else getattr(strategy, name)
    qos: NetworkQOS | None = None if given is None else given.network_qos
    if qos is None or not qos.enable:
        return Bandwidth()
    values = {}
    for field in FIELDS:
        try:
            values[field] = size(getattr(qos, field), whole)
        except (QuantityError, ValueError) as error:
            raise ValueError(f"{name.removesuffix('_class')}.{field}: {error}") from error
    return Bandwidth(**values, enabled=True)


def size(value: IntOrString | None, whole: int) -> int:
    """A number is a percentage (out of range counts as 0), a string a quantity."""
    if value is None:
        return 0
    if isinstance(value, int):
        return whole * value // 100 if 0 <= value <= 100 else 0
    bits = Quantity(value).value()
    if not 0 <= bits <= whole:
        raise ValueError(f"{value} is not within 0 and the node's {whole} bit/s")
    return bits


def of_pod(pod: PodView) -> NetworkLimits | None:
    """The annotation's, in bytes a second; a malformed one counts as absent."""
    spec = pod.meta.pod
    if spec is None:
        return None
    try:
        return network_limits(spec.metadata.annotations)
    except WireError as error:
        log.once(f"{pod.meta.uid}:{error}", "annotation ignored", pod=f"{pod.meta.namespace}/{pod.meta.name}",
                 error=str(error))  # fmt: skip
        return None

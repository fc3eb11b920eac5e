"""Network bandwidth configured in NodeSLO and pods, in bits per second (spec 03 §4.12, §4.13). Pure."""

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
    """Of one class; 0 means no guarantee, or no limit."""

    ingress_request: int = 0
    ingress_limit: int = 0
    egress_request: int = 0
    egress_limit: int = 0
    enabled: bool = False


def total(view: NodeView) -> int:
    """The node's bandwidth; 0 if it is not configured."""
    system = view.slo.system_strategy
    bandwidth = None if system is None else system.total_network_bandwidth
    return 0 if bandwidth is None else max(bandwidth.value(), 0)


def policy(strategy: ResourceQOSStrategy | None) -> str:
    """The mechanism to use; tc by default."""
    policies = None if strategy is None else strategy.policies
    return (policies.net_qos_policy if policies is not None else None) or NET_POLICY_TC


def of_class(strategy: ResourceQOSStrategy | None, name: str, whole: int) -> Bandwidth:
    """Of `ls_class` or `be_class` on a node of bandwidth `whole`. Raises ValueError for an invalid value, or one above
    the node's bandwidth."""
    config = None if strategy is None else getattr(strategy, name)
    qos: NetworkQOS | None = None if config is None else config.network_qos
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
    """The annotation's limits, in bytes per second; a malformed annotation counts as absent."""
    spec = pod.meta.pod
    if spec is None:
        return None
    try:
        return network_limits(spec.metadata.annotations)
    except WireError as error:
        name = f"{pod.meta.namespace}/{pod.meta.name}"
        log.once(f"{pod.meta.uid}:{error}", "Malformed annotation ignored", pod=name, error=str(error))
        return None

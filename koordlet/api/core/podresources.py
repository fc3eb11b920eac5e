"""The total requests and limits of a pod, and its Kubernetes QoS class. Pure.

Defined as in Kubernetes (resource helpers of component-helpers, QoS of pkg/apis/core/v1/helper/qos): sidecars (init
containers with restartPolicy Always) are added to the sum of the regular containers; another init container counts with
the sidecars that start before it; overhead is added; pod-level resources replace the sum of the containers for the
resources that they name.
"""

from collections.abc import Callable, Mapping

from koordlet.api.core.pod import Pod, ResourceList, ResourceRequirements
from koordlet.api.encoding.quantity import Quantity

GUARANTEED = "Guaranteed"
BURSTABLE = "Burstable"
BEST_EFFORT = "BestEffort"

_QOS_RESOURCES = ("cpu", "memory")


def _add(into: ResourceList, amounts: Mapping[str, Quantity]) -> None:
    for name, amount in amounts.items():
        into[name] = into[name] + amount if name in into else amount


def _raise_to(into: ResourceList, amounts: Mapping[str, Quantity]) -> None:
    for name, amount in amounts.items():
        if name not in into or into[name] < amount:
            into[name] = amount


def _total(pod: Pod, of: Callable[[ResourceRequirements], ResourceList], *, overhead_for_all: bool) -> ResourceList:
    running: ResourceList = {}
    for container in pod.spec.containers:
        _add(running, of(container.resources))
    sidecars: ResourceList = {}
    peak: ResourceList = {}
    for container in pod.spec.init_containers:
        if container.is_sidecar:
            _add(running, of(container.resources))
            _add(sidecars, of(container.resources))
            _raise_to(peak, sidecars)
            continue
        during = dict(of(container.resources))
        _add(during, sidecars)
        _raise_to(peak, during)
    _raise_to(running, peak)
    if pod.spec.resources is not None:
        running.update(of(pod.spec.resources))
    for name, amount in pod.spec.overhead.items():
        # A missing limit is unlimited: overhead alone must not become a limit.
        if name in running:
            running[name] = running[name] + amount
        elif overhead_for_all:
            running[name] = amount
    return running


def pod_requests(pod: Pod) -> ResourceList:
    """The amounts that the scheduler reserves: max(containers + sidecars, init phases) + overhead."""
    return _total(pod, lambda resources: resources.requests, overhead_for_all=True)


def pod_limits(pod: Pod) -> ResourceList:
    """The limits, computed like requests; overhead is added only to existing limits.

    As in Kubernetes, a container without a limit adds nothing, so the sum is an upper bound only if every container has
    a limit.
    """
    return _total(pod, lambda resources: resources.limits, overhead_for_all=False)


def computed_qos_class(pod: Pod) -> str:
    """Guaranteed, Burstable or BestEffort, from cpu and memory of the spec alone.

    Guaranteed: every container and init container limits both, and the requests equal the limits.
    BestEffort: no non-zero request or limit of either. If there are pod-level resources, only they count.
    """
    blocks = (
        [pod.spec.resources]
        if pod.spec.resources is not None and (pod.spec.resources.requests or pod.spec.resources.limits)
        else [container.resources for container in (*pod.spec.containers, *pod.spec.init_containers)]
    )
    requests: ResourceList = {}
    limits: ResourceList = {}
    fully_limited = True
    for block in blocks:
        for name in _QOS_RESOURCES:
            request, limit = block.requests.get(name), block.limits.get(name)
            if request:
                _add(requests, {name: request})
            if limit:
                _add(limits, {name: limit})
            else:
                fully_limited = False
    if not requests and not limits:
        return BEST_EFFORT
    # The sums are compared, as in Kubernetes. A missing request is not defaulted to the limit here, because the API
    # server and the kubelet have already done that.
    if fully_limited and requests == limits:
        return GUARANTEED
    return BURSTABLE


def pod_qos_class(pod: Pod) -> str:
    """`status.qosClass`, or the class computed from the spec if the status has none."""
    return pod.status.qos_class or computed_qos_class(pod)


def is_terminated(pod: Pod) -> bool:
    """Whether the pod has terminated (phase Succeeded or Failed)."""
    return pod.status.phase in ("Succeeded", "Failed")

"""The total requests and limits of a pod, and its Kubernetes QoS class. Pure.

Defined as in Kubernetes (resource helpers of component-helpers, QoS of pkg/apis/core/v1/helper/qos): sidecars (init
containers with restartPolicy Always) are added to the sum of the regular containers; another init container counts with
the sidecars that start before it; overhead is added; pod-level resources replace the sum of the containers for the
resources that they name.
"""

from collections.abc import Callable, Iterable, Mapping

from koordlet.api.core.pod import Pod, ResourceList, ResourceRequirements
from koordlet.api.encoding.quantity import Quantity

GUARANTEED = "Guaranteed"
BURSTABLE = "Burstable"
BEST_EFFORT = "BestEffort"

Amounts = Mapping[str, Quantity]

_QOS_RESOURCES = ("cpu", "memory")


def _add(into: ResourceList, amounts: Amounts) -> None:
    for name, amount in amounts.items():
        into[name] = into[name] + amount if name in into else amount


def _raise_to(into: ResourceList, amounts: Amounts) -> None:
    for name, amount in amounts.items():
        if name not in into or into[name] < amount:
            into[name] = amount


def total(
    containers: Iterable[Amounts],
    init_containers: Iterable[tuple[Amounts, bool]],
    overhead: Amounts,
    pod_level: Amounts | None = None,
    *,
    overhead_for_all: bool,
) -> ResourceList:
    """The amounts of a pod from those of its parts. `init_containers`: amounts, and whether it is a sidecar. Without
    `overhead_for_all` overhead is added only to amounts that exist: a missing limit is unlimited, and overhead alone
    must not become a limit."""
    running: ResourceList = {}
    for amounts in containers:
        _add(running, amounts)
    sidecars: ResourceList = {}
    peak: ResourceList = {}
    for amounts, is_sidecar in init_containers:
        if is_sidecar:
            _add(running, amounts)
            _add(sidecars, amounts)
            _raise_to(peak, sidecars)
            continue
        during = dict(amounts)
        _add(during, sidecars)
        _raise_to(peak, during)
    _raise_to(running, peak)
    running.update(pod_level or {})
    _add(running, {name: amount for name, amount in overhead.items() if overhead_for_all or name in running})
    return running


def _total(pod: Pod, of: Callable[[ResourceRequirements], ResourceList], *, overhead_for_all: bool) -> ResourceList:
    spec = pod.spec
    return total(
        [of(container.resources) for container in spec.containers],
        [(of(container.resources), container.is_sidecar) for container in spec.init_containers],
        spec.overhead,
        None if spec.resources is None else of(spec.resources),
        overhead_for_all=overhead_for_all,
    )


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

"""The columns that `kubectl get` prints for the built-in kinds.

One tuple per kind, in printing order; columns of priority 1 appear only with -o wide. A cell may raise on a malformed
object: `table.row` then prints <invalid>.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from control.standalone.http.table import AGE, CREATED_AT, NAME, Cell, TableColumn, age, custom_columns, human_duration
from control.standalone.kinds import ResourceKind
from control.standalone.objectmeta import parse_timestamp

Json = dict[str, Any]


def columns_for(kind: ResourceKind, version: str) -> tuple[TableColumn, ...]:
    if kind.custom:
        return custom_columns(kind, version)
    return _COLUMNS.get(kind.stored_as, (NAME, CREATED_AT))


def _dig(obj: Any, path: str, default: Any = None) -> Any:
    for part in path.split("."):
        obj = obj.get(part) if isinstance(obj, dict) else None
    return default if obj is None else obj


def _at(name: str, path: str, default: Any = "", type: str = "string", priority: int = 0) -> TableColumn:
    return TableColumn(name, lambda o, _: _dig(o, path, default), type=type, priority=priority)


def _col(name: str, fn: Any, type: str = "string", priority: int = 0) -> TableColumn:
    cell: Cell = lambda o, _: fn(o)  # noqa: E731
    return TableColumn(name, cell, type=type, priority=priority)


def _none(value: Any) -> Any:
    return value if value not in ("", None, []) else "<none>"


def pod_status(pod: Json) -> str:
    """The STATUS column: the most specific reason of the pod's state, with kubectl's precedence."""
    status, meta = pod.get("status") or {}, pod["metadata"]
    reason = status.get("reason") or status.get("phase") or "Unknown"
    if any(
        c.get("type") == "PodScheduled" and c.get("reason") == "SchedulingGated" for c in status.get("conditions") or []
    ):
        reason = "SchedulingGated"
    waiting_init, init_total = False, len((pod.get("spec") or {}).get("initContainers") or [])
    sidecars = {
        c["name"] for c in (pod.get("spec") or {}).get("initContainers") or [] if c.get("restartPolicy") == "Always"
    }
    for i, container in enumerate(status.get("initContainerStatuses") or []):
        state = container.get("state") or {}
        ended, waiting = state.get("terminated"), state.get("waiting") or {}
        if (ended and ended.get("exitCode") == 0) or (container.get("name") in sidecars and container.get("started")):
            continue
        if ended:
            reason = "Init:" + (ended.get("reason") or _exit(ended))
        elif waiting.get("reason") and waiting["reason"] != "PodInitializing":
            reason = "Init:" + waiting["reason"]
        else:
            reason = f"Init:{i}/{init_total}"
        waiting_init = True
        break
    if not waiting_init:
        reason = _containers_reason(status, reason)
    if meta.get("deletionTimestamp"):
        return "Unknown" if status.get("reason") == "NodeLost" else "Terminating"
    return reason


def _containers_reason(status: Json, reason: str) -> str:
    running = False
    for container in reversed(status.get("containerStatuses") or []):
        state = container.get("state") or {}
        waiting, ended = state.get("waiting") or {}, state.get("terminated")
        if waiting.get("reason"):
            reason = waiting["reason"]
        elif ended:
            reason = ended.get("reason") or _exit(ended)
        elif container.get("ready") and "running" in state:
            running = True
    if reason == "Completed" and running:
        ready = any(c.get("type") == "Ready" and c.get("status") == "True" for c in status.get("conditions") or [])
        return "Running" if ready else "NotReady"
    return reason


def _exit(ended: Json) -> str:
    return f"Signal:{ended['signal']}" if ended.get("signal") else f"ExitCode:{ended.get('exitCode')}"


def _restartable(pod: Json) -> list[Json]:
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    sidecars = {c["name"] for c in spec.get("initContainers") or [] if c.get("restartPolicy") == "Always"}
    side = [c for c in status.get("initContainerStatuses") or [] if c.get("name") in sidecars]
    return side + (status.get("containerStatuses") or [])


def _pod_ready(pod: Json) -> str:
    spec = pod.get("spec") or {}
    total = len(spec.get("containers") or []) + sum(
        c.get("restartPolicy") == "Always" for c in spec.get("initContainers") or []
    )
    return f"{sum(bool(c.get('ready')) for c in _restartable(pod))}/{total}"


def _pod_restarts(pod: Json, now: float) -> str:
    statuses = _restartable(pod)
    count = sum(c.get("restartCount") or 0 for c in statuses)
    ends = [_dig(c, "lastState.terminated.finishedAt") for c in statuses]
    last = max((parse_timestamp(t) for t in ends if t), default=None)
    return f"{count} ({human_duration(now - last)} ago)" if count and last is not None else str(count)


def _pod_gates(pod: Json) -> str:
    gates = _dig(pod, "spec.readinessGates", [])
    if not gates:
        return "<none>"
    true = {c["type"] for c in _dig(pod, "status.conditions", []) if c.get("status") == "True"}
    return f"{sum(g['conditionType'] in true for g in gates)}/{len(gates)}"


def _node_status(node: Json) -> str:
    ready = [c for c in _dig(node, "status.conditions", []) if c.get("type") == "Ready"]
    words = ["Ready" if c.get("status") == "True" else "NotReady" for c in ready] or ["Unknown"]
    if _dig(node, "spec.unschedulable"):
        words.append("SchedulingDisabled")
    return ",".join(words)


def _node_roles(node: Json) -> str:
    labels = node["metadata"].get("labels") or {}
    prefix = "node-role.kubernetes.io/"
    roles = {k.removeprefix(prefix) for k in labels if k.startswith(prefix) and k != prefix}
    if labels.get("kubernetes.io/role"):
        roles.add(labels["kubernetes.io/role"])
    return ",".join(sorted(roles)) or "<none>"


def _node_address(address_type: str) -> Any:
    def find(node: Json) -> str:
        return next((a["address"] for a in _dig(node, "status.addresses", []) if a["type"] == address_type), "<none>")

    return find


def _node_info(field: str) -> Any:
    return lambda node: _dig(node, f"status.nodeInfo.{field}") or "<unknown>"


def _pod_spec(obj: Json) -> Any:
    return (
        _dig(obj, "spec.template.spec")
        or _dig(obj, "template.spec")
        or _dig(obj, "spec.jobTemplate.spec.template.spec", {})
    )


def selector_text(selector: Any) -> str:
    if not selector:
        return "<none>"
    if "matchLabels" not in selector and "matchExpressions" not in selector:
        return ",".join(f"{k}={v}" for k, v in sorted(selector.items()))
    parts = [f"{k}={v}" for k, v in sorted((selector.get("matchLabels") or {}).items())]
    for e in selector.get("matchExpressions") or []:
        values = ",".join(sorted(e.get("values") or []))
        texts = {"In": f"{e['key']} in ({values})", "NotIn": f"{e['key']} notin ({values})", "Exists": e["key"]}
        parts.append(texts.get(e["operator"], "!" + e["key"]))
    return ",".join(parts) or "<none>"


_WIDE = (
    _col("Containers", lambda o: ",".join(c["name"] for c in _pod_spec(o).get("containers") or []), priority=1),
    _col("Images", lambda o: ",".join(c.get("image", "") for c in _pod_spec(o).get("containers") or []), priority=1),
)
_SELECTOR = _col("Selector", lambda o: selector_text(_dig(o, "spec.selector")), priority=1)


def _ready_of(obj: Json) -> str:
    return f"{_dig(obj, 'status.readyReplicas', 0)}/{_dig(obj, 'spec.replicas', 1)}"


def _job_status(job: Json) -> str:
    true = {c["type"] for c in _dig(job, "status.conditions", []) if c.get("status") == "True"}
    if "Complete" in true:
        return "Complete"
    if "Failed" in true:
        return "Failed"
    if job["metadata"].get("deletionTimestamp"):
        return "Terminating"
    if "Suspended" in true:
        return "Suspended"
    return "FailureTarget" if "FailureTarget" in true else "Running"


def _job_completions(job: Json) -> str:
    done, completions = _dig(job, "status.succeeded", 0), _dig(job, "spec.completions")
    if completions is not None:
        return f"{done}/{completions}"
    parallel = _dig(job, "spec.parallelism", 0)
    return f"{done}/1 of {parallel}" if parallel > 1 else f"{done}/1"


def _job_duration(job: Json, now: float) -> str:
    start, end = _dig(job, "status.startTime"), _dig(job, "status.completionTime")
    if not start:
        return ""
    return human_duration((parse_timestamp(end) if end else now) - parse_timestamp(start))


def _cron_last_schedule(cron_job: Json, now: float) -> str:
    time = _dig(cron_job, "status.lastScheduleTime")
    return age(time, now) if time else "<none>"


def _event_last(event: Json, now: float) -> str:
    when = _dig(event, "series.lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
    return age(when, now)


def _event_first(event: Json, now: float) -> str:
    return age(event.get("firstTimestamp") or event.get("eventTime"), now)


def _event_object(event: Json) -> str:
    about = event.get("involvedObject") or {}
    return f"{about.get('kind', '').lower()}/{about.get('name', '')}"


def _event_source(event: Json) -> str:
    source = event.get("source") or {}
    component = source.get("component") or event.get("reportingComponent") or ""
    return f"{component}, {source['host']}" if source.get("host") else component


def _ports(service: Json) -> str:
    texts = []
    for port in _dig(service, "spec.ports", []):
        node = f":{port['nodePort']}" if port.get("nodePort") else ""
        texts.append(f"{port['port']}{node}/{port.get('protocol', 'TCP')}")
    return ",".join(texts) or "<none>"


def _external_ip(service: Json) -> str:
    external = _dig(service, "spec.externalIPs", [])
    if _dig(service, "spec.type") == "ExternalName":
        return str(_dig(service, "spec.externalName", ""))
    if _dig(service, "spec.type") == "LoadBalancer":
        ingress_addresses = [i.get("ip") or i.get("hostname") for i in _dig(service, "status.loadBalancer.ingress", [])]
        return ",".join([*ingress_addresses, *external]) or "<pending>"
    return ",".join(external) or "<none>"


def _endpoints(obj: Json) -> str:
    addresses = [
        f"{a['ip']}:{p['port']}"
        for s in obj.get("subsets") or []
        for a in s.get("addresses") or []
        for p in s.get("ports") or []
    ]
    more = f" + {len(addresses) - 3} more..." if len(addresses) > 3 else ""
    return ",".join(addresses[:3]) + more if addresses else "<none>"


_MODES = {"ReadWriteOnce": "RWO", "ReadOnlyMany": "ROX", "ReadWriteMany": "RWX", "ReadWriteOncePod": "RWOP"}


def _modes(path: str) -> Any:
    return lambda o: ",".join(_MODES.get(m, m) for m in _dig(o, path, []))


def _claim(volume: Json) -> str:
    ref = _dig(volume, "spec.claimRef")
    return f"{ref.get('namespace', '')}/{ref.get('name', '')}" if ref else ""


def _role(binding: Json) -> str:
    return f"{binding['roleRef']['kind']}/{binding['roleRef']['name']}"


def _subjects(kind: str) -> Any:
    def names(binding: Json) -> str:
        of_kind = [s for s in binding.get("subjects") or [] if s["kind"] == kind]
        prefix = kind == "ServiceAccount"
        return ",".join(f"{s.get('namespace', '')}/{s['name']}" if prefix else s["name"] for s in of_kind)

    return names


_BINDING = (
    NAME, _col("Role", _role), AGE, _col("Users", _subjects("User"), priority=1),
    _col("Groups", _subjects("Group"), priority=1),
    _col("ServiceAccounts", _subjects("ServiceAccount"), priority=1),
)  # fmt: skip


def _data_count(obj: Json) -> int:
    return len(obj.get("data") or {}) + len(obj.get("binaryData") or {})


def _quota(prefix: str) -> Any:
    def text(quota: Json) -> str:
        hard, used = _dig(quota, "status.hard", {}), _dig(quota, "status.used", {})
        names = [n for n in sorted(hard) if n.startswith("limits.") is (prefix == "limits.")]
        return ", ".join(f"{n}: {used.get(n, '0')}/{hard[n]}" for n in names)

    return text


def _webhooks(config: Json) -> int:
    return len(config.get("webhooks") or [])


def _slice_ports(obj: Json) -> str:
    return ",".join(str(p.get("port", "*")) for p in obj.get("ports") or []) or "<unset>"


def _slice_endpoints(obj: Json) -> str:
    return ",".join(a for e in obj.get("endpoints") or [] for a in e.get("addresses") or []) or "<unset>"


def _scale_target(scaler: Json) -> str:
    target = scaler["spec"]["scaleTargetRef"]
    return f"{target['kind']}/{target['name']}"


def _scale_metrics(scaler: Json) -> str:
    """The targets of a scaler whose metrics nothing measures."""
    targets = [
        f"{m['resource']['name']}: <unknown>/{m['resource']['target'].get('averageUtilization', '')}%"
        for m in _dig(scaler, "spec.metrics", [])
        if m.get("type") == "Resource"
    ]
    return ", ".join(targets) or "<none>"


def _class_parameters(ingress_class: Json) -> str:
    parameters = _dig(ingress_class, "spec.parameters")
    if not parameters:
        return "<none>"
    group = f".{parameters['apiGroup']}" if parameters.get("apiGroup") else ""
    return f"{parameters['kind']}{group}/{parameters['name']}"


def _available(service: Json) -> str:
    return next((c["status"] for c in _dig(service, "status.conditions", []) if c["type"] == "Available"), "Unknown")


_INT = "integer"
_COLUMNS: dict[str, tuple[TableColumn, ...]] = {
    "/pods": (
        NAME, _col("Ready", _pod_ready), _col("Status", pod_status), TableColumn("Restarts", _pod_restarts), AGE,
        _at("IP", "status.podIP", "<none>", priority=1), _at("Node", "spec.nodeName", "<none>", priority=1),
        _at("Nominated Node", "status.nominatedNodeName", "<none>", priority=1),
        _col("Readiness Gates", _pod_gates, priority=1),
    ),
    "/nodes": (
        NAME, _col("Status", _node_status), _col("Roles", _node_roles), AGE,
        _at("Version", "status.nodeInfo.kubeletVersion"),
        _col("Internal-IP", _node_address("InternalIP"), priority=1),
        _col("External-IP", _node_address("ExternalIP"), priority=1),
        _col("OS-Image", _node_info("osImage"), priority=1),
        _col("Kernel-Version", _node_info("kernelVersion"), priority=1),
        _col("Container-Runtime", _node_info("containerRuntimeVersion"), priority=1),
    ),
    "/namespaces": (NAME, _at("Status", "status.phase"), AGE),
    "/configmaps": (NAME, _col("Data", _data_count), AGE),
    "/secrets": (NAME, _at("Type", "type", "Opaque"), _col("Data", _data_count), AGE),
    "/serviceaccounts": (NAME, AGE),
    "/services": (
        NAME, _at("Type", "spec.type", "ClusterIP"),
        _col("Cluster-IP", lambda o: _none(_dig(o, "spec.clusterIP"))),
        _col("External-IP", _external_ip), _col("Port(s)", _ports), AGE, _SELECTOR,
    ),
    "/endpoints": (NAME, _col("Endpoints", _endpoints), AGE),
    "/events": (
        TableColumn("Last Seen", _event_last), _at("Type", "type"), _at("Reason", "reason"),
        _col("Object", _event_object), _at("Subobject", "involvedObject.fieldPath", priority=1),
        _col("Source", _event_source, priority=1), _col("Message", lambda o: (o.get("message") or "").strip()),
        TableColumn("First Seen", _event_first, priority=1),
        _at("Count", "count", 1, priority=1), TableColumn("Name", NAME.cell, priority=1, format="name"),
    ),
    "/persistentvolumes": (
        NAME, _at("Capacity", "spec.capacity.storage"), _col("Access Modes", _modes("spec.accessModes")),
        _at("Reclaim Policy", "spec.persistentVolumeReclaimPolicy"), _at("Status", "status.phase"),
        _col("Claim", _claim), _at("StorageClass", "spec.storageClassName"),
        _at("VolumeAttributesClass", "spec.volumeAttributesClassName", "<unset>"),
        _at("Reason", "status.reason"), AGE, _at("VolumeMode", "spec.volumeMode", "<unset>", priority=1),
    ),
    "/persistentvolumeclaims": (
        NAME, _at("Status", "status.phase"), _at("Volume", "spec.volumeName"),
        _at("Capacity", "status.capacity.storage"), _col("Access Modes", _modes("status.accessModes")),
        _at("StorageClass", "spec.storageClassName"),
        _at("VolumeAttributesClass", "spec.volumeAttributesClassName", "<unset>"), AGE,
        _at("VolumeMode", "spec.volumeMode", "<unset>", priority=1),
    ),
    "/resourcequotas": (NAME, _col("Request", _quota("")), _col("Limit", _quota("limits.")), AGE),
    "/replicationcontrollers": (
        NAME, _at("Desired", "spec.replicas", 1, _INT), _at("Current", "status.replicas", 0, _INT),
        _at("Ready", "status.readyReplicas", 0, _INT), AGE, *_WIDE, _SELECTOR,
    ),
    "apps/deployments": (
        NAME, _col("Ready", _ready_of), _at("Up-to-date", "status.updatedReplicas", 0),
        _at("Available", "status.availableReplicas", 0), AGE, *_WIDE, _SELECTOR,
    ),
    "apps/replicasets": (
        NAME, _at("Desired", "spec.replicas", 1, _INT), _at("Current", "status.replicas", 0, _INT),
        _at("Ready", "status.readyReplicas", 0, _INT), AGE, *_WIDE, _SELECTOR,
    ),
    "/podtemplates": (
        NAME, *(replace(column, priority=0) for column in _WIDE),
        _col("Pod Labels", lambda o: selector_text(_dig(o, "template.metadata.labels"))),
    ),
    "apps/statefulsets": (NAME, _col("Ready", _ready_of), AGE, *_WIDE),
    "apps/daemonsets": (
        NAME, _at("Desired", "status.desiredNumberScheduled", 0, _INT),
        _at("Current", "status.currentNumberScheduled", 0, _INT), _at("Ready", "status.numberReady", 0, _INT),
        _at("Up-to-date", "status.updatedNumberScheduled", 0, _INT),
        _at("Available", "status.numberAvailable", 0, _INT),
        _col("Node Selector", lambda o: selector_text(_pod_spec(o).get("nodeSelector"))), AGE, *_WIDE, _SELECTOR,
    ),
    "apps/controllerrevisions": (
        NAME,
        _col("Controller", lambda o: next(
            (f"{r['kind'].lower()}.apps/{r['name']}" for r in o["metadata"].get("ownerReferences") or []
             if r.get("controller")), "<none>")),
        _at("Revision", "revision", 0), AGE,
    ),
    "batch/jobs": (
        NAME, _col("Status", _job_status), _col("Completions", _job_completions),
        TableColumn("Duration", _job_duration), AGE, *_WIDE, _SELECTOR,
    ),
    "batch/cronjobs": (
        NAME, _at("Schedule", "spec.schedule"), _at("Timezone", "spec.timeZone", "<none>"),
        _col("Suspend", lambda o: str(_dig(o, "spec.suspend", False))),
        _col("Active", lambda o: len(_dig(o, "status.active", [])), _INT),
        TableColumn("Last Schedule", _cron_last_schedule),
        AGE, *_WIDE, _SELECTOR,
    ),
    "coordination.k8s.io/leases": (NAME, _at("Holder", "spec.holderIdentity"), AGE),
    "policy/poddisruptionbudgets": (
        NAME, _col("Min Available", lambda o: str(_dig(o, "spec.minAvailable", "N/A"))),
        _col("Max Unavailable", lambda o: str(_dig(o, "spec.maxUnavailable", "N/A"))),
        _at("Allowed Disruptions", "status.disruptionsAllowed", 0, _INT), AGE,
    ),
    "scheduling.k8s.io/priorityclasses": (
        NAME, _at("Value", "value", 0, _INT), _at("Global-Default", "globalDefault", False, "boolean"), AGE,
        _at("PreemptionPolicy", "preemptionPolicy", "PreemptLowerPriority"),
    ),
    "rbac.authorization.k8s.io/rolebindings": _BINDING,
    "rbac.authorization.k8s.io/clusterrolebindings": _BINDING,
    "storage.k8s.io/storageclasses": (
        NAME, _at("Provisioner", "provisioner"), _at("ReclaimPolicy", "reclaimPolicy", "Delete"),
        _at("VolumeBindingMode", "volumeBindingMode", "Immediate"),
        _at("AllowVolumeExpansion", "allowVolumeExpansion", False, "boolean"), AGE,
    ),
    "storage.k8s.io/csinodes": (NAME, _col("Drivers", lambda o: len(_dig(o, "spec.drivers", [])), _INT), AGE),
    "storage.k8s.io/volumeattachments": (
        NAME, _at("Attacher", "spec.attacher"), _at("PV", "spec.source.persistentVolumeName"),
        _at("Node", "spec.nodeName"), _at("Attached", "status.attached", False, "boolean"), AGE,
    ),
    "admissionregistration.k8s.io/mutatingwebhookconfigurations": (NAME, _col("Webhooks", _webhooks, _INT), AGE),
    "admissionregistration.k8s.io/validatingwebhookconfigurations": (NAME, _col("Webhooks", _webhooks, _INT), AGE),
    "apiregistration.k8s.io/apiservices": (
        NAME, _col("Service", lambda o: "Local" if not _dig(o, "spec.service") else
                   f"{o['spec']['service']['namespace']}/{o['spec']['service']['name']}"),
        _col("Available", _available), AGE,
    ),
    "autoscaling/horizontalpodautoscalers": (
        NAME, _col("Reference", _scale_target),
        _col("Targets", _scale_metrics), _col("MinPods", lambda o: str(_dig(o, "spec.minReplicas", "<unset>"))),
        _at("MaxPods", "spec.maxReplicas", 0), _at("Replicas", "status.currentReplicas", 0), AGE,
    ),
    "discovery.k8s.io/endpointslices": (
        NAME, _at("AddressType", "addressType"), _col("Ports", _slice_ports), _col("Endpoints", _slice_endpoints), AGE,
    ),
    "networking.k8s.io/networkpolicies": (
        NAME, _col("Pod-Selector", lambda o: selector_text(_dig(o, "spec.podSelector"))), AGE,
    ),
    "networking.k8s.io/ingresses": (
        NAME, _at("Class", "spec.ingressClassName", "<none>"),
        _col("Hosts", lambda o: ",".join(r.get("host", "*") for r in _dig(o, "spec.rules", [])) or "*"),
        _col("Address", lambda o: ",".join(i.get("ip") or i.get("hostname", "") for i in
                                           _dig(o, "status.loadBalancer.ingress", []))),
        _col("Ports", lambda o: "80, 443" if _dig(o, "spec.tls") else "80"), AGE,
    ),
    "networking.k8s.io/ingressclasses": (
        NAME, _at("Controller", "spec.controller"), _col("Parameters", _class_parameters), AGE,
    ),
    "node.k8s.io/runtimeclasses": (NAME, _at("Handler", "handler"), AGE),
}  # fmt: skip
for _plain_aged in (
    "storage.k8s.io/csidrivers",
    "storage.k8s.io/csistoragecapacities",
):  # fmt: skip
    _COLUMNS[_plain_aged] = (NAME, AGE)

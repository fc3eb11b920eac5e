"""Defaults of the built-in kinds, which the API server sets before it stores an object.

A table of small idempotent functions by kind; each changes the object in place. Admission sets the defaults that
depend on other objects (priority, service account, tolerations).
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

Json = dict[str, Any]
_RBAC = "rbac.authorization.k8s.io"


def fill(key: str, obj: Json) -> None:
    """Set the defaults of the kind `key` ("group/plural")."""
    function = _BY_KEY.get(key)
    if function is not None:
        function(obj)


def _sub(obj: Json, name: str) -> Json:
    """The object at `name`, created if absent."""
    value = obj.get(name)
    if not isinstance(value, dict):
        value = obj[name] = {}
    return value


def _defaults(obj: Json, **values: Any) -> None:
    for name, value in values.items():
        obj.setdefault(name, value)


def _pod(obj: Json) -> None:
    spec = _sub(obj, "spec")
    spec.setdefault("enableServiceLinks", True)
    for container in [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]:
        resources = container.get("resources") or {}
        limits = resources.get("limits") or {}
        if limits:
            requests = dict(resources.get("requests") or {})
            for name, amount in limits.items():
                requests.setdefault(name, amount)
            container["resources"] = {**resources, "requests": requests}
    pod_spec(spec)


def pod_spec(spec: Json) -> None:
    """Defaults of the spec of a pod or a pod template."""
    _defaults(
        spec,
        restartPolicy="Always",
        dnsPolicy="ClusterFirst",
        terminationGracePeriodSeconds=30,
        securityContext={},
        schedulerName="default-scheduler",
    )
    account = spec.get("serviceAccountName") or spec.get("serviceAccount")
    if account:
        spec["serviceAccountName"] = spec["serviceAccount"] = account
    for group in ("initContainers", "containers", "ephemeralContainers"):
        for container in spec.get(group) or ():
            _container(container, bool(spec.get("hostNetwork")))
    for volume in spec.get("volumes") or ():
        _volume(volume)
    for constraint in spec.get("topologySpreadConstraints") or ():
        _defaults(constraint, whenUnsatisfiable="DoNotSchedule")


def _container(container: Json, host_network: bool) -> None:
    _defaults(
        container,
        terminationMessagePath="/dev/termination-log",
        terminationMessagePolicy="File",
        imagePullPolicy=_pull_policy(container.get("image")),
        resources={},
    )
    for port in container.get("ports") or ():
        port.setdefault("protocol", "TCP")
        if host_network and "containerPort" in port:
            port.setdefault("hostPort", port["containerPort"])
    for env in container.get("env") or ():
        if isinstance(ref := (env.get("valueFrom") or {}).get("fieldRef"), dict):
            ref.setdefault("apiVersion", "v1")
    for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
        if isinstance(container.get(probe), dict):
            _probe(container[probe])
    for hook in ("preStop", "postStart"):
        _handler((container.get("lifecycle") or {}).get(hook))


def _pull_policy(reference: Any) -> str:
    image = str(reference or "")
    tag = image.rpartition("/")[2].partition("@")[0].partition(":")[2]
    return "Always" if "@" not in image and tag in ("", "latest") else "IfNotPresent"


def _probe(probe: Json) -> None:
    _defaults(probe, timeoutSeconds=1, periodSeconds=10, successThreshold=1, failureThreshold=3)
    _handler(probe)


def _handler(handler: Any) -> None:
    if isinstance(http := (handler or {}).get("httpGet"), dict):
        _defaults(http, path="/", scheme="HTTP")


def _volume(volume: Json) -> None:
    if len(volume) == 1 and "name" in volume:
        volume["emptyDir"] = {}
    for source in ("secret", "configMap", "projected", "downwardAPI"):
        if isinstance(volume.get(source), dict):
            volume[source].setdefault("defaultMode", 0o644)
    if isinstance(volume.get("hostPath"), dict):
        volume["hostPath"].setdefault("type", "")
    _field_references(volume.get("downwardAPI"))
    for source in (volume.get("projected") or {}).get("sources") or ():
        if isinstance(token := source.get("serviceAccountToken"), dict):
            token.setdefault("expirationSeconds", 3600)
        _field_references(source.get("downwardAPI"))
    if isinstance(image := volume.get("image"), dict):
        image.setdefault("pullPolicy", _pull_policy(image.get("reference")))
    if isinstance(template := (volume.get("ephemeral") or {}).get("volumeClaimTemplate"), dict):
        _claim(template)
    if isinstance(iscsi := volume.get("iscsi"), dict):
        iscsi.setdefault("iscsiInterface", "default")


def _field_references(downward: Any) -> None:
    for item in (downward or {}).get("items") or ():
        if isinstance(ref := item.get("fieldRef"), dict):
            ref.setdefault("apiVersion", "v1")


def _template(spec: Json) -> None:
    template = spec.get("template")
    if isinstance(template, dict):
        template.setdefault("metadata", {})
        pod_spec(_sub(template, "spec"))


def _deployment(obj: Json) -> None:
    spec = _sub(obj, "spec")
    _defaults(spec, replicas=1, revisionHistoryLimit=10, progressDeadlineSeconds=600)
    strategy = _sub(spec, "strategy")
    strategy.setdefault("type", "RollingUpdate")
    if strategy["type"] == "RollingUpdate":
        _defaults(_sub(strategy, "rollingUpdate"), maxUnavailable="25%", maxSurge="25%")
    _template(spec)


def _replicas(obj: Json) -> None:
    spec = _sub(obj, "spec")
    spec.setdefault("replicas", 1)
    _template(spec)


def _daemon_set(obj: Json) -> None:
    spec = _sub(obj, "spec")
    spec.setdefault("revisionHistoryLimit", 10)
    strategy = _sub(spec, "updateStrategy")
    strategy.setdefault("type", "RollingUpdate")
    if strategy["type"] == "RollingUpdate":
        _defaults(_sub(strategy, "rollingUpdate"), maxUnavailable=1, maxSurge=0)
    _template(spec)


def _stateful_set(obj: Json) -> None:
    spec = _sub(obj, "spec")
    _defaults(spec, replicas=1, podManagementPolicy="OrderedReady", revisionHistoryLimit=10)
    _defaults(_sub(spec, "persistentVolumeClaimRetentionPolicy"), whenDeleted="Retain", whenScaled="Retain")
    strategy = _sub(spec, "updateStrategy")
    strategy.setdefault("type", "RollingUpdate")
    if strategy["type"] == "RollingUpdate":
        _sub(strategy, "rollingUpdate").setdefault("partition", 0)
    _template(spec)


def _job_spec(spec: Json) -> None:
    if "completions" not in spec and "parallelism" not in spec:
        spec["completions"] = 1
    _defaults(
        spec,
        parallelism=1,
        backoffLimit=6,
        completionMode="NonIndexed",
        suspend=False,
        podReplacementPolicy="TerminatingOrFailed",
    )
    _template(spec)


def _job(obj: Json) -> None:
    _job_spec(_sub(obj, "spec"))


def _cron_job(obj: Json) -> None:
    spec = _sub(obj, "spec")
    _defaults(spec, concurrencyPolicy="Allow", suspend=False, successfulJobsHistoryLimit=3, failedJobsHistoryLimit=1)
    if isinstance(template := spec.get("jobTemplate"), dict):
        _template(_sub(template, "spec"))  # its Jobs get their own defaults


def _service(obj: Json) -> None:
    spec = _sub(obj, "spec")
    _defaults(spec, type="ClusterIP", sessionAffinity="None")
    if spec["type"] != "ExternalName":
        _defaults(spec, internalTrafficPolicy="Cluster")
    for port in spec.get("ports") or ():
        port.setdefault("protocol", "TCP")
        if "port" in port:
            port.setdefault("targetPort", port["port"])


def _autoscaler(obj: Json) -> None:
    spec = _sub(obj, "spec")
    target = {"type": "Utilization", "averageUtilization": 80}
    _defaults(spec, minReplicas=1, metrics=[{"type": "Resource", "resource": {"name": "cpu", "target": target}}])


def _network_policy(obj: Json) -> None:
    spec = _sub(obj, "spec")
    spec.setdefault("policyTypes", ["Ingress", "Egress"] if spec.get("egress") else ["Ingress"])


def _endpoints(obj: Json) -> None:
    for subset in obj.get("subsets") or ():
        for port in subset.get("ports") or ():
            port.setdefault("protocol", "TCP")


def _endpoint_slice(obj: Json) -> None:
    for port in obj.get("ports") or ():
        _defaults(port, name="", protocol="TCP")


def _priority_class(obj: Json) -> None:
    obj.setdefault("preemptionPolicy", "PreemptLowerPriority")


def _binding(obj: Json) -> None:
    if isinstance(ref := obj.get("roleRef"), dict) and not ref.get("apiGroup"):
        ref["apiGroup"] = _RBAC
    for subject in obj.get("subjects") or ():
        if subject.get("kind") in ("User", "Group") and not subject.get("apiGroup"):
            subject["apiGroup"] = _RBAC


def _webhooks(obj: Json) -> None:
    for webhook in obj.get("webhooks") or ():
        _defaults(
            webhook,
            failurePolicy="Fail",
            matchPolicy="Equivalent",
            namespaceSelector={},
            objectSelector={},
            timeoutSeconds=10,
        )
        for rule in webhook.get("rules") or ():
            rule.setdefault("scope", "*")
        if isinstance(service := (webhook.get("clientConfig") or {}).get("service"), dict):
            service.setdefault("port", 443)


def _mutating_webhooks(obj: Json) -> None:
    _webhooks(obj)
    for webhook in obj.get("webhooks") or ():
        webhook.setdefault("reinvocationPolicy", "Never")


def _crd(obj: Json) -> None:
    spec = _sub(obj, "spec")
    names = _sub(spec, "names")
    if kind := names.get("kind"):
        _defaults(names, singular=str(kind).lower(), listKind=f"{kind}List")
    _sub(spec, "conversion").setdefault("strategy", "None")


def _storage_class(obj: Json) -> None:
    _defaults(obj, reclaimPolicy="Delete", volumeBindingMode="Immediate")


def _claim(obj: Json) -> None:
    _sub(obj, "spec").setdefault("volumeMode", "Filesystem")


def _volume_object(obj: Json) -> None:
    spec = _sub(obj, "spec")
    _defaults(spec, volumeMode="Filesystem", persistentVolumeReclaimPolicy="Retain")
    if isinstance(spec.get("hostPath"), dict):
        spec["hostPath"].setdefault("type", "")


def _secret(obj: Json) -> None:
    """stringData is written as data; its values win."""
    if extra := obj.pop("stringData", None):
        encoded = {key: base64.b64encode(value.encode()).decode() for key, value in extra.items()}
        obj["data"] = {**(obj.get("data") or {}), **encoded}
    obj.setdefault("type", "Opaque")


def _namespace(obj: Json) -> None:
    if name := obj["metadata"].get("name"):
        _sub(obj["metadata"], "labels")["kubernetes.io/metadata.name"] = name


def _node(obj: Json) -> None:
    status = _sub(obj, "status")
    if status.get("capacity") and not status.get("allocatable"):
        status["allocatable"] = dict(status["capacity"])


def _replication_controller(obj: Json) -> None:
    spec = _sub(obj, "spec")
    labels = ((spec.get("template") or {}).get("metadata") or {}).get("labels")
    if labels:
        _defaults(spec, selector=dict(labels))
        if not obj["metadata"].get("labels"):
            obj["metadata"]["labels"] = dict(labels)
    _replicas(obj)


def _limit_range(obj: Json) -> None:
    for limit in _sub(obj, "spec").get("limits") or ():
        if limit.get("type") != "Container":
            continue
        default = _sub(limit, "default") if limit.get("max") or limit.get("default") else {}
        for name, amount in (limit.get("max") or {}).items():
            default.setdefault(name, amount)
        request = dict(default) | dict(limit.get("min") or {}) | dict(limit.get("defaultRequest") or {})
        if request:
            limit["defaultRequest"] = request


_ADM = "admissionregistration.k8s.io"


def _api_service(obj: Json) -> None:
    service = (obj.get("spec") or {}).get("service")
    if isinstance(service, dict):
        service.setdefault("port", 443)


_BY_KEY: dict[str, Callable[[Json], None]] = {
    "/pods": _pod,
    "/podtemplates": _template,
    "/replicationcontrollers": _replication_controller,
    "/secrets": _secret,
    "/namespaces": _namespace,
    "/nodes": _node,
    "/limitranges": _limit_range,
    "/services": _service,
    "/endpoints": _endpoints,
    "/persistentvolumeclaims": _claim,
    "/persistentvolumes": _volume_object,
    "apps/deployments": _deployment,
    "apps/replicasets": _replicas,
    "apps/daemonsets": _daemon_set,
    "apps/statefulsets": _stateful_set,
    "batch/jobs": _job,
    "autoscaling/horizontalpodautoscalers": _autoscaler,
    "networking.k8s.io/networkpolicies": _network_policy,
    "batch/cronjobs": _cron_job,
    "discovery.k8s.io/endpointslices": _endpoint_slice,
    "scheduling.k8s.io/priorityclasses": _priority_class,
    f"{_RBAC}/rolebindings": _binding,
    f"{_RBAC}/clusterrolebindings": _binding,
    f"{_ADM}/mutatingwebhookconfigurations": _mutating_webhooks,
    f"{_ADM}/validatingwebhookconfigurations": _webhooks,
    "apiextensions.k8s.io/customresourcedefinitions": _crd,
    "apiregistration.k8s.io/apiservices": _api_service,
    "storage.k8s.io/storageclasses": _storage_class,
}

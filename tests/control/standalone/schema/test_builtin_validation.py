"""Built-in kinds by the `Schemas` interface: decoding, defaults, and errors about invalid objects."""

# ruff: noqa: E501 - tables of messages, one case per line

import copy
from typing import Any

import pytest

from control.standalone.errors import StatusError
from control.standalone.kinds import BUILTIN, Kinds, ResourceKind
from control.standalone.schema import KindSchemas
from tests.present import present

SCHEMAS = KindSchemas()
KINDS = Kinds()
BATCH_CPU = "kubernetes.io/batch-cpu"


def run(key: str, obj: dict[str, Any], old: dict[str, Any] | None = None, subresource: str = "") -> list[str]:
    """Decode, default and validate like the registry; returns the errors."""
    kind = KINDS.get(key)
    assert kind is not None
    SCHEMAS.unknown_fields(kind, kind.versions[0], obj)
    SCHEMAS.default(kind, kind.versions[0], obj)
    return [str(e) for e in SCHEMAS.validate(present(kind), present(kind).versions[0], obj, old, subresource)]


def pod(container: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    containers = [{"name": "c", "image": "i", **(container or {})}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": containers, **spec}}


C = "spec.containers[0]"
LABEL = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with "
    "an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
QUANTITY = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"


def resources(requests: dict[str, Any] | None = None, limits: dict[str, str] | None = None) -> dict[str, Any]:
    return pod({"resources": {"requests": requests or {}, "limits": limits or {}}})


PODS = {
    "fine": (pod(), []),
    "no containers": ({"spec": {}}, ["spec.containers: Required value"]),
    "no name": (pod({"name": ""}), [f"{C}.name: Required value"]),
    "no image": (pod({"image": ""}), [f"{C}.image: Required value"]),
    "bad name": (pod({"name": "A_b"}), [f'{C}.name: Invalid value: "A_b": {LABEL}']),
    "same name": (pod(containers=[{"name": "a", "image": "i"}] * 2), ['spec.containers[1].name: Duplicate value: "a"']),
    "same name as init": (pod(initContainers=[{"name": "c", "image": "i"}]), ['spec.initContainers[0].name: Duplicate value: "c"']),
    "privileged without escalation": (pod({"securityContext": {"privileged": True, "allowPrivilegeEscalation": False}}), [
        f'{C}.securityContext: Invalid value: {{"Capabilities":null,"Privileged":true,"SELinuxOptions":null,"WindowsOptions":null,'
        '"RunAsUser":null,"RunAsGroup":null,"RunAsNonRoot":null,"ReadOnlyRootFilesystem":null,"AllowPrivilegeEscalation":false,'
        '"ProcMount":null,"SeccompProfile":null,"AppArmorProfile":null}: cannot set `allowPrivilegeEscalation` to false and `privileged` to true']),
    "malformed quantity": (resources({"cpu": "lots"}), [f'{C}.resources.requests[cpu]: Invalid value: "lots": {QUANTITY}']),
    "negative": (resources({"cpu": "-1"}), [f'{C}.resources.requests[cpu]: Invalid value: "-1": must be greater than or equal to 0']),
    "over the limit": (resources({"cpu": "2"}, {"cpu": "1500m"}), [f'{C}.resources.requests: Invalid value: "2": must be less than or equal to cpu limit of 1500m']),
    "unknown resource": (resources({}, {"gpu": "1"}), [f'{C}.resources.{part}[gpu]: Invalid value: "gpu": must be a standard {why}'
                                                      for part in ("limits", "requests")
                                                      for why in ("resource type or fully qualified", "resource for containers")]),
    "batch resources may be overcommitted": (resources({BATCH_CPU: "500"}, {BATCH_CPU: "1k"}), []),
    "extended resources come whole": (resources({}, {"example.org/gpu": "500m"}), [f'{C}.resources.limits[example.org/gpu]: Invalid value: "500m": must be an integer',
                                                                                  f'{C}.resources.requests[example.org/gpu]: Invalid value: "500m": must be an integer']),
    "extended resources need a limit": (resources({"example.org/gpu": "1"}), [f"{C}.resources.limits: Required value: Limit must be set for non overcommitable resources"]),
    "extended resources equal": (resources({"example.org/gpu": "1"}, {"example.org/gpu": "2"}), [f'{C}.resources.requests: Invalid value: "1": must be equal to example.org/gpu limit of 2']),
    "port": (pod({"ports": [{"containerPort": 70000}]}), [f"{C}.ports[0].containerPort: Invalid value: 70000: must be between 1 and 65535, inclusive"]),
    "no port": (pod({"ports": [{}]}), [f"{C}.ports[0].containerPort: Required value"]),
    "pull policy": (pod({"imagePullPolicy": "Maybe"}), [f'{C}.imagePullPolicy: Unsupported value: "Maybe": supported values: "Always", "IfNotPresent", "Never"']),
    "restart policy": (pod(restartPolicy="Sometimes"), ['spec.restartPolicy: Unsupported value: "Sometimes": supported values: "Always", "OnFailure", "Never"']),
    "a negative grace period means one second": (pod(terminationGracePeriodSeconds=-1), []),
    "two handlers": (pod({"livenessProbe": {"exec": {"command": ["a"]}, "tcpSocket": {"port": 1}}}), [f"{C}.livenessProbe.tcpSocket: Forbidden: may not specify more than 1 handler type"]),
    "empty hook": (pod({"lifecycle": {"preStop": {}}}), [f"{C}.lifecycle.preStop: Required value: must specify a handler type"]),
    "liveness threshold": (pod({"livenessProbe": {"exec": {"command": ["a"]}, "successThreshold": 2}}), [f"{C}.livenessProbe.successThreshold: Invalid value: 2: must be 1"]),
    "port name": (pod({"ports": [{"containerPort": 1, "name": "UPPER"}]}), [f'{C}.ports[0].name: Invalid value: "UPPER": must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)']),
    "field path": (pod({"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.x"}}}]}), [f'{C}.env[0].valueFrom.fieldRef.fieldPath: Invalid value: "spec.x": error converting fieldPath: field label not supported: spec.x']),
    "user": (pod(securityContext={"runAsUser": -1}), ["spec.securityContext.runAsUser: Invalid value: -1: must be between 0 and 2147483647, inclusive"]),
    "ephemeral at creation": (pod(ephemeralContainers=[{"name": "e", "image": "i"}]), ["spec.ephemeralContainers: Forbidden: cannot be set on create"]),
    "host path": (pod(volumes=[{"name": "v", "hostPath": {"path": "/", "type": "X"}}]), ['spec.volumes[0].hostPath.type: Unsupported value: "X": supported values: "", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"']),
    "spread without a key": (pod(topologySpreadConstraints=[{"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}]), ["spec.topologySpreadConstraints[0].topologyKey: Required value: can not be empty"]),
    "mount of nothing": (pod({"volumeMounts": [{"name": "v", "mountPath": "/v"}]}), [f'{C}.volumeMounts[0].name: Not found: "v"']),
    "mounts collide": (pod({"volumeMounts": [{"name": "v", "mountPath": "/v"}] * 2}, volumes=[{"name": "v"}]), [f'{C}.volumeMounts[1].mountPath: Invalid value: "/v": must be unique']),
    "gated but bound": (pod(nodeName="n", schedulingGates=[{"name": "g"}]), ["spec.nodeName: Forbidden: cannot be set until all schedulingGates have been cleared"]),
    "toleration": (pod(tolerations=[{"key": "k", "operator": "Maybe"}]), ['spec.tolerations[0].operator: Unsupported value: "Maybe": supported values: "Equal", "Exists"']),
    "overhead": (pod(overhead={"cpu": "x"}), [f'spec.overhead[cpu]: Invalid value: "x": {QUANTITY}']),
}  # fmt: skip


@pytest.mark.parametrize(("obj", "want"), PODS.values(), ids=PODS.keys())
def test_pods(obj: dict[str, Any], want: list[str]) -> None:
    assert run("/pods", copy.deepcopy(obj)) == want


def test_pod_defaults() -> None:
    obj = pod({"image": "web:1.2", "ports": [{"containerPort": 80}], "resources": {"limits": {"cpu": 1, "memory": "1024Mi"}},
               "livenessProbe": {"httpGet": {"port": 80}}}, volumes=[{"name": "v"}])  # fmt: skip
    assert run("/pods", obj) == []
    spec = obj["spec"]
    want = {"restartPolicy": "Always", "dnsPolicy": "ClusterFirst", "terminationGracePeriodSeconds": 30,
            "schedulerName": "default-scheduler", "enableServiceLinks": True, "securityContext": {}}  # fmt: skip
    assert want.items() <= spec.items()
    container = spec["containers"][0]
    assert container["imagePullPolicy"] == "IfNotPresent"
    assert container["ports"] == [{"containerPort": 80, "protocol": "TCP"}]
    assert container["resources"] == {
        "limits": {"cpu": "1", "memory": "1Gi"},
        "requests": {"cpu": "1", "memory": "1Gi"},
    }
    assert container["livenessProbe"]["httpGet"] == {"port": 80, "path": "/", "scheme": "HTTP"}
    assert spec["volumes"] == [{"name": "v", "emptyDir": {}}]


@pytest.mark.parametrize(
    ("image", "want"),
    [("a", "Always"), ("a:latest", "Always"), ("h:5000/a", "Always"), ("h:5000/a:1", "IfNotPresent"), ("a@sha256:1", "IfNotPresent")],
)  # fmt: skip
def test_pull_policy_follows_the_tag(image: str, want: str) -> None:
    obj = pod({"image": image})
    run("/pods", obj)
    assert obj["spec"]["containers"][0]["imagePullPolicy"] == want


@pytest.mark.parametrize("kind", BUILTIN, ids=lambda kind: kind.key)
def test_defaulting_twice_is_defaulting_once(kind: ResourceKind) -> None:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    obj = {"metadata": {"name": "x"}, "spec": {"template": template, "ports": [{"port": 1}]}}
    SCHEMAS.unknown_fields(kind, kind.versions[0], obj)
    SCHEMAS.default(kind, kind.versions[0], obj)
    once = copy.deepcopy(obj)
    SCHEMAS.default(kind, kind.versions[0], obj)
    assert obj == once


def changed(**spec: Any) -> list[str]:
    obj = pod()
    run("/pods", obj)
    new = copy.deepcopy(obj)
    new["spec"].update(spec)
    return run("/pods", new, obj)


def test_the_mutable_fields_of_a_pod() -> None:
    message = "spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`"
    assert changed(containers=[{"name": "c", "image": "other:2", "imagePullPolicy": "Always"}]) == []
    assert changed(activeDeadlineSeconds=5) == []
    assert changed(tolerations=[{"key": "new", "operator": "Exists"}]) == []
    (complaint,) = changed(hostNetwork=True)
    assert complaint.startswith(message)
    (complaint,) = changed(nodeSelector={"a": "b"})
    assert complaint.startswith(message)
    (complaint,) = changed(schedulingGates=[{"name": "g"}])
    assert "only deletion is allowed" in complaint


def test_the_node_selection_of_a_gated_pod_may_change() -> None:
    obj = pod(schedulingGates=[{"name": "g"}])
    run("/pods", obj)
    new = copy.deepcopy(obj)
    new["spec"]["nodeSelector"] = {"a": "b"}
    del new["spec"]["schedulingGates"]
    assert run("/pods", new, obj) == []


def test_subresource_writes_are_not_validated_as_the_whole_object() -> None:
    obj = pod()
    run("/pods", obj)
    assert run("/pods", {**obj, "spec": {**obj["spec"], "nodeName": "n"}}, obj, "binding") == []
    assert run("/pods", {"spec": {}}, obj, "status") == []


def workload(**spec: Any) -> dict[str, Any]:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    return {"kind": "Deployment", "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template, **spec}}


RBAC = "rbac.authorization.k8s.io"
OTHERS = {
    "deployment": ("apps/deployments", workload(), []),
    "no selector": ("apps/deployments", {"kind": "Deployment", "spec": {"template": workload()["spec"]["template"]}}, ["spec.selector: Required value"]),
    "selector misses": ("apps/deployments", workload(selector={"matchLabels": {"a": "c"}}), ['spec.template.metadata.labels: Invalid value: {"a":"b"}: `selector` does not match template `labels`']),
    "replicas": ("apps/deployments", workload(replicas=-1), ["spec.replicas: Invalid value: -1: must be greater than or equal to 0"]),
    "bad container in a template": ("apps/deployments", workload(template={"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c"}]}}), ["spec.template.spec.containers[0].image: Required value"]),
    "job restarts": ("batch/jobs", {"spec": {"template": workload()["spec"]["template"]}}, ['spec.template.spec.restartPolicy: Required value: valid values: "OnFailure", "Never"']),
    "config key": ("/configmaps", {"data": {"a b": "c"}}, ["data[a b]: Invalid value: \"a b\": a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"]),
    "config size": ("/configmaps", {"data": {"a": "x" * (2**20 + 1)}}, ["[]: Too long: may not be more than 1048576 bytes"]),
    "secret base64": ("/secrets", {"kind": "Secret", "type": "Opaque", "data": {"a": "%"}}, ['data[a]: Invalid value: "%": illegal base64 data']),
    "secret type": ("/secrets", {"kind": "Secret", "type": "kubernetes.io/tls", "data": {"tls.crt": ""}}, ["data[tls.key]: Required value"]),
    "node taint": ("/nodes", {"spec": {"taints": [{"key": "k", "effect": "Maybe"}]}}, ['metadata.taints[0].effect: Unsupported value: "Maybe": supported values: "NoSchedule", "PreferNoSchedule", "NoExecute"']),
    "node capacity": ("/nodes", {"status": {"capacity": {"cpu": "many"}}}, [f'status.capacity[cpu]: Invalid value: "many": {QUANTITY}']),
    "lease": ("coordination.k8s.io/leases", {"spec": {"leaseDurationSeconds": 0}}, ["spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0"]),
    "budget": ("policy/poddisruptionbudgets", {"spec": {"minAvailable": 1, "maxUnavailable": 1}}, ['spec: Invalid value: {"MinAvailable":1,"Selector":null,"MaxUnavailable":1,"UnhealthyPodEvictionPolicy":null}: minAvailable and maxUnavailable cannot be both set']),
    "budget share": ("policy/poddisruptionbudgets", {"spec": {"minAvailable": "half"}}, ["spec.minAvailable: Invalid value: \"half\": a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')"]),
    "priority": ("scheduling.k8s.io/priorityclasses", {"metadata": {"name": "x"}, "value": 2000000000}, ["value: Forbidden: maximum allowed value of a user defined priority is 1000000000"]),
    "system priority": ("scheduling.k8s.io/priorityclasses", {"metadata": {"name": "system-x"}, "value": 1}, ["metadata.name: Forbidden: priority class names with 'system-' prefix are reserved for system use only. error: system-x is not a known system priority class"]),
    "role verbs": (f"{RBAC}/roles", {"kind": "Role", "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": []}]}, ["rules[0].verbs: Required value: verbs must contain at least one value"]),
    "role ref": (f"{RBAC}/clusterrolebindings", {"kind": "ClusterRoleBinding", "roleRef": {"kind": "Role", "name": "x"}}, ['roleRef.kind: Unsupported value: "Role": supported values: "ClusterRole"']),
    "subject": (f"{RBAC}/clusterrolebindings", {"kind": "ClusterRoleBinding", "roleRef": {"kind": "ClusterRole", "name": "x"}, "subjects": [{"kind": "ServiceAccount", "name": "a"}]}, ["subjects[0].namespace: Required value"]),
    "subject of a namespace": (f"{RBAC}/rolebindings", {"roleRef": {"kind": "Role", "name": "x"}, "subjects": [{"kind": "ServiceAccount", "name": "a"}]}, []),
    "controller": ("networking.k8s.io/ingressclasses", {"spec": {}}, ["spec.controller: Required value"]),
    "revision": ("apps/controllerrevisions", {"revision": 1}, ["data: Required value: data is mandatory"]),
    "service": ("/services", {"spec": {"ports": [{"port": 0}]}}, ["spec.ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive", "spec.ports[0].targetPort: Invalid value: 0: must be between 1 and 65535, inclusive"]),
    "webhook": ("admissionregistration.k8s.io/validatingwebhookconfigurations", {"webhooks": [{"name": "a.b.c", "clientConfig": {"url": "http://x"}, "admissionReviewVersions": ["v1"], "sideEffects": "None"}]}, ["webhooks[0].clientConfig.url: Invalid value: \"http://x\": 'https' is the only allowed URL scheme"]),
}  # fmt: skip


@pytest.mark.parametrize(("key", "obj", "want"), OTHERS.values(), ids=OTHERS.keys())
def test_other_kinds(key: str, obj: dict[str, Any], want: list[str]) -> None:
    assert run(key, copy.deepcopy(obj)) == want


def test_selectors_and_secret_types_do_not_change() -> None:
    assert run("apps/deployments", workload(), workload(selector={"matchLabels": {"x": "y"}})) == [
        'spec.selector: Invalid value: {"matchLabels":{"a":"b"}}: field is immutable'
    ]
    assert run("/secrets", {"type": "a"}, {"type": "b"}) == ['type: Invalid value: "a": field is immutable']


MALFORMED = {
    "string for integer": (pod(terminationGracePeriodSeconds="soon"), "json: cannot unmarshal string into Go struct field Pod.spec.terminationGracePeriodSeconds of type int64"),
    "object for list": (pod(containers={}), "json: cannot unmarshal object into Go struct field Pod.spec.containers of type slice"),
    "number for string": (pod({"image": 1}), r"json: cannot unmarshal number into Go struct field Pod.spec.containers\[0\].image of type string"),
    "list for quantity": (resources({"cpu": []}), r"cannot unmarshal array into Go struct field Pod.spec.containers\[0\].resources.requests.cpu of type resource.Quantity"),
    "float for int or string": (pod({"livenessProbe": {"httpGet": {"port": 1.5}}}), "cannot unmarshal number into Go struct field .*port"),
}  # fmt: skip


@pytest.mark.parametrize(("obj", "message"), MALFORMED.values(), ids=MALFORMED.keys())
def test_wrong_types_are_rejected_with_gos_messages(obj: dict[str, Any], message: str) -> None:
    with pytest.raises(StatusError, match=message) as caught:
        SCHEMAS.unknown_fields(present(KINDS.get("/pods")), "v1", copy.deepcopy(obj))
    assert caught.value.code == 400
    assert caught.value.message.startswith('Pod in version "v1" cannot be handled as a Pod: ')


def test_nulls_are_removed_and_unknown_fields_reported() -> None:
    obj = pod(nodeName=None, nonsense=1)
    obj["metadata"]["creationTimestamp"] = None
    assert SCHEMAS.unknown_fields(present(KINDS.get("/pods")), "v1", obj) == ["spec.nonsense"]
    assert obj["spec"].keys() == {"containers"}
    assert obj["metadata"] == {"name": "p"}


TOLERATION = {"key": "a", "operator": "Exists", "effect": "NoExecute"}


@pytest.mark.parametrize(
    ("new", "allowed"),
    [
        ([TOLERATION], True),
        ([{**TOLERATION, "tolerationSeconds": 5}], True),
        ([{"operator": "Exists"}, TOLERATION], True),
        ([{**TOLERATION, "key": "b"}], False),
        ([], False),
    ],
)
def test_an_existing_toleration_may_only_get_other_seconds(new: list[dict[str, Any]], allowed: bool) -> None:
    old = pod(tolerations=[TOLERATION])
    run("/pods", old)
    updated = copy.deepcopy(old)
    updated["spec"]["tolerations"] = new
    errors = run("/pods", updated, old)
    assert [error.split(":")[0] for error in errors] == ([] if allowed else ["spec.tolerations"])

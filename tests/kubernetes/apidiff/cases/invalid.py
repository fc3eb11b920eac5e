# ruff: noqa: E501
"""Invalid objects that users write: what is wrong, and where."""

from __future__ import annotations

from typing import Any

from tests.kubernetes.apidiff.cases.objects import (
    CONTAINER,
    Json,
    config_map,
    core,
    group,
    namespace,
    pod,
    template,
    workload,
)
from tests.kubernetes.apidiff.exchange import MERGE_PATCH, Call

NS = namespace("invalid")
DRY = "?dryRun=All"


def container(**fields: Any) -> Json:
    return {"containers": [{**CONTAINER, **fields}]}


def secured(**fields: Any) -> Json:
    return container(securityContext=fields)


def volume(**source: Any) -> Json:
    return {"volumes": [{"name": "v", **source}]}


def mount(**fields: Any) -> Json:
    return {"volumes": [{"name": "v", "emptyDir": {}}], **container(volumeMounts=[{"name": "v", **fields}])}


def service(**spec: Any) -> Json:
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}], **spec}}


def node_terms(*terms: Json) -> Json:
    return {
        "affinity": {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
        }
    }


def anti_affinity(**fields: Any) -> Json:
    return {"affinity": {"podAntiAffinity": fields}}


PODS: dict[str, Json] = {
    "privileged without escalation": secured(privileged=True, allowPrivilegeEscalation=False),
    "SYS_ADMIN without escalation": secured(capabilities={"add": ["SYS_ADMIN"]}, allowPrivilegeEscalation=False),
    "CAP_SYS_ADMIN without escalation": secured(capabilities={"add": ["CAP_SYS_ADMIN"]}, allowPrivilegeEscalation=False),
    "unmasked without escalation": secured(procMount="Unmasked", allowPrivilegeEscalation=False),
    "unmasked in the host's user namespace": secured(procMount="Unmasked"),
    "bad procMount": secured(procMount="Some"),
    "bad container user": secured(runAsUser=-1, runAsGroup=-2),
    "bad seccomp profile": secured(seccompProfile={"type": "Some"}),
    "localhost seccomp without a file": secured(seccompProfile={"type": "Localhost"}),
    "seccomp with a file": secured(seccompProfile={"type": "RuntimeDefault", "localhostProfile": "a"}),
    "seccomp file outside": secured(seccompProfile={"type": "Localhost", "localhostProfile": "../a"}),
    "bad AppArmor profile": secured(appArmorProfile={"type": "Some"}),
    "localhost AppArmor without a name": secured(appArmorProfile={"type": "Localhost"}),
    "pod seccomp": {"securityContext": {"seccompProfile": {"type": "Localhost"}}},
    "bad supplemental group": {"securityContext": {"supplementalGroups": [-1]}},
    "bad group policy": {"securityContext": {"fsGroupChangePolicy": "Some"}},
    "shared processes with the host's": {"hostPID": True, "shareProcessNamespace": True},
    "the same sysctl twice": {"securityContext": {"sysctls": [{"name": "a.b", "value": "1"}, {"name": "a.b", "value": "2"}]}},
    "relative mount with a colon": mount(mountPath="/a:b"),
    "mount propagation": mount(mountPath="/a", mountPropagation="Some"),
    "bidirectional without privileges": mount(mountPath="/a", mountPropagation="Bidirectional"),
    "sub path outside": mount(mountPath="/a", subPath="../b"),
    "absolute sub path": mount(mountPath="/a", subPath="/b"),
    "two sub paths": mount(mountPath="/a", subPath="b", subPathExpr="c"),
    "the same mount path twice": {"volumes": [{"name": "v", "emptyDir": {}}], **container(volumeMounts=[
        {"name": "v", "mountPath": "/a"}, {"name": "v", "mountPath": "/a"}])},
    "host path outside": volume(hostPath={"path": "/a/../b"}),
    "host path without a path": volume(hostPath={}),
    "config map without a name": volume(configMap={}),
    "secret without a name": volume(secret={}),
    "config map item without a path": volume(configMap={"name": "a", "items": [{"key": "a"}]}),
    "config map item outside": volume(configMap={"name": "a", "items": [{"key": "a", "path": "../b"}]}),
    "bad mode": volume(configMap={"name": "a", "defaultMode": 4096}),
    "negative size of an empty directory": volume(emptyDir={"sizeLimit": "-1"}),
    "claim without a name": volume(persistentVolumeClaim={}),
    "bad downward path": volume(downwardAPI={"items": [{"path": "a", "fieldRef": {"fieldPath": "spec.nodeName"}}]}),
    "downward item of nothing": volume(downwardAPI={"items": [{"path": "a"}]}),
    "projected sources of nothing": volume(projected={"sources": [{}]}),
    "token that expires at once": volume(projected={"sources": [{"serviceAccountToken": {"path": "t", "expirationSeconds": 5}}]}),
    "bad volume name": {"volumes": [{"name": "A_b", "emptyDir": {}}]},
    "environment from nothing": container(env=[{"name": "A", "valueFrom": {}}]),
    "environment from two": container(env=[{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"},
                                                                      "configMapKeyRef": {"name": "a", "key": "b"}}}]),
    "environment without a key": container(env=[{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "a"}}}]),
    "environment from a bad key": container(env=[{"name": "A", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b c"}}}]),
    "environment from a bad resource": container(env=[{"name": "A", "valueFrom": {"resourceFieldRef": {"resource": "limits.x"}}}]),
    "environment from no resource": container(env=[{"name": "A", "valueFrom": {"resourceFieldRef": {}}}]),
    "environment from a bad divisor": container(env=[{"name": "A", "valueFrom": {"resourceFieldRef": {
        "resource": "limits.cpu", "divisor": "7"}}}]),
    "unnamed environment": container(env=[{"value": "a"}]),
    "all of nothing": container(envFrom=[{}]),
    "all of an unnamed map": container(envFrom=[{"configMapRef": {}}]),
    "port over the range": container(ports=[{"containerPort": 70000}]),
    "host port over the range": container(ports=[{"containerPort": 1, "hostPort": 70000}]),
    "bad protocol": container(ports=[{"containerPort": 1, "protocol": "ICMP"}]),
    "two ports of a name": container(ports=[{"containerPort": 1, "name": "a"}, {"containerPort": 2, "name": "a"}]),
    "the same host port twice": container(ports=[{"containerPort": 1, "hostPort": 5}, {"containerPort": 2, "hostPort": 5}]),
    "host network with another host port": {"hostNetwork": True, **container(ports=[{"containerPort": 1, "hostPort": 2}])},
    "http probe without a port": container(livenessProbe={"httpGet": {"path": "/"}}),
    "http probe of a bad port": container(livenessProbe={"httpGet": {"port": 70000}}),
    "http probe of a bad port name": container(livenessProbe={"httpGet": {"port": "A_b"}}),
    "http probe of a bad scheme": container(livenessProbe={"httpGet": {"port": 1, "scheme": "ftp"}}),
    "probe of no command": container(livenessProbe={"exec": {}}),
    "probe of a bad tcp port": container(readinessProbe={"tcpSocket": {"port": 0}}),
    "probe of a bad grpc port": container(readinessProbe={"grpc": {"port": 0}}),
    "readiness grace period": container(readinessProbe={"exec": {"command": ["a"]}, "terminationGracePeriodSeconds": 1}),
    "zero grace period of a probe": container(livenessProbe={"exec": {"command": ["a"]}, "terminationGracePeriodSeconds": 0}),
    "probe of an init container": {"initContainers": [{"name": "i", "image": "i", "livenessProbe": {"exec": {"command": ["a"]}}}]},
    "hook of an init container": {"initContainers": [{"name": "i", "image": "i", "lifecycle": {"preStop": {"exec": {"command": ["a"]}}}}]},
    "init container of a taken name": {"initContainers": [{"name": "c", "image": "i"}]},
    "negative sleep": container(lifecycle={"preStop": {"sleep": {"seconds": -1}}}),
    "bad message policy": container(terminationMessagePolicy="Some"),
    "blank image": container(image=" i "),
    "bad container restart policy": container(restartPolicy="Some"),
    "resource of a pod's spec": container(resources={"requests": {"pods": "1"}}),
    "bad resource name": container(resources={"limits": {"a.io/b c": "1"}}),
    "huge pages without cpu": container(resources={"limits": {"hugepages-2Mi": "2Mi"}}),
    "storage over limit": container(resources={"requests": {"ephemeral-storage": "2Gi"}, "limits": {"ephemeral-storage": "1Gi"}}),
    "batch cpu over limit": container(resources={"requests": {"kubernetes.io/batch-cpu": "2k"}, "limits": {"kubernetes.io/batch-cpu": "1k"}}),
    "batch request only": container(resources={"requests": {"kubernetes.io/batch-cpu": "1k"}}),
    "unequal gpus": container(resources={"requests": {"koordinator.sh/gpu": "50"}, "limits": {"koordinator.sh/gpu": "100"}}),
    "another claim": {"resourceClaims": [{"name": "b", "resourceClaimName": "b"}, {"name": "c", "resourceClaimName": "b"}],
                      **container(resources={"claims": [{"name": "a"}]})},
    "claim of both": {"resourceClaims": [{"name": "a", "resourceClaimName": "b", "resourceClaimTemplateName": "c"}]},
    "undeclared claim": container(resources={"claims": [{"name": "a"}]}),
    "the same claim twice": {"resourceClaims": [{"name": "a", "resourceClaimName": "b"}, {"name": "a", "resourceClaimName": "b"}]},
    "claim of nothing": {"resourceClaims": [{"name": "a"}]},
    "bad resize policy": container(resizePolicy=[{"resourceName": "gpu", "restartPolicy": "Some"}]),
    "toleration of nothing": {"tolerations": [{"value": "a"}]},
    "toleration with a bad key": {"tolerations": [{"key": "a b", "operator": "Exists"}]},
    "toleration with a bad effect": {"tolerations": [{"key": "a", "operator": "Exists", "effect": "Some"}]},
    "toleration seconds without effect": {"tolerations": [{"key": "a", "operator": "Exists", "tolerationSeconds": 5}]},
    "node affinity without terms": node_terms(),
    "node affinity without values": node_terms({"matchExpressions": [{"key": "a", "operator": "In"}]}),
    "node affinity with a bad key": node_terms({"matchExpressions": [{"key": "a b", "operator": "Exists"}]}),
    "node affinity with a text over": node_terms({"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["x"]}]}),
    "node affinity by another field": node_terms({"matchFields": [{"key": "metadata.uid", "operator": "In", "values": ["x"]}]}),
    "weight of nothing": {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
        {"weight": 0, "preference": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}}]}}},
    "anti-affinity with a bad selector": anti_affinity(requiredDuringSchedulingIgnoredDuringExecution=[
        {"topologyKey": "z", "labelSelector": {"matchExpressions": [{"key": "a", "operator": "Some"}]}}]),
    "anti-affinity with a bad label": anti_affinity(requiredDuringSchedulingIgnoredDuringExecution=[
        {"topologyKey": "z", "labelSelector": {"matchLabels": {"a": "b c"}}}]),
    "anti-affinity of a large weight": anti_affinity(preferredDuringSchedulingIgnoredDuringExecution=[
        {"weight": 101, "podAffinityTerm": {"topologyKey": "z"}}]),
    "the same spread twice": {"topologySpreadConstraints": 2 * [{"maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule"}]},
    "spread over a minimum of none": {"topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule", "minDomains": 0}]},
    "spread with a bad policy": {"topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule", "nodeTaintsPolicy": "Some"}]},
    "bad subdomain": {"subdomain": "A_b"},
    "bad account name": {"serviceAccountName": "A_b"},
    "unnamed pull secret": {"imagePullSecrets": [{}]},
    "bad host alias": {"hostAliases": [{"ip": "x", "hostnames": ["a"]}]},
    "DNS policy without servers": {"dnsPolicy": "None"},
    "bad DNS server": {"dnsConfig": {"nameservers": ["x"]}},
    "bad readiness gate": {"readinessGates": [{"conditionType": "a b"}]},
    "bad operating system": {"os": {"name": "plan9"}},
    "bad gate": {"schedulingGates": [{"name": "a b"}]},
    "bad preemption policy": {"preemptionPolicy": "Some"},
    "bad scheduler name": {"schedulerName": "a b"},
    "priority class by a bad name": {"priorityClassName": "A_b"},
}  # fmt: skip
DEPLOYMENTS: dict[str, Json] = {
    "negative replicas": {"replicas": -1},
    "other labels": {"selector": {"matchLabels": {"app": "b"}}},
    "empty selector": {"selector": {}},
    "bad selector": {"selector": {"matchExpressions": [{"key": "app", "operator": "In"}]}},
    "selector with a bad label": {"selector": {"matchLabels": {"app": "a b"}}},
    "once": {"template": template(restartPolicy="Never")},
    "with a deadline": {"template": template(activeDeadlineSeconds=5)},
    "privileged without escalation": {"template": template(**secured(privileged=True, allowPrivilegeEscalation=False))},
    "template with a bad label": {"template": {**template(), "metadata": {"labels": {"app": "a", "b": "c d"}}}},
    "template with a bad annotation": {"template": {**template(), "metadata": {"labels": {"app": "a"}, "annotations": {"a b": "c"}}}},
    "no room to roll": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 0}}},
    "bad percentage": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "x"}}},
    "over all": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "101%"}}},
    "recreate with a roll": {"strategy": {"type": "Recreate", "rollingUpdate": {"maxSurge": 1}}},
    "bad strategy": {"strategy": {"type": "Some"}},
    "negative history": {"revisionHistoryLimit": -1},
    "negative seconds": {"minReadySeconds": -1},
    "deadline before ready": {"progressDeadlineSeconds": 5, "minReadySeconds": 10},
}  # fmt: skip
DAEMON_SETS: dict[str, Json] = {
    "privileged without escalation": {"template": template(**secured(privileged=True, allowPrivilegeEscalation=False))},
    "no room to roll": {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0}}},
    "surge and unavailable": {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 1}}},
    "bad strategy": {"updateStrategy": {"type": "Some"}},
    "once": {"template": template(restartPolicy="Never")},
}  # fmt: skip
STATEFUL_SETS: dict[str, Json] = {
    "bad policy": {"podManagementPolicy": "Some"},
    "bad strategy": {"updateStrategy": {"type": "Some"}},
    "negative partition": {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": -1}}},
    "negative replicas": {"replicas": -1},
}  # fmt: skip
SERVICES: dict[str, Json] = {
    "no ports": {"ports": []},
    "two unnamed ports": {"ports": [{"port": 80}, {"port": 81}]},
    "two ports of a name": {"ports": [{"port": 80, "name": "a"}, {"port": 81, "name": "a"}]},
    "the same port twice": {"ports": [{"port": 80, "name": "a"}, {"port": 80, "name": "b"}]},
    "port over the range": {"ports": [{"port": 70000}]},
    "bad target": {"ports": [{"port": 80, "targetPort": 70000}]},
    "bad target name": {"ports": [{"port": 80, "targetPort": "A_b"}]},
    "bad protocol": {"ports": [{"port": 80, "protocol": "ICMP"}]},
    "bad type": {"type": "Some"},
    "bad affinity": {"sessionAffinity": "Some"},
    "bad selector": {"selector": {"a b": "c"}},
    "selector with a bad value": {"selector": {"a": "b c"}},
    "external name of nothing": {"type": "ExternalName", "ports": []},
    "node port of a cluster's": {"ports": [{"port": 80, "nodePort": 30000}]},
    "bad external address": {"externalIPs": ["x"]},
    "bad traffic policy": {"type": "NodePort", "externalTrafficPolicy": "Some"},
    "bad cluster address": {"clusterIP": "x"},
}  # fmt: skip
JOB = {"template": template(restartPolicy="Never")}
JOBS: dict[str, Json] = {
    "negative parallelism": {"parallelism": -1},
    "negative retries": {"backoffLimit": -1},
    "always": {"template": template()},
    "bad mode": {"completionMode": "Some"},
    "bad replacement": {"podReplacementPolicy": "Some"},
}  # fmt: skip
BUDGETS: dict[str, Json] = {
    "both": {"minAvailable": 1, "maxUnavailable": 1},
    "negative": {"minAvailable": -1},
    "bad percentage": {"maxUnavailable": "x"},
    "over all": {"minAvailable": "101%"},
    "bad selector": {"selector": {"matchLabels": {"a": "b c"}}},
}  # fmt: skip


def named(kind: str, api: str, name: str, **rest: Any) -> Json:
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name}, **rest}


OTHERS: dict[str, tuple[str, Json]] = {
    "config map with a long key": (core(NS, "configmaps"), {**config_map("c"), "data": {"a" * 254: "b"}}),
    "config map with data twice": (core(NS, "configmaps"), {**config_map("c", a="b"), "binaryData": {"a": "Yg=="}}),
    "config map over 1 MiB": (core(NS, "configmaps"), config_map("c", a="b" * (1024 * 1024 + 1))),
    "secret of a certificate without a key": (core(NS, "secrets"), named("Secret", "v1", "s", type="kubernetes.io/tls", data={"tls.crt": ""})),
    "secret of a wrong registry's": (core(NS, "secrets"), named("Secret", "v1", "s", type="kubernetes.io/dockerconfigjson", data={".dockerconfigjson": "eA=="})),
    "secret of an account's token": (core(NS, "secrets"), named("Secret", "v1", "s", type="kubernetes.io/service-account-token")),
    "class of a large value": ("/apis/scheduling.k8s.io/v1/priorityclasses", named("PriorityClass", "scheduling.k8s.io/v1", "large", value=2_000_000_000)),
    "class of the system": ("/apis/scheduling.k8s.io/v1/priorityclasses", named("PriorityClass", "scheduling.k8s.io/v1", "system-mine", value=1)),
    "role without verbs": (group("rbac.authorization.k8s.io/v1", NS, "roles"), named("Role", "rbac.authorization.k8s.io/v1", "r", rules=[{"apiGroups": [""], "resources": ["pods"], "verbs": []}])),
    "binding without a role": (group("rbac.authorization.k8s.io/v1", NS, "rolebindings"), named("RoleBinding", "rbac.authorization.k8s.io/v1", "r", roleRef={}, subjects=[])),
    "binding of a bad subject": (group("rbac.authorization.k8s.io/v1", NS, "rolebindings"), named("RoleBinding", "rbac.authorization.k8s.io/v1", "r", roleRef={
        "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"}, subjects=[{"kind": "Some", "name": "a"}])),
    "lease of no duration": (group("coordination.k8s.io/v1", NS, "leases"), named("Lease", "coordination.k8s.io/v1", "l", spec={"holderIdentity": "a", "leaseDurationSeconds": 0})),
    "namespace of a bad name": ("/api/v1/namespaces", named("Namespace", "v1", "A_b")),
    "namespace of a long name": ("/api/v1/namespaces", named("Namespace", "v1", "a" * 64)),
    "node with a bad taint": ("/api/v1/nodes", named("Node", "v1", "n", spec={"taints": [{"key": "a b", "effect": "NoSchedule"}]})),
    "node with a taint's bad effect": ("/api/v1/nodes", named("Node", "v1", "n", spec={"taints": [{"key": "a", "effect": "Some"}]})),
    "node with a bad taint value": ("/api/v1/nodes", named("Node", "v1", "n", spec={"taints": [{"key": "a", "value": "b c", "effect": "NoSchedule"}]})),
    "quota of a bad resource": (core(NS, "resourcequotas"), named("ResourceQuota", "v1", "q", spec={"hard": {"cpu": "-1"}})),
    "webhook without a client": ("/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations", named(
        "ValidatingWebhookConfiguration", "admissionregistration.k8s.io/v1", "w", webhooks=[{"name": "a", "clientConfig": {}, "sideEffects": "Some", "admissionReviewVersions": []}])),
    "long label key": (core(NS, "configmaps"), config_map("c", {"a" * 64: "b"})),
    "long label": (core(NS, "configmaps"), config_map("c", {"a": "b" * 64})),
    "bad prefix of a label": (core(NS, "configmaps"), config_map("c", {"A_b/c": "d"})),
}  # fmt: skip
WIDGETS = group("invalid.example.com/v1", NS, "widgets")


def definition() -> Json:
    spec = {
        "type": "object", "required": ["size"],
        "properties": {
            "size": {"type": "integer", "minimum": 1, "maximum": 9}, "mode": {"type": "string", "enum": ["a", "b"]},
            "name": {"type": "string", "maxLength": 3, "pattern": "^[a-z]+$"},
            "many": {"type": "array", "maxItems": 1, "items": {"type": "string"}}, "at": {"type": "string", "format": "date-time"},
        },
    }  # fmt: skip
    schema = {"type": "object", "properties": {"spec": spec}}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"}
    spec_of_all = {"group": "invalid.example.com", "scope": "Namespaced", "names": names, "versions": [version]}
    return named("CustomResourceDefinition", "apiextensions.k8s.io/v1", "widgets.invalid.example.com", spec=spec_of_all)


WIDGET_SPECS: dict[str, Json] = {
    "without its size": {},
    "too small": {"size": 0},
    "too large": {"size": 10},
    "of a text": {"size": "1"},
    "of another mode": {"size": 1, "mode": "c"},
    "with a long name": {"size": 1, "name": "abcd"},
    "with a wrong name": {"size": 1, "name": "A"},
    "with too many": {"size": 1, "many": ["a", "b"]},
    "with numbers": {"size": 1, "many": [1]},
    "at a bad time": {"size": 1, "at": "x"},
}  # fmt: skip
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
CALLS = [
    *(Call(f"pod: {name}", "POST", core(NS, "pods") + DRY, pod("bad", **spec)) for name, spec in PODS.items()),
    *(Call(f"deployment: {name}", "POST", group("apps/v1", NS, "deployments") + DRY, workload("Deployment", "d", **spec))
      for name, spec in DEPLOYMENTS.items()),
    *(Call(f"daemon set: {name}", "POST", group("apps/v1", NS, "daemonsets") + DRY, workload("DaemonSet", "d", **spec))
      for name, spec in DAEMON_SETS.items()),
    *(Call(f"stateful set: {name}", "POST", group("apps/v1", NS, "statefulsets") + DRY, workload("StatefulSet", "d", **spec))
      for name, spec in STATEFUL_SETS.items()),
    *(Call(f"service: {name}", "POST", core(NS, "services") + DRY, service(**spec)) for name, spec in SERVICES.items()),
    *(Call(f"job: {name}", "POST", group("batch/v1", NS, "jobs") + DRY, named("Job", "batch/v1", "j", spec={**JOB, **spec}))
      for name, spec in JOBS.items()),
    *(Call(f"budget: {name}", "POST", group("policy/v1", NS, "poddisruptionbudgets") + DRY,
           named("PodDisruptionBudget", "policy/v1", "b", spec=spec)) for name, spec in BUDGETS.items()),
    *(Call(name, "POST", path + DRY, body) for name, (path, body) in OTHERS.items()),
    Call("define widgets", "POST", CRDS, definition(), compare=False),
    Call("widgets are served", "GET", WIDGETS, compare=False, until='"items"'),
    *(Call(f"widget {name}", "POST", WIDGETS, named("Widget", "invalid.example.com/v1", "w", spec=spec))
      for name, spec in WIDGET_SPECS.items()),
    Call("a valid map", "POST", core(NS, "configmaps"), {**config_map("fixed", a="b"), "immutable": True}, compare=False),
    Call("change a fixed map", "PATCH", core(NS, "configmaps", "fixed"), {"data": {"a": "c"}}, MERGE_PATCH),
    Call("unfix a map", "PATCH", core(NS, "configmaps", "fixed"), {"immutable": None}, MERGE_PATCH),
    Call("a valid deployment", "POST", group("apps/v1", NS, "deployments"), workload("Deployment", "fixed"), compare=False),
    Call("change a selector", "PATCH", group("apps/v1", NS, "deployments", "fixed"),
         {"spec": {"selector": {"matchLabels": {"app": "b"}}, "template": {"metadata": {"labels": {"app": "b"}}}}}, MERGE_PATCH),
    Call("delete the definition", "DELETE", CRDS + "/widgets.invalid.example.com", compare=False),
]  # fmt: skip

"""Objects of a cluster that runs Koordinator, with the names and values of its chart (spec 01 §6, §7; 02 §1.6)."""

from __future__ import annotations

import json
from typing import Any

from koordlet.api.encoding.crdgen import documents

Json = dict[str, Any]
SPACE = "koordinator-system"
PROFILE = {
    "schedulerName": "koord-scheduler",
    "pluginConfig": [
        {"name": "LoadAwareScheduling", "args": {"usageThresholds": {"cpu": 65, "memory": 95}}},
        {"name": "ElasticQuota", "args": {"quotaGroupNamespace": SPACE}},
    ],
    "plugins": {"score": {"enabled": [{"name": "LoadAwareScheduling", "weight": 1}]}},
}


def scheduler_config(profile: Json) -> str:
    return json.dumps(
        {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration", "profiles": [profile]}
    )


def workload(name: str, args: list[str], *, container: str = "", pod: Json | None = None) -> Json:
    own = {"name": container or name, "image": "koordinator/x:v1", "command": [f"/{name}"], "args": args}
    spec = {"containers": [{**own, **((pod or {}).pop("container", {}))}], **(pod or {})}
    selector = {"matchLabels": {"koord-app": name}}
    return {"metadata": {"name": name, "namespace": SPACE}, "spec": {"selector": selector, "template": {"spec": spec}}}


def koordlet(args: list[str]) -> Json:
    volume = {"name": "checkpoints", "hostPath": {"path": "/var/run/koordlet/prediction-checkpoints"}}
    mount = {"name": "checkpoints", "mountPath": "/prediction-checkpoints"}
    return workload("koordlet", args, pod={"volumes": [volume], "container": {"volumeMounts": [mount]}})


def binding(name: str, role: str, account: str) -> Json:
    subject = {"kind": "ServiceAccount", "name": account, "namespace": SPACE}
    return {"metadata": {"name": name}, "roleRef": {"kind": "ClusterRole", "name": role}, "subjects": [subject]}


def webhook(name: str, policy: str, namespace: str = SPACE) -> Json:
    service = {"name": "koordinator-webhook-service", "namespace": namespace}
    hook = {"name": "vpod.koordinator.sh", "failurePolicy": policy, "clientConfig": {"service": service}}
    return {"metadata": {"name": name}, "webhooks": [hook]}


def crds() -> list[Json]:
    """Those of this system, which are Koordinator's, as installed there, and one that this system does not have."""
    own = [
        {"metadata": document["metadata"], "status": {"storedVersions": [document["spec"]["versions"][0]["name"]]}}
        for document in documents().values()
    ]
    return [*own, {"metadata": {"name": "others.slo.koordinator.sh"}, "status": {"storedVersions": ["v1"]}}]


def objects() -> dict[str, Json]:
    """By URL path."""
    rbac, hooks = "/apis/rbac.authorization.k8s.io/v1", "/apis/admissionregistration.k8s.io/v1"
    gates = "--feature-gates=BECPUEvict=true,BEMemoryEvict=true,CgroupReconcile=true,Accelerators=true"
    slo = {"colocation-config": '{"enable": true}', "cpu-burst-config": "{", "vendor-config": "{}"}
    return {
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions": {"items": crds()},
        f"/api/v1/namespaces/{SPACE}/configmaps/slo-controller-config": {"data": slo},
        f"/api/v1/namespaces/{SPACE}/configmaps/koord-scheduler-config": {
            "data": {"koord-scheduler-config": scheduler_config(PROFILE)}
        },
        f"/apis/apps/v1/namespaces/{SPACE}/deployments": {
            "items": [
                workload("koord-manager", ["--enable-leader-election", "--metrics-addr=:8080", "--feature-gates="]),
                workload("koord-scheduler", ["--port=10251", "--config=/config/koord-scheduler-config"]),
            ]
        },
        f"/apis/apps/v1/namespaces/{SPACE}/daemonsets": {
            "items": [koordlet(["-addr=:9316", gates, "--tsdb-path=/metric-data/", "--no-such-flag=1"])]
        },
        f"{rbac}/clusterrolebindings": {
            "items": [
                binding("koordlet-rolebinding", "koordlet-role", "koordlet"),
                binding("koord-manager", "koord-manager", "koord-manager"),
                binding("other", "view", "somebody"),
            ]
        },
        f"{rbac}/namespaces/{SPACE}/rolebindings": {"items": []},
        f"{hooks}/mutatingwebhookconfigurations": {
            "items": [
                webhook("koordinator-mutating-webhook-configuration", "Ignore"),
                webhook("foreign", "Fail", "elsewhere"),
            ]
        },
        f"{hooks}/validatingwebhookconfigurations": {
            "items": [webhook("koordinator-validating-webhook-configuration", "Fail")]
        },
    }

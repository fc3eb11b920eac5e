"""Every webhook over real HTTPS, called by an API server as registered: admission, mutation, refusal messages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from control.manager.webhookserver.admission import WebhookRequest
from koordlet.api.core import Namespace, Node, Pod
from koordlet.api.crs.config import ClusterColocationProfile
from tests.control.manager.conftest import WebhookCluster
from tests.present import present

PODS = "/api/v1/namespaces/default/pods"
NODES = "/api/v1/nodes"
PROFILES = "/apis/config.koordinator.sh/v1alpha1/clustercolocationprofiles"
RESERVATIONS = "/apis/scheduling.koordinator.sh/v1alpha1/reservations"
REGISTERED = "/apis/admissionregistration.k8s.io/v1"
QOS = "koordinator.sh/qosClass"
ENABLED = {"koordinator.sh/enable-colocation": "true"}


def pod(
    name: str, labels: dict[str, str] | None = None, requests: dict[str, str] | None = None, **spec: Any
) -> dict[str, Any]:
    resources = {"requests": requests, "limits": requests} if requests else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {"containers": [{"name": "app", "image": "busybox", "resources": resources}], **spec},
    }


def profile(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "config.koordinator.sh/v1alpha1",
        "kind": "ClusterColocationProfile",
        "metadata": {"name": name},
        "spec": spec,
    }


def measured(cluster: WebhookCluster, family: str, **labels: Any) -> float:
    return cluster.manager.context.internal.get_sample_value(f"koord_manager_webhook_{family}", labels)  # type: ignore[return-value]


async def add_profile(cluster: WebhookCluster, name: str, **spec: Any) -> None:
    await cluster.create(PROFILES, profile(name, **spec))
    await cluster.until(lambda: cluster.cached(ClusterColocationProfile, name))


async def test_pods_become_best_effort_with_batch_resources(
    webhook_cluster: Callable[..., Awaitable[WebhookCluster]],
) -> None:
    cluster = await webhook_cluster()
    await add_profile(
        cluster,
        "colocation",
        selector={"matchLabels": ENABLED},
        namespaceSelector={"matchLabels": ENABLED},
        qosClass="BE",
        priorityClassName="koord-batch",
        koordinatorPriority=1000,
        labels={"koordinator.sh/mutated": "true"},
        patch={"spec": {"terminationGracePeriodSeconds": 7}},
    )
    await cluster.merge("/api/v1/namespaces/default", {"metadata": {"labels": ENABLED}})
    namespaces = cluster.manager.context.caches.informer(Namespace)
    await cluster.until(lambda: present(namespaces.get("default")).metadata.labels.items() >= ENABLED.items())

    plain = await cluster.create(PODS, pod("plain", requests={"cpu": "1"}))
    assert QOS not in plain["metadata"].get("labels", {})
    assert plain["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "1"}

    created = await cluster.create(PODS, pod("be", ENABLED, {"cpu": "1", "memory": "3456Mi"}))
    batch = {"kubernetes.io/batch-cpu": "1k", "kubernetes.io/batch-memory": "3456Mi"}
    assert created["metadata"]["labels"].items() >= {QOS: "BE", "koordinator.sh/priority": "1000"}.items()
    assert created["spec"]["containers"][0]["resources"] == {"requests": batch, "limits": batch}
    assert (created["spec"]["priority"], created["spec"]["priorityClassName"]) == (5000, "koord-batch")
    assert created["spec"]["terminationGracePeriodSeconds"] == 7
    text = created["metadata"]["annotations"]["node.koordinator.sh/extended-resource-spec"]
    assert json.loads(text) == {"containers": {"app": {"limits": batch, "requests": batch}}}

    # A namespace that was made a moment ago is read from the API server.
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "fresh", "labels": ENABLED}}
    await cluster.create("/api/v1/namespaces", space)
    fresh = await cluster.create("/api/v1/namespaces/fresh/pods", pod("be", ENABLED, {"cpu": "1"}))
    assert fresh["metadata"]["labels"][QOS] == "BE"

    # A missing PriorityClass of a profile refuses the pod; the error names both.
    await add_profile(cluster, "wrong", selector={"matchLabels": {"w": "1"}}, priorityClassName="no-such")
    error = await cluster.refused(cluster.create(PODS, pod("w", {"w": "1"})))
    assert error.status == 500
    assert 'ClusterColocationProfile wrong: spec.priorityClassName: PriorityClass "no-such" not found' in str(error)


async def test_pods_that_do_not_fit_are_refused(webhook_cluster: Callable[..., Awaitable[WebhookCluster]]) -> None:
    cluster = await webhook_cluster()
    error = await cluster.refused(cluster.create(PODS, pod("a", {QOS: "BE"}, priorityClassName="koord-prod")))
    assert error.status == 400
    assert 'admission webhook "vpod.koordinator.sh" denied the request: ' in str(error)
    assert f"labels.{QOS}: Forbidden: {QOS}=BE and priorityClass=koord-prod cannot be used" in str(error)

    batch = {"kubernetes.io/batch-cpu": "1k"}
    error = await cluster.refused(cluster.create(PODS, pod("b", {}, batch, priorityClassName="koord-batch")))
    assert f"labels.{QOS}: Required value: a pod that requests kubernetes.io/batch-cpu" in str(error)

    shown = {"object_type": "pod", "operation": "CREATE", "plugin_name": "ClusterColocationProfile"}
    counted = "webhook_duration_milliseconds_count"
    assert measured(cluster, counted, webhook_type="validate", status="rejected", **shown) == 2
    assert measured(cluster, counted, webhook_type="mutate", status="allowed", **shown) == 2

    good = pod("c", {QOS: "BE"}, batch, priorityClassName="koord-batch")
    assert (await cluster.create(PODS, good))["metadata"]["labels"] == {QOS: "BE"}
    error = await cluster.refused(cluster.merge(f"{PODS}/c", {"metadata": {"labels": {QOS: None}}}))
    assert f'labels.{QOS}: Invalid value: "": field is immutable' in str(error)
    await cluster.merge(f"{PODS}/c", {"metadata": {"labels": {"other": "1"}}})

    gpus = pod("d", {}, {"koordinator.sh/gpu": "200"})
    created = await cluster.create(PODS, gpus)
    assert created["spec"]["containers"][0]["resources"]["requests"] == {
        "koordinator.sh/gpu-core": "200",
        "koordinator.sh/gpu-memory-ratio": "200",
        "koordinator.sh/gpu.shared": "2",
    }


async def test_enhanced_rules_and_devices_behind_their_gates(
    webhook_cluster: Callable[..., Awaitable[WebhookCluster]],
) -> None:
    gates = {"EnablePodEnhancedValidator": True, "ValidatePodDeviceResource": True}
    cluster = await webhook_cluster(gates, "--pod-enhanced-validator-reconcile-interval=0s")
    await cluster.create(PODS, pod("before"))
    await cluster.create(
        "/api/v1/namespaces/koordinator-system/configmaps",
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "pod-enhanced-validator-config"},
            "data": {"enable": "true", "rules": '[{"name":"team","requiredLabels":["team"]}]'},
        },
    )
    error = await cluster.refused(cluster.create(PODS, pod("a")))
    assert "metadata.labels: Required value: rule team requires the labels team" in str(error)
    await cluster.create(PODS, pod("b", {"team": ""}))
    wrong = {"koordinator.sh/gpu.shared": "2", "koordinator.sh/gpu-memory-ratio": "51"}
    error = await cluster.refused(cluster.create(PODS, pod("c", {"team": ""}, wrong)))
    assert "requests[koordinator.sh/gpu-memory-ratio]: Forbidden: 51 is not a multiple" in str(error)


async def test_bindings_by_others_are_refused(webhook_cluster: Callable[..., Awaitable[WebhookCluster]]) -> None:
    flags = ("--binding-admission-user-name=koord-scheduler", "--binding-admission-namespaces=*")
    cluster = await webhook_cluster({"BindingAdmissionWebhook": True}, *flags)
    await cluster.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}})
    for name, labels in (("a", {}), ("b", {"koordinator.sh/binding-admission-bypass": ""})):
        await cluster.create(PODS, pod(name, labels))
        await cluster.until(lambda name=name: cluster.cached(Pod, f"default/{name}"))  # type: ignore[misc]

    def bind(name: str) -> Awaitable[Any]:
        target = {"apiVersion": "v1", "kind": "Node", "name": "n"}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
        return cluster.create(f"{PODS}/{name}/binding", binding)

    error = await cluster.refused(bind("a"))
    assert error.status == 403
    assert "is not allowed to bind pod default/a" in str(error)
    assert measured(cluster, "binding_admission_decisions_total", decision="denied") == 1
    await bind("b")
    assert (await cluster.get(f"{PODS}/b"))["spec"]["nodeName"] == "n"


async def test_nodes_and_configuration(webhook_cluster: Callable[..., Awaitable[WebhookCluster]]) -> None:
    gates = {"NodeMutatingWebhook": True, "NodeValidatingWebhook": True, "ConfigMapValidatingWebhook": True}
    cluster = await webhook_cluster(gates)
    ratio = {"node.koordinator.sh/resource-amplification-ratio": '{"cpu":1.5}'}
    for name, notes in (("n", ratio), ("m", {"node.koordinator.sh/resource-amplification-ratio": "{"})):
        meta = {"name": name, "annotations": notes, "labels": {"pool": "a"}}
        await cluster.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": meta})
    body = {"status": {"allocatable": {"cpu": "4", "memory": "8Gi"}}}
    node = await cluster.merge(f"{NODES}/n/status", body)
    assert node["status"]["allocatable"] == {"cpu": "6", "memory": "8Gi"}
    raw = node["metadata"]["annotations"]["node.koordinator.sh/raw-allocatable"]
    assert json.loads(raw) == {"cpu": "4", "memory": "8Gi"}
    again = await cluster.merge(f"{NODES}/n/status", {"status": {"allocatable": {"pods": "110"}}})
    assert again["status"]["allocatable"] == {"cpu": "6", "memory": "8Gi", "pods": "110"}
    broken = await cluster.merge(f"{NODES}/m/status", body)
    assert measured(
        cluster, "webhook_duration_milliseconds_count", webhook_type="mutate", object_type="node", operation="UPDATE",
        plugin_name="NodeResourceAmplificationPlugin", status="allowed",
    ) == 3  # fmt: skip
    assert broken["status"]["allocatable"] == {"cpu": "4", "memory": "8Gi"}, "malformed annotations are ignored"

    path = "/api/v1/namespaces/koordinator-system/configmaps/slo-controller-config"

    def strategies(*selectors: dict[str, str], **more: Any) -> Awaitable[Any]:
        entries = [
            {"name": f"s{i}", "nodeSelector": {"matchLabels": labels}, **more} for i, labels in enumerate(selectors)
        ]
        return cluster.merge(path, {"data": {"cpu-burst-config": json.dumps({"nodeStrategies": entries})}})

    error = await cluster.refused(cluster.merge(path, {"data": {"colocation-config": "{"}}))
    assert error.status == 400 and '"reason":"ParseConfigFail"' in str(error)
    error = await cluster.refused(strategies({"a": "1"}, cpuBurstPercent=0))
    assert '"reason":"ConfigParamInvalid"' in str(error) and "cpuBurstPercent" in str(error)
    error = await cluster.refused(strategies({"a": "1"}, {"a": "1", "b": "2"}))
    assert '"reason":"NodeStrategiesOverlap"' in str(error)
    await cluster.merge(f"{NODES}/n", {"metadata": {"labels": {"zone": "b"}}})
    nodes = cluster.manager.context.caches.informer(Node)
    await cluster.until(lambda: present(nodes.get("n")).metadata.labels.get("zone") == "b")
    error = await cluster.refused(strategies({"pool": "a"}, {"zone": "b"}))
    assert '"reason":"ExistNodeConfict"' in str(error) and '"exampleNodes":["n"]' in str(error)

    await strategies({"pool": "a"}, {"zone": "c"})
    informer = cluster.manager.context.config.informer
    await cluster.until(lambda: "cpu-burst-config" in present(informer.object).data)
    error = await cluster.refused(cluster.merge(f"{NODES}/n", {"metadata": {"labels": {"zone": "c"}}}))
    assert error.status == 400 and '"reason":"ExistNodeConfict"' in str(error)
    await cluster.merge(f"{NODES}/n", {"metadata": {"labels": {"zone": "d"}}})


@pytest.mark.parametrize("strict", [False, True])
async def test_an_incomplete_pair_is_refused_only_with_strict_parity(
    webhook_cluster: Callable[..., Awaitable[WebhookCluster]], strict: bool
) -> None:
    cluster = await webhook_cluster({"ConfigMapValidatingWebhook": True}, f"--strict-parity={str(strict).lower()}")
    path = "/api/v1/namespaces/koordinator-system/configmaps/slo-controller-config"
    half = json.dumps({"clusterStrategy": {"memoryEvictThresholdPercent": 75}})
    change = cluster.merge(path, {"data": {"resource-threshold-config": half}})
    if strict:
        assert "memoryEvictLowerPercent" in str(await cluster.refused(change))
    else:
        await change


async def test_profiles_are_applied_to_reservations(webhook_cluster: Callable[..., Awaitable[WebhookCluster]]) -> None:
    cluster = await webhook_cluster({"ReservationMutatingWebhook": True})
    await add_profile(cluster, "p", selector={"matchLabels": ENABLED}, priorityClassName="koord-mid", qosClass="LS")
    reservation = {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Reservation",
        "metadata": {"name": "r", "labels": ENABLED},
        "spec": {
            "owners": [{"object": {"name": "x"}}],
            "template": {"spec": pod("x", None, {"cpu": "1"})["spec"]},
        },
    }
    created = await cluster.create(RESERVATIONS, reservation)
    assert created["metadata"]["labels"] == {**ENABLED, QOS: "LS"}
    spec = created["spec"]["template"]["spec"]
    assert (spec["priority"], spec["containers"][0]["resources"]["requests"]) == (7000, {"cpu": "1"})


async def test_failure_policies_and_timeouts(webhook_cluster: Callable[..., Awaitable[WebhookCluster]]) -> None:
    """With the manager's server gone, what fails closed is refused and what fails open passes."""
    fail = {"WEBHOOK_CONFIGURATION_FAILURE_POLICY_PODS": "Fail"}
    cluster = await webhook_cluster({"NodeMutatingWebhook": True}, environ=fail)
    configuration = await cluster.get(
        f"{REGISTERED}/mutatingwebhookconfigurations/koordinator-mutating-webhook-configuration"
    )
    policies = {each["name"].split(".")[0]: each["failurePolicy"] for each in configuration["webhooks"]}
    assert policies["mpod-create"] == "Fail" and policies["mnode-status"] == "Ignore"
    assert all(each["timeoutSeconds"] == 10 and each["sideEffects"] == "None" for each in configuration["webhooks"])
    await cluster.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}})
    assert cluster.manager.server is not None
    await cluster.manager.server.stop()
    error = await cluster.refused(cluster.create(PODS, pod("a")))
    assert error.status == 500 and 'failed calling webhook "mpod-create.koordinator.sh"' in str(error)
    node = await cluster.merge(f"{NODES}/n/status", {"status": {"allocatable": {"cpu": "4"}}})
    assert node["status"]["allocatable"] == {"cpu": "4"}


async def test_concurrent_requests(webhook_cluster: Callable[..., Awaitable[WebhookCluster]]) -> None:
    cluster = await webhook_cluster()
    await add_profile(cluster, "p", qosClass="BE", priorityClassName="koord-batch")
    answers = await asyncio.gather(*(cluster.create(PODS, pod(f"p{i}", None, {"cpu": "1"})) for i in range(40)))
    assert all(
        each["spec"]["containers"][0]["resources"]["requests"] == {"kubernetes.io/batch-cpu": "1k"} for each in answers
    )


async def test_an_invalid_profile_matches_nothing_and_gets_an_event(
    webhook_cluster: Callable[..., Awaitable[WebhookCluster]],
) -> None:
    cluster = await webhook_cluster()
    await add_profile(cluster, "bad", selector={"matchExpressions": [{"key": "a", "operator": "Near"}]}, qosClass="BE")
    for name in ("a", "b"):
        created = await cluster.create(PODS, pod(name))
        assert QOS not in created["metadata"].get("labels", {})

    async def events() -> list[dict[str, Any]]:
        events = (await cluster.get("/api/v1/namespaces/default/events"))["items"]
        return [each for each in events if each["involvedObject"].get("name") == "bad"]

    (event,) = await cluster.until(events)
    assert (event["reason"], event["type"]) == ("InvalidProfile", "Warning")
    assert "'Near' is not a valid label selector operator; the profile is ignored" in event["message"]


async def test_a_handler_that_times_out(webhook_cluster: Callable[..., Awaitable[WebhookCluster]]) -> None:
    """The time-out that is registered ends the wait; then the failure policy decides."""
    environ = {"WEBHOOK_CONFIGURATION_FAILURE_POLICY_PODS": "Fail", "WEBHOOK_CONFIGURATION_TIMEOUT_SECONDS": "1"}
    cluster = await webhook_cluster({"NodeMutatingWebhook": True}, environ=environ)
    await cluster.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}})

    async def never(request: WebhookRequest) -> None:
        await asyncio.Event().wait()

    assert cluster.manager.server is not None
    for handler in cluster.manager.server.handlers.values():
        handler.handle = never  # type: ignore[assignment, method-assign]
    error = await cluster.refused(cluster.create(PODS, pod("a")))
    assert error.status == 500
    # Both sides count the same second: who gives up first is chance.
    assert any(words in str(error) for words in ("context deadline exceeded", "the server responded with status 504"))
    node = await cluster.merge(f"{NODES}/n/status", {"status": {"allocatable": {"cpu": "4"}}})
    assert node["status"]["allocatable"] == {"cpu": "4"}

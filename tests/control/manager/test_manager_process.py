"""The whole process with a real API server: objects follow nodes and configuration despite failures."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import pytest

from control.manager import process as process_module
from control.manager.options import ManagerOptions
from control.manager.process import Manager
from control.standalone.apiserver import ApiServer
from koordlet.api.core import Node
from koordlet.api.crs.slo import NodeSLO
from koordlet.app.flags import FlagError, read
from koordlet.app.gates import GateError
from koordlet.kube import Client, ClientConfig, ServerError
from tests.waiting import until

SLO, METRIC = "nodeslos", "nodemetrics"


async def test_objects_are_created_and_deleted_with_their_nodes(cluster: Any, manager: Any) -> None:
    await cluster.nodes("n1", "n2")
    await manager()
    for name in ("n1", "n2"):
        metric = await until(lambda name=name: cluster.spec(METRIC, name))
        assert metric["metricCollectPolicy"]["nodeAggregatePolicy"]["durations"] == ["5m0s", "10m0s", "30m0s"]
        slo = await until(lambda name=name: cluster.spec(SLO, name))
        assert slo["resourceUsedThresholdWithBE"]["enable"] is True  # of the installed ConfigMap
    await cluster.admin.raw("DELETE", "/api/v1/nodes/n1")

    async def gone() -> bool:
        return await cluster.spec(METRIC, "n1") is None and await cluster.spec(SLO, "n1") is None

    await until(gone)
    assert await cluster.spec(SLO, "n2")


async def test_deleted_and_changed_objects_are_restored(cluster: Any, manager: Any) -> None:
    await cluster.nodes("n1")
    await manager()
    await until(lambda: cluster.spec(METRIC, "n1"))
    path = "/apis/slo.koordinator.sh/v1alpha1"
    merge = "application/merge-patch+json"
    await cluster.admin.raw("DELETE", f"{path}/{METRIC}/n1")
    await until(lambda: cluster.spec(METRIC, "n1"))
    await until(lambda: cluster.spec(SLO, "n1"))
    mine = {"metricCollectPolicy": {"reportIntervalSeconds": 7}, "predictPolicy": {"coldStartPeriodSeconds": 9}}
    await cluster.admin.raw("PATCH", f"{path}/{METRIC}/n1", body={"spec": mine}, content_type=merge)
    theirs = {"extensions": {"Object": {"other": {"else": 1}}}, "cpuBurstStrategy": {"policy": "auto"}}
    await cluster.admin.raw("PATCH", f"{path}/{SLO}/n1", body={"spec": theirs}, content_type=merge)

    async def back() -> bool:
        metric, slo = await cluster.spec(METRIC, "n1"), await cluster.spec(SLO, "n1")
        return bool(
            metric["metricCollectPolicy"]["reportIntervalSeconds"] == 60 and slo["cpuBurstStrategy"]["policy"] == "none"
        )

    await until(back)
    assert (await cluster.spec(METRIC, "n1")).keys() == {"metricCollectPolicy"}, "a policy that is not configured"
    assert (await cluster.spec(SLO, "n1"))["extensions"] == {"Object": {"other": {"else": 1}}}


async def test_an_invalid_key_keeps_its_last_good_value_and_causes_an_event(cluster: Any, manager: Any) -> None:
    good = {
        "colocation-config": '{"enable": true, "metricReportIntervalSeconds": 30}',
        "resource-threshold-config": '{"clusterStrategy": {"enable": true, "cpuSuppressThresholdPercent": 61}}',
    }
    await cluster.config(good, first=True)
    await cluster.nodes("n1")
    await manager()

    async def policy() -> Any:
        metric_spec = await cluster.spec(METRIC, "n1")
        return metric_spec and metric_spec["metricCollectPolicy"]["reportIntervalSeconds"]

    async def threshold() -> Any:
        slo_spec = await cluster.spec(SLO, "n1")
        return slo_spec and slo_spec["resourceUsedThresholdWithBE"]["cpuSuppressThresholdPercent"]

    async def is_(value: Any, read: Any) -> None:
        async def same() -> bool:
            return bool(await read() == value)

        await until(same)

    await is_(30, policy)
    await is_(61, threshold)
    bad = {
        "colocation-config": '{"enable": true, "metricReportIntervalSeconds": "soon"}',
        "resource-threshold-config": '{"clusterStrategy": {"cpuSuppressThresholdPercent": [62]}}',
        "cpu-burst-config": '{"clusterStrategy": {"policy": "auto"}}',
    }
    await cluster.config(bad)

    async def burst() -> Any:
        return (await cluster.spec(SLO, "n1"))["cpuBurstStrategy"]["policy"]

    await is_("auto", burst)  # one bad key does not hold up another
    assert (await policy(), await threshold()) == (30, 61)

    async def both_events() -> Any:
        event_list = await cluster.get("/api/v1/namespaces/koordinator-system/events")
        expected = {
            event["reason"]: event for event in event_list["items"] if event["involvedObject"]["kind"] == "ConfigMap"
        }
        return expected if len(expected) == 2 else None

    events = await until(both_events)
    assert events["ColocationCfgUnmarshalFailed"]["type"] == "Warning"
    assert "colocation-config: metricReportIntervalSeconds" in events["ColocationCfgUnmarshalFailed"]["message"]
    assert (
        "resource-threshold-config: clusterStrategy.cpuSuppressThresholdPercent"
        in (events["SLOCfgUnmarshalFailed"]["message"])
    )
    await cluster.config({**good, "colocation-config": '{"enable": true, "metricReportIntervalSeconds": 40}'})
    await is_(40, policy)


async def test_a_broken_configuration_at_the_start_writes_no_node(cluster: Any, manager: Any) -> None:
    await cluster.config({"colocation-config": "{"}, first=True)
    await cluster.nodes("n1")
    await manager()
    await until(lambda: cluster.spec(SLO, "n1"))  # of another key's making
    assert await cluster.spec(METRIC, "n1") is None
    await cluster.config({"colocation-config": "{}"})
    await until(lambda: cluster.spec(METRIC, "n1"))


async def test_an_outage_of_the_api_server(cluster: Any, manager: Any) -> None:
    await cluster.nodes("n1")
    running = await manager("--enable-leader-election=false")
    await until(lambda: cluster.spec(SLO, "n1"))
    port, old = cluster.server.port, cluster.server
    await old.stop()
    informer = running.manager.context.caches.informer(Node)
    await until(lambda: informer.problem is not None)
    async with ApiServer(old.config.data_dir, port=port, webhook_hosts=old.config.webhook_hosts) as again:
        async with Client(ClientConfig.load(again.kubeconfig_path, qps=0)) as admin:
            cluster.admin = admin
            await cluster.nodes("n2")
            await cluster.admin.raw("DELETE", "/api/v1/nodes/n1")
            await until(lambda: cluster.spec(SLO, "n2"))

            async def gone() -> bool:
                return await cluster.spec(SLO, "n1") is None

            await until(gone)
        assert not running.task.done()
        assert await running.stop() == 0


async def test_expired_history_causes_a_new_list(cluster: Any, manager: Any) -> None:
    """A watch that is too old gets 410; what was missed becomes events."""
    await cluster.nodes("n1", "n2")
    running = await manager()
    await until(lambda: cluster.spec(SLO, "n2"))
    nodes = running.manager.context.caches.informer(Node)
    relists = running.manager.context.framework.get_sample_value
    labels = {"informer": "nodes"}
    before = relists("koord_informer_relists_total", labels)
    await nodes.stop()
    await cluster.admin.raw("DELETE", "/api/v1/nodes/n1")
    await cluster.nodes("n3")
    cluster.server.registry.store.compact(cluster.server.registry.store.revision)
    nodes._version = "1"
    await nodes.start()
    await until(lambda: cluster.spec(SLO, "n3"))

    async def gone() -> bool:
        return await cluster.spec(SLO, "n1") is None

    await until(gone)
    assert relists("koord_informer_relists_total", labels) == before + 1


async def test_the_pages(cluster: Any, manager: Any) -> None:
    await cluster.nodes("n1")
    running = await manager("--enable-pprof")
    await until(lambda: cluster.spec(SLO, "n1"))
    urls = {name: page.url for name, page in running.manager.pages.items()}
    async with aiohttp.ClientSession() as session:

        async def page(name: str, path: str) -> tuple[int, str]:
            async with session.get(urls[name] + path) as response:
                return response.status, await response.text()

        assert (await page("probes", "/healthz")) == (200, "ok")
        assert "[+]webhook-ready ok" in (await page("probes", "/readyz?verbose"))[1]

        async def served(path: str, *families: str) -> None:
            async def all_there() -> bool:
                text = (await page("metrics", path))[1]
                missing[:] = [family for family in families if family not in text]
                return not missing

            missing: list[str] = []
            try:
                await until(all_there)
            except TimeoutError:
                pytest.fail(f"{path} lacks {missing}")

        await served(
            "/metrics",
            'controller_runtime_reconcile_total{controller="nodeslo",result="success"}',
            'workqueue_depth{controller="nodemetric",name="nodemetric"}',
            'workqueue_adds_total{controller="webhook-controller",name="webhook-controller"}',
            'workqueue_unfinished_work_seconds{controller="nodeslo",name="nodeslo"} ',
            'workqueue_longest_running_processor_seconds{controller="nodeslo",name="nodeslo"} ',
            'rest_client_requests_total{code="200",host="127.0.0.1:',
            "process_resident_memory_bytes",
            'leader_election_master_status{name="koordinator-system/koordinator-manager"} 1.0',
        )
        await served(
            "/internal-metrics",
            "koordinator_manager_is_leader 1.0",
            'slo_controller_nodeslo_reconcile_count{reason="createNodeSLO",status="succeeded"} 1.0',
            'slo_controller_nodemetric_reconcile_count{reason="createNodeMetric",status="succeeded"} 1.0',
            'slo_controller_nodeslo_spec_parse_count{reason="getSystemConfigSpec",status="succeeded"}',
            'slo_controller_nodemetric_spec_parse_count{reason="getNodeMetricCollectPolicy",status="succeeded"}',
        )
        assert (await page("metrics", "/external-metrics")) == (200, "")
        everything = (await page("metrics", "/all-metrics"))[1]
        types = [line for line in everything.splitlines() if line.startswith("# TYPE")]
        assert len(types) == len(set(types))
        assert "controller:nodeslo" in (await page("pprof", "/debug/pprof/goroutine"))[1]
        assert "builtins.dict" in (await page("pprof", "/debug/pprof/heap"))[1]
        assert "function calls" in (await page("pprof", "/debug/pprof/profile?seconds=0.05"))[1]
        assert (await page("pprof", "/debug/pprof/profile?seconds=x"))[0] == 400


async def test_without_the_webhook_framework_there_is_none(cluster: Any, manager: Any) -> None:
    await cluster.nodes("n1")
    running = await manager("--feature-gates=WebhookFramework=false")
    assert running.manager.server is None
    await until(lambda: cluster.spec(SLO, "n1"))
    assert await cluster.get("/api/v1/namespaces/koordinator-system/secrets/koordinator-webhook-certs") is None


async def test_only_enabled_controllers_run(cluster: Any, manager: Any) -> None:
    await cluster.nodes("n1")
    running = await manager("--controllers=nodemetric")
    await until(lambda: cluster.spec(METRIC, "n1"))
    assert [controller.name for controller in running.manager.controllers] == ["nodemetric"]
    assert await cluster.spec(SLO, "n1") is None


async def test_missing_webhook_configurations_end_the_start(
    cluster: Any, manager: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(process_module, "CERTIFICATE_TIMEOUT_S", 1.0)
    group = "/apis/admissionregistration.k8s.io/v1"
    name = "koordinator-mutating-webhook-configuration"
    await cluster.admin.raw("DELETE", f"{group}/mutatingwebhookconfigurations/{name}")
    running = await manager(wait=False)
    assert await running.task == 1
    assert f"{name}: not installed; apply deploy/manager" in caplog.text


async def test_caches_that_do_not_fill_end_the_start(
    cluster: Any, manager: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_module, "CACHE_TIMEOUT_S", 1.0)
    crd = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/nodeslos.slo.koordinator.sh"
    await cluster.admin.raw("DELETE", crd)
    running = await manager(wait=False)
    assert await running.task == 1


@pytest.mark.parametrize(
    ("flag", "error", "expected"),
    [
        ("--controllers=nodeslos", FlagError, "no controller nodeslos"),
        ("--feature-gates=PodMutatingWebhok=true", GateError, "did you mean PodMutatingWebhook"),
    ],
)
def test_unknown_names_are_refused(flag: str, error: type[Exception], expected: str) -> None:
    with pytest.raises(error, match=expected):
        Manager(read(ManagerOptions, [flag]), {}, config=ClientConfig("http://127.0.0.1:1"))


BLKIO = {"enable": True, "blocks": [{"name": "z", "ioCfg": {}}]}
CONFIGS: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "spec 04 §5, worked example": (
        {
            "resource-threshold-config": json.dumps(
                {
                    "clusterStrategy": {"enable": True, "cpuSuppressThresholdPercent": 60},
                    "nodeStrategies": [
                        {"nodeSelector": {"matchLabels": {"pool": "a"}}, "cpuEvictBEUsageThresholdPercent": 80}
                    ],
                }
            )
        },
        {
            "a": {
                "resourceUsedThresholdWithBE": {
                    "enable": True, "cpuSuppressThresholdPercent": 60, "cpuSuppressPolicy": "cpuset",
                    "memoryEvictThresholdPercent": 70, "cpuEvictPolicy": "evictByRealLimit",
                    "cpuEvictBEUsageThresholdPercent": 80,
                }
            },
            "b": {
                "resourceUsedThresholdWithBE": {
                    "enable": True, "cpuSuppressThresholdPercent": 60, "cpuSuppressPolicy": "cpuset",
                    "memoryEvictThresholdPercent": 70, "cpuEvictPolicy": "evictByRealLimit",
                }
            },
        },
    ),
    "no key: the defaults": (
        {"colocation-config": "{}"},
        {
            "b": {
                "resourceUsedThresholdWithBE": {
                    "enable": False, "cpuSuppressThresholdPercent": 65, "cpuSuppressPolicy": "cpuset",
                    "memoryEvictThresholdPercent": 70, "cpuEvictPolicy": "evictByRealLimit",
                },
                "resourceQOSStrategy": {},
                "cpuBurstStrategy": {
                    "policy": "none", "cpuBurstPercent": 1000, "cfsQuotaBurstPercent": 300,
                    "cfsQuotaBurstPeriodSeconds": -1, "sharePoolThresholdPercent": 50,
                },
                "systemStrategy": {"totalNetworkBandwidth": "0"},
                "hostApplications": None,
                "extensions": None,
            }
        },
    ),
    "strategy-profile: other keys take precedence": (
        {
            "strategy-profile": '{"profile": "recommended"}',
            "resource-threshold-config": '{"clusterStrategy": {"memoryEvictThresholdPercent": 80}}',
        },
        {
            "b": {
                "resourceUsedThresholdWithBE": {
                    "enable": True, "cpuSuppressThresholdPercent": 95, "cpuSuppressPolicy": "cpuset",
                    "memoryEvictThresholdPercent": 80, "cpuEvictPolicy": "evictByRealLimit",
                },
                "resourceQOSStrategy": {"beClass": {"cpuQOS": {"enable": True}}},
            }
        },
    ),
    "system: the cluster's bandwidth holds where a node entry has none": (
        {
            "system-config": json.dumps(
                {
                    "clusterStrategy": {"totalNetworkBandwidth": "100M"},
                    "nodeStrategies": [
                        {"nodeSelector": {"matchLabels": {"pool": "a"}}, "minFreeKbytesFactor": 100}
                    ],
                }
            )
        },
        {
            "a": {"systemStrategy": {"totalNetworkBandwidth": "100M", "minFreeKbytesFactor": 100}},
            "b": {"systemStrategy": {"totalNetworkBandwidth": "100M"}},
            "wide": {"systemStrategy": {"totalNetworkBandwidth": "10G"}},
            "broken": {"systemStrategy": {"totalNetworkBandwidth": "100M"}},
        },
    ),
    "host applications: the first matching list replaces, even empty": (
        {
            "host-application-config": json.dumps(
                {
                    "applications": [{"name": "nginx", "priority": "koord-prod", "qos": "LS"}],
                    "nodeConfigs": [{"nodeSelector": {"matchLabels": {"pool": "a"}}, "applications": []}],
                }
            )
        },
        {
            "a": {"hostApplications": None},
            "b": {"hostApplications": [{"name": "nginx", "priority": "koord-prod", "qos": "LS"}]},
        },
    ),
    "blocks are replaced whole": (
        {
            "resource-qos-config": json.dumps(
                {
                    "clusterStrategy": {
                        "beClass": {"blkioQOS": {"enable": True, "blocks": [{"name": "x"}, {"name": "y"}]}}
                    },
                    "nodeStrategies": [
                        {
                            "nodeSelector": {"matchLabels": {"pool": "a"}},
                            "beClass": {"blkioQOS": {"blocks": [{"name": "z"}]}},
                        }
                    ],
                }
            )
        },
        {
            "a": {
                "resourceQOSStrategy": {"beClass": {"blkioQOS": BLKIO}}
            }
        },
    ),
    "interference, an extension": (
        {"interference-config": '{"clusterStrategy": {"windowSeconds": 9}}'},
        {"b": {"extensions.windowSeconds": 9}},
    ),
}  # fmt: skip


def part(spec: dict[str, Any], name: str) -> Any:
    if name == "extensions.windowSeconds":
        return spec.get("extensions", {}).get("Object", {}).get("interferenceStrategy", {}).get("windowSeconds")
    return spec.get(name)


async def test_rendered_nodeslo(cluster: Any, manager: Any) -> None:
    """Each configuration after the other, on one cluster: also a check that nothing of the one before stays."""
    await cluster.nodes("a", pool="a")
    await cluster.nodes("b", "wide", "broken", pool="b")
    for name, text in (("wide", "10G"), ("broken", "fast")):
        body = {"metadata": {"annotations": {"node.koordinator.sh/network-bandwidth": text}}}
        await cluster.admin.raw(
            "PATCH", f"/api/v1/nodes/{name}", body=body, content_type="application/merge-patch+json"
        )
    await manager()
    for title, (data, by_node) in CONFIGS.items():
        await cluster.config(data)
        for node, parts in by_node.items():
            for name, value in parts.items():
                current: list[Any] = []

                async def right(
                    node: str = node, name: str = name, value: Any = value, current: list[Any] = current
                ) -> bool:
                    spec = await cluster.spec(SLO, node)
                    current[:] = [part(spec, name) if spec is not None else None]
                    return spec is not None and current[0] == value

                try:
                    await until(right)
                except TimeoutError:
                    pytest.fail(f"{title}: {node} {name} is {current[0]}, not {value}")


async def test_an_annotation_of_bandwidth_takes_effect_at_once(cluster: Any, manager: Any) -> None:
    await cluster.nodes("n1")
    await manager()
    await until(lambda: cluster.spec(SLO, "n1"))
    body = {"metadata": {"annotations": {"node.koordinator.sh/network-bandwidth": "5G"}}}
    await cluster.admin.raw("PATCH", "/api/v1/nodes/n1", body=body, content_type="application/merge-patch+json")

    async def there() -> bool:
        return bool((await cluster.spec(SLO, "n1"))["systemStrategy"]["totalNetworkBandwidth"] == "5G")

    await until(there)


def controller(running: Any, name: str) -> Any:
    return next(controller for controller in running.manager.controllers if controller.name == name)


async def test_a_refused_write_is_counted_and_retried(
    cluster: Any, manager: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = await manager()
    context = running.manager.context
    create, left = context.client.create, [3]

    async def flaky(obj: Any, **options: Any) -> Any:
        if isinstance(obj, NodeSLO) and left[0]:
            left[0] -= 1
            raise ServerError(500, message="not now")
        return await create(obj, **options)

    monkeypatch.setattr(context.client, "create", flaky)
    await cluster.nodes("n1")
    await until(lambda: cluster.spec(SLO, "n1"))
    count = context.internal.get_sample_value
    labels = {"reason": "createNodeSLO"}
    name = "slo_controller_nodeslo_reconcile_count"
    assert count(name, {**labels, "status": "failed"}) == 3
    await until(lambda: count(name, {**labels, "status": "succeeded"}) == 1)
    errors = context.framework.get_sample_value("controller_runtime_reconcile_errors_total", {"controller": "nodeslo"})
    assert errors == 3


async def test_a_stale_cache_deletes_no_policy(cluster: Any, manager: Any) -> None:
    await cluster.nodes("n1")
    running = await manager()
    await until(lambda: cluster.spec(SLO, "n1"))
    nodeslo = controller(running, "nodeslo")
    await until(lambda: nodeslo.objects.get("n1"))
    node = nodeslo.nodes.store.pop("n1")  # as if the watch had not delivered it yet
    await nodeslo.reconcile("n1")
    assert await cluster.spec(SLO, "n1")
    nodeslo.nodes.store.put("n1", node)
    nodeslo.objects.store.pop("n1")  # nor of what was made
    await nodeslo.reconcile("n1")
    assert await cluster.spec(SLO, "n1")

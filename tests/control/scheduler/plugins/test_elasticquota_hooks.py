"""Hooks of ElasticQuota: entry points of an installed distribution, when each is called, and what a failure does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from control.scheduler.config.argchecks import check
from control.scheduler.config.args import ElasticQuotaArgs, HookPluginConf
from control.scheduler.cycle.failures import FitError
from control.scheduler.plugins.elasticquota.hooks import QuotaHook, QuotaHooks
from control.scheduler.plugins.elasticquota.metrics import QuotaMetrics
from control.scheduler.plugins.elasticquota.status import QuotaOutput, patch
from koordlet.api import names
from koordlet.api.core import Pod
from koordlet.api.crs.quota import ElasticQuota
from tests.control.scheduler.build import pod
from tests.control.scheduler.plugins.quotaworld import QuotaWorld, quota_object

CALLS: list[tuple[Any, ...]] = []


class Recorder(QuotaHook):
    """Notes every call. `check_pod` refuses pods that are named like the hook's argument."""

    def __init__(self, refused: str) -> None:
        self.refused = refused

    def is_quota_updated(self, old: Any, new: Any) -> bool:
        CALLS.append(("is_quota_updated", new.name))
        return False

    def pre_quota_update(self, old: Any, new: Any) -> Any:
        CALLS.append(("pre", old and old.name, new and new.name))
        return len(CALLS)

    def post_quota_update(self, old: Any, new: Any, state: Any) -> None:
        CALLS.append(("post", old and old.name, new and new.name))
        assert CALLS[state - 1][0] == "pre"

    def on_pod_updated(self, quota: str, old: Pod | None, new: Pod | None) -> None:
        CALLS.append(("pod", quota, old is not None, new is not None))

    def update_quota_status(self, quota: Any) -> dict[str, str]:
        return {"example.com/cost": "3"}

    def check_pod(self, quota: str, pod: Pod) -> str:
        if self.refused == "fail":
            raise ValueError("no answer")
        return "no budget" if pod.metadata.name == self.refused else ""

    def reset_begins(self) -> None:
        CALLS.append(("reset_begins",))

    def reset_ends(self) -> None:
        CALLS.append(("reset_ends",))


def recorder(key: str, arguments: str, handle: Any) -> Recorder:
    return Recorder(arguments)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A distribution with the factory `recorder`."""
    info = tmp_path / "hooks_of_a_test-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hooks-of-a-test\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[koord_scheduler.elastic_quota_hooks]\nrecorder = {__name__}:recorder\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    CALLS.clear()
    yield


def configured(arguments: str = "") -> ElasticQuotaArgs:
    return ElasticQuotaArgs(hook_plugins=[HookPluginConf("mine", "recorder", arguments)])


@pytest.mark.parametrize(
    ("hooks", "error"),
    [
        ([HookPluginConf("", "recorder")], "hookPlugins[0].key: Required value"),
        ([HookPluginConf("a", "")], "hookPlugins[0].factoryKey: Required value"),
        ([HookPluginConf("a", "none")], 'hookPlugins[0].factoryKey: Unsupported value: "none"'),
        ([HookPluginConf("a", "recorder")] * 2, 'hookPlugins[1].key: Duplicate value: "a"'),
    ],
    ids=["no key", "no factory key", "unknown factory", "key used twice"],
)
@pytest.mark.usefixtures("installed")
def test_unusable_hooks_prevent_the_start(hooks: list[HookPluginConf], error: str) -> None:
    errors = check(ElasticQuotaArgs(hook_plugins=hooks), "args")
    assert len(errors) == 1
    assert error in errors[0]
    assert not check(configured(), "args")


@pytest.mark.usefixtures("installed")
def test_calls_about_quotas_and_pods() -> None:
    world = QuotaWorld(args=configured())
    world.put(quota_object("team"))
    assert CALLS == [("pre", None, "team"), ("post", None, "team")]
    CALLS.clear()
    world.put(quota_object("team"))
    assert CALLS == [("is_quota_updated", "team")], "the same figures: only the hook could make it an update"
    CALLS.clear()
    world.put(quota_object("team", max="50"))
    assert CALLS == [("pre", "team", "team"), ("post", "team", "team")]

    world.add(pod("waiting", cpu="1", labels={names.LABEL_QUOTA_NAME: "team"}))
    running = pod("running", cpu="1", on="n0", labels={names.LABEL_QUOTA_NAME: "team"})
    CALLS.clear()
    world.add(running)
    assert ("pod", "team", False, True) in CALLS, "pods with a node only"
    world.delete(running)
    assert CALLS[-1] == ("pod", "team", True, False)
    assert world.runtime("team") == "1", "what the waiting pod requests"
    assert CALLS[-2:] == [("reset_begins",), ("reset_ends",)], "figures are computed when they are read"
    world.objects.informer(ElasticQuota).remove(quota_object("team", max="50"))
    assert CALLS[-2:] == [("pre", "team", None), ("post", "team", None)]


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("p", "CheckPod failed for hook plugin mine, err: no budget"),
        ("fail", "CheckPod failed for hook plugin mine, err: ValueError: no answer"),
        ("other", ""),
    ],
    ids=["refuses", "raises", "admits"],
)
@pytest.mark.usefixtures("installed")
def test_a_hook_decides_about_pods(argument: str, message: str) -> None:
    world = QuotaWorld(quota_object("team"), args=configured(argument))
    info = world.add(pod("p", cpu="1", labels={names.LABEL_QUOTA_NAME: "team"}))
    if not message:
        assert world.cycle.place(info).node == "n0"
        return
    with pytest.raises(FitError) as failure:
        world.cycle.place(info)
    assert message in failure.value.text()


@pytest.mark.usefixtures("installed")
def test_a_hook_adds_annotations_and_every_call_is_timed() -> None:
    registry = CollectorRegistry()
    metrics = QuotaMetrics(registry)
    hooks = QuotaHooks(configured().hook_plugins, None, metrics.hooks.observe)  # type: ignore[arg-type]
    quota = quota_object("team")
    none = QuotaOutput({}, {}, {}, {}, {}, {}, {}, {})
    assert patch(quota, none, hooks.annotations(quota)) == {
        "metadata": {"annotations": {"example.com/cost": "3"}, "resourceVersion": "1"}
    }
    quota = msgspec.structs.replace(
        quota, metadata=msgspec.structs.replace(quota.metadata, annotations={"example.com/cost": "3"})
    )
    assert patch(quota, none, hooks.annotations(quota)) == {}
    name = "scheduler_elastic_quota_hook_plugin_latency_count"
    assert registry.get_sample_value(name, {"plugin": "mine", "operation": "update_quota_status"}) == 2


def test_operations_are_timed() -> None:
    client = SimpleNamespace(registry=CollectorRegistry())
    world = QuotaWorld(quota_object("team"), client=client)
    labels = {names.LABEL_QUOTA_NAME: "team"}
    placement = world.cycle.place(world.add(pod("p", cpu="1", labels=labels)))
    world.cycle.release(placement)
    running = pod("running", cpu="1", on="n0", labels=labels)
    world.add(running)
    world.add(msgspec.structs.replace(running, metadata=msgspec.structs.replace(running.metadata, labels={})))
    world.delete(running)
    world.objects.informer(ElasticQuota).remove(quota_object("team"))
    operations = {
        sample.labels["operation"]
        for family in client.registry.collect()
        for sample in family.samples
        if sample.name == "scheduler_elastic_quota_process_latency_count" and sample.value
    }
    assert operations == {
        *("UpdateGroupDeltaRequestNoLock", "UpdateGroupDeltaUsedNoLock", "RefreshRuntime", "UpdateQuota"),
        *("DeleteQuota", "resetQuotaNoLock", "OnPodAdd", "OnPodUpdate", "OnPodDelete", "ReservePod", "UnreservePod"),
    }

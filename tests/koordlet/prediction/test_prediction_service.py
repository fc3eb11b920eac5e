"""Training, upkeep and forecasts of the service, over a metric cache that tests fill."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from koordlet.api.core import Node
from koordlet.api.crs.nodemetric import USAGE_WITH_PAGE_CACHE
from koordlet.prediction.models import CLASS_KEYS, NODE, SYSTEM, class_key
from koordlet.prediction.predictors import MINIMUM
from koordlet.prediction.training import collect_samples
from koordlet.prediction.validation import VALIDATION_SECONDS, Validation
from koordlet.statesinformer.nodemetric.forecast import Amount
from koordlet.statesinformer.pods.model import PodMeta
from tests.koordlet.prediction.conftest import World

GI = 1 << 30
TWO_PODS = {
    "node_cpu_usage": 3.0, "node_memory_usage": 4.0 * GI,
    "pod_cpu_usage__a": 1.0, "pod_memory_usage__a": 1.0 * GI,
    "pod_cpu_usage__b": 0.5, "pod_memory_usage__b": 2.0 * GI,
}  # fmt: skip


def learned(world: World, **samples: Any) -> dict[str, tuple[float, float]]:
    world.measure(**samples)
    samples_of = collect_samples(world.cache, world.pods, world.memory_policy, 0, 1e9)  # type: ignore[arg-type]
    if samples_of is None:
        return None  # type: ignore[return-value]
    return dict(
        zip(samples_of.keys, zip(samples_of.cores.tolist(), samples_of.memory.tolist(), strict=True), strict=True)
    )


def test_the_first_step_with_two_pods_creates_nine_models(world: World, make_pod: Callable[..., PodMeta]) -> None:
    world.pods = {"a": make_pod("a"), "b": make_pod("b", priority="koord-batch")}
    service = world.service()
    world.minute(service, **TWO_PODS)
    assert set(service.models.stamps) == {"a", "b", NODE, SYSTEM, *CLASS_KEYS}
    assert len(service.models.stamps) == 9
    assert service.models.peaks([class_key("koord-mid")])[class_key("koord-mid")] == Amount(25, 5 << 20)


def test_samples_of_pods_classes_node_and_system(world: World, make_pod: Callable[..., PodMeta]) -> None:
    world.pods = {"a": make_pod("a"), "b": make_pod("b", priority="koord-batch"), "quiet": make_pod("quiet")}
    samples = learned(world, **TWO_PODS)
    assert samples == {
        "a": (1.0, GI),
        "b": (0.5, 2.0 * GI),
        NODE: (3.0, 4.0 * GI),
        SYSTEM: (1.5, 1.0 * GI),
        class_key("koord-prod"): (1.0, GI),
        class_key("koord-batch"): (0.5, 2.0 * GI),
        class_key("koord-mid"): (0, 0),
        class_key("koord-free"): (0, 0),
        class_key(""): (0, 0),
    }


def test_a_pod_without_memory_samples_is_skipped(world: World, make_pod: Callable[..., PodMeta]) -> None:
    world.pods = {"a": make_pod("a")}
    samples = learned(world, node_cpu_usage=1, node_memory_usage=GI, pod_cpu_usage__a=1)
    assert "a" not in samples
    assert samples[class_key("koord-prod")] == (0, 0)


def test_without_figures_of_the_node_the_system_gets_no_sample(world: World, make_pod: Callable[..., PodMeta]) -> None:
    """A system trained with 0 would make room that is not there."""
    world.pods = {"a": make_pod("a")}
    assert learned(world, pod_cpu_usage__a=1, pod_memory_usage__a=GI).keys() == {"a", *CLASS_KEYS}


def test_without_figures_at_all_nothing_is_learned(world: World, make_pod: Callable[..., PodMeta]) -> None:
    world.pods = {"a": make_pod("a")}
    service = world.service()
    world.minute(service)
    assert not service.trained
    assert not service.models.stamps


def test_more_use_by_pods_than_by_the_node_is_no_negative_system(
    world: World, make_pod: Callable[..., PodMeta]
) -> None:
    world.pods = {"a": make_pod("a")}
    samples = learned(world, node_cpu_usage=1, node_memory_usage=GI, pod_cpu_usage__a=2, pod_memory_usage__a=2 * GI)
    assert samples[SYSTEM] == (0, 0)


def test_p90_of_the_interval(world: World) -> None:
    service = world.service()
    service.train()
    for second in range(1, 61):
        world.passed = second
        world.measure(node_cpu_usage=second / 10, node_memory_usage=GI)
    service.train()
    expected = world.service().models
    expected.train([NODE], service.models.cpu.buckets.starts[:1] + 5.4, service.models.cpu.buckets.starts[:1], 0, 0)
    assert service.models.peaks([NODE])[NODE].cpu == expected.peaks([NODE])[NODE].cpu


def test_memory_follows_the_policy_of_node_metric(world: World) -> None:
    world.memory_policy = USAGE_WITH_PAGE_CACHE
    assert learned(world, node_cpu_usage=1, node_memory_usage=GI)[NODE] == (1, GI), "the policy's collector is off"
    assert learned(world, node_memory_usage_with_page_cache=2 * GI)[NODE] == (1, 2 * GI)


def test_no_training_while_pods_are_not_known(world: World, make_pod: Callable[..., PodMeta]) -> None:
    world.pods = None
    service = world.service(settle=5.0)
    world.minute(service, **TWO_PODS)
    assert not service.models.stamps
    world.pods = {"a": make_pod("a"), "b": make_pod("b")}
    service.train()
    assert not service.trained, "the pods have no figures yet"
    world.minute(service, **TWO_PODS)
    assert service.trained


def test_a_forecast_combines_both_predictors(
    world: World, make_pod: Callable[..., PodMeta], make_node: Callable[..., Node]
) -> None:
    world.pods = {"a": make_pod("a", "2", "2Gi"), "b": make_pod("b", "1", "4Gi", priority="koord-batch")}
    world.node = make_node("4", "8Gi")
    service = world.service(cold_start=3600.0)
    world.minute(service, **TWO_PODS)
    forecast = service.forecast(list(world.pods.values()), None)
    assert not forecast.problem
    # Pod a peaks at 1035m, the system at 1.5 cores -> its bucket's end; margin 10 %; the empty class adds nothing.
    peaks = service.models.peaks([SYSTEM, class_key("koord-prod")])
    both = (peaks[SYSTEM] + peaks[class_key("koord-prod")]).with_margin(10)
    assert forecast.peak == both
    assert forecast.reclaimable == Amount(2000, 2 * GI).less(both).least(Amount(4000, 8 * GI).less(both))
    rows = {labels[0] for labels, _ in service._rows("peak")}
    assert rows == {"podReclaimablePredictor", "priorityReclaimablePredictor", "minPredictor"}
    assert service.predictions[MINIMUM].peak == forecast.peak


def test_a_pod_within_node_metrics_cold_start_counts_with_its_request(
    world: World, make_pod: Callable[..., PodMeta], make_node: Callable[..., Node]
) -> None:
    world.pods = {"a": make_pod("a", "8", "9Gi", creationTimestamp="2026-06-30T23:00:00Z")}
    world.node = make_node("16", "32Gi")
    service = world.service(cold_start=1800.0)
    world.minute(service, **{k: v for k, v in TWO_PODS.items() if "__b" not in k})
    pods = list(world.pods.values())
    assert service.forecast(pods, None).reclaimable != Amount()
    young = service.forecast(pods, 7200)
    assert young.reclaimable == Amount()
    assert young.peak is not None
    assert young.peak.cpu >= 8000


PROBLEMS = {
    "no node": (lambda world: setattr(world, "node", None), True, "Node is not known"),
    "not trained": (lambda world: None, False, "not trained yet"),
    "no allocatable": (lambda world: world.node.status.allocatable.clear(), True, "allocatable"),
}


@pytest.mark.parametrize(("spoil", "train", "problem"), PROBLEMS.values(), ids=PROBLEMS)
def test_a_missing_input_gives_no_forecast_and_the_reason(
    world: World, make_pod: Callable[..., PodMeta], spoil: Callable[..., Any], train: bool, problem: str
) -> None:
    world.pods = {"a": make_pod("a")}
    service = world.service()
    if train:
        world.minute(service, **TWO_PODS)
        service.forecast([], None)
    spoil(world)
    forecast = service.forecast(list(world.pods.values()), None)
    assert problem in forecast.problem
    assert forecast.reclaimable is forecast.peak is None
    assert not service.predictions, "gauges show no outdated values"


def test_models_expire_with_their_files(world: World, make_pod: Callable[..., PodMeta]) -> None:
    world.pods = {"a": make_pod("a"), "b": make_pod("b")}
    service = world.service(expiration=300.0)
    world.minute(service, **TWO_PODS)
    for key in ("a", "b", NODE):
        service._directory.write(service.models, key, 0)
    del world.pods["b"]
    for _ in range(6):
        world.minute(service, **{k: v for k, v in TWO_PODS.items() if "__b" not in k})
        service.collect_garbage()
    assert "b" not in service.models
    assert sorted(path.name for path in world.directory.iterdir()) == [NODE, "a"]


def test_a_step_of_the_wall_clock_expires_nothing(world: World, make_pod: Callable[..., PodMeta]) -> None:
    world.pods = {"a": make_pod("a"), "b": make_pod("b")}
    service = world.service()
    world.minute(service, **TWO_PODS)
    world.step = 7 * 86400.0
    service.collect_garbage()
    assert len(service.models.stamps) == 9


async def test_a_step_writes_a_limited_number_of_checkpoints_oldest_first(
    world: World, make_pod: Callable[..., PodMeta]
) -> None:
    world.pods = {"a": make_pod("a"), "b": make_pod("b")}
    service = world.service(checkpoints_per_step=5, checkpoint_interval=600.0)
    await service.checkpoint()
    assert not world.directory.exists(), "nothing before the first training"
    world.minute(service, **TWO_PODS)
    written = []
    for _ in range(3):
        world.passed += 1
        await service.checkpoint()
        written.append(len(list(world.directory.iterdir())))
    assert written == [5, 9, 9]
    world.passed += 598  # the first five are due again, the others not yet
    before = {path.name: path.stat().st_ino for path in world.directory.iterdir()}
    await service.checkpoint()
    renewed = [path.name for path in world.directory.iterdir() if path.stat().st_ino != before[path.name]]
    assert len(renewed) == 5


async def test_a_restart_with_checkpoints_gives_the_same_forecast(
    world: World, make_pod: Callable[..., PodMeta], make_node: Callable[..., Node]
) -> None:
    world.pods = {"a": make_pod("a", "2", "2Gi"), "b": make_pod("b", "1", "4Gi")}
    world.node = make_node("4", "8Gi")
    service = world.service()
    for minute in range(40):
        world.minute(service, **{name: value * (1 + minute % 5 / 10) for name, value in TWO_PODS.items()})
    await service.checkpoint_all()
    pods = list(world.pods.values())
    before = service.forecast(pods, None)
    (world.directory / "gone").write_text("{}")
    again = world.service(settle=5.0)
    again.train()
    assert again.forecast(pods, None) == before
    assert not (world.directory / "gone").exists()
    again.collect_garbage()
    assert len(again.models.stamps) == 9, "nothing expires before the first training"


async def test_checkpoints_of_gone_pods_and_damaged_ones_take_one_line_each(
    world: World, make_pod: Callable[..., PodMeta], caplog: pytest.LogCaptureFixture
) -> None:
    world.pods = {"a": make_pod("a")}
    service = world.service()
    world.minute(service, **TWO_PODS)
    await service.checkpoint_all()
    content = (world.directory / "a").read_bytes()
    for number in range(105):
        (world.directory / f"gone-{number}").write_bytes(content)
        (world.directory / f"damaged-{number}").write_text('{"UID":')
    caplog.set_level("INFO")
    world.service(settle=5.0).train()
    restored, unused = (line for line in caplog.messages if "rediction" in line)
    assert restored.startswith("Restored predictions models=8") and restored.endswith("removed_of_gone_pods=105")
    assert unused.startswith("Prediction checkpoints not used count=105 first=") and "damaged-0" in unused


async def test_at_the_end_only_models_trained_since_their_checkpoint_are_written(
    world: World, make_pod: Callable[..., PodMeta]
) -> None:
    world.pods = {"a": make_pod("a")}
    service = world.service()
    world.minute(service, **TWO_PODS)
    world.passed += 1
    await service.checkpoint_all()
    (world.directory / "a").unlink()
    await service.checkpoint_all()
    assert not (world.directory / "a").exists()


async def test_a_full_disk_is_reported_and_training_continues(
    world: World, make_pod: Callable[..., PodMeta], monkeypatch: pytest.MonkeyPatch
) -> None:
    world.pods = {"a": make_pod("a")}
    service = world.service()
    world.minute(service, **TWO_PODS)

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr("os.fsync", full)
        await service.checkpoint()
    assert list(world.directory.iterdir()) == []
    world.minute(service, **TWO_PODS)
    await service.checkpoint()
    assert len(list(world.directory.iterdir())) == 8, "retried in the next step"


def test_an_unreadable_directory_affects_only_the_checkpoints(
    world: World, make_pod: Callable[..., PodMeta], monkeypatch: pytest.MonkeyPatch
) -> None:
    world.pods = {"a": make_pod("a")}
    world.directory.mkdir()

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.iterdir", refuse)
    service = world.service()
    world.minute(service, **TWO_PODS)
    assert service.trained


def test_predictions_are_compared_with_the_observed_peak(world: World) -> None:
    models, validation = world.service().models, Validation()
    used = Amount(1000, GI)
    validation.observe(models, used, 0)
    models.train([NODE], models.cpu.buckets.starts[:1] + 1.0, models.memory.buckets.starts[:1] + GI, 0, 0)
    validation.observe(models, used, 60)
    assert not validation.errors, "no prediction before the first training"
    validation.observe(models, Amount(2070, GI), 600)
    validation.observe(models, used, 60 + VALIDATION_SECONDS)
    assert validation.errors["histogram", "cpu"] == pytest.approx(1035 / 2070 - 1)
    assert validation.exceeded["histogram", "cpu"] == 1
    assert validation.exceeded["histogram", "memory"] == 0
    assert set(validation.errors) == {(m, r) for m in ("histogram", "nsigma", "max") for r in ("cpu", "memory")}

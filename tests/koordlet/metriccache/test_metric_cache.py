"""The cache: batches are all or nothing, labels are checked, snapshots are restored or rejected."""

from pathlib import Path

import numpy as np
import pytest

from koordlet.metriccache import Aggregation, AggregationError, Batch, MetricCache, SeriesError
from koordlet.metriccache.kinds import BY_NAME, KINDS
from koordlet.metriccache.snapshot import SnapshotError, load, save
from tests.koordlet.metriccache.lastvalue import last

BOOT = "5f5b0e5e"


def filled() -> MetricCache:
    cache = MetricCache()
    for at in range(10):
        batch = Batch(at)
        batch.add("node_cpu_usage", at)
        batch.add("pod_cpu_usage", at * 2, "uid-1")
        batch.add("pod_cpu_usage", at * 3, "uid-2")
        cache.commit(batch)
    return cache


def test_names_are_unique() -> None:
    assert len(BY_NAME) == len(KINDS)


def test_partial_labels_pool_the_points_of_all_series() -> None:
    cache = filled()
    assert sorted(cache.query("pod_cpu_usage", 8, 9).values) == [16, 18, 24, 27]
    assert list(cache.query("pod_cpu_usage", 8, 9, pod_uid="uid-2").values) == [24, 27]
    assert last(cache, "pod_cpu_usage", 0, 9, pod_uid="uid-1") == 18
    assert last(cache, "pod_cpu_usage", 0, 9, pod_uid="gone") is None


def test_covered_is_the_time_between_first_and_last_sample() -> None:
    assert filled().query("node_cpu_usage", 2, 100).covered == 7


def test_a_window_reduces_every_series() -> None:
    window = filled().window("pod_cpu_usage", 0, 9)
    assert window.aggregate([Aggregation.AVG]) == {Aggregation.AVG: {("uid-1",): 9, ("uid-2",): 13.5}}


def test_an_empty_window_is_an_error_to_aggregate() -> None:
    with pytest.raises(AggregationError):
        filled().query("node_cpu_usage", 50, 60).aggregate(Aggregation.AVG)


BAD = {
    "unknown kind": ("nope", ("x",), "no series kind"),
    "labels missing": ("pod_cpu_usage", (), "takes the labels"),
    "labels in excess": ("node_cpu_usage", ("x",), "takes the labels"),
}


@pytest.mark.parametrize(("kind", "labels", "message"), BAD.values(), ids=BAD)
def test_an_invalid_sample_rejects_the_whole_batch(kind: str, labels: tuple[str, ...], message: str) -> None:
    cache = filled()
    batch = Batch(10)
    batch.add("node_memory_usage", 1.0)
    batch.add(kind, 1.0, *labels)
    with pytest.raises(SeriesError, match=message):
        cache.commit(batch)
    assert last(cache, "node_memory_usage", 0, 100) is None


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_values_must_be_finite(value: float) -> None:
    with pytest.raises(SeriesError, match="finite"):
        Batch(0).add("node_cpu_usage", value)


def test_an_undeclared_label_in_a_query_is_an_error() -> None:
    with pytest.raises(SeriesError, match="no label colour"):
        filled().query("pod_cpu_usage", 0, 1, colour="red")


def test_facts_have_an_age() -> None:
    cache = MetricCache()
    cache.facts.set("node_cpu_info", {"cpus": 2}, at=100)
    assert cache.facts.get("node_cpu_info", newer_than=50) == {"cpus": 2}
    assert cache.facts.get("node_cpu_info", newer_than=101) is None
    assert cache.facts.get("GPU") is None


def test_of_pooled_series_at_one_time_the_first_counts_as_last() -> None:
    assert filled().query("pod_cpu_usage", 0, 9).aggregate(Aggregation.LAST) == 18
    assert last(filled(), "pod_cpu_usage", 0, 9) == 18


def test_the_time_range_of_pooled_series_is_that_of_all() -> None:
    cache = MetricCache()
    for at, uid in ((0, "early"), (7, "late")):
        batch = Batch(at)
        batch.add("pod_cpu_usage", 1.0, uid)
        cache.commit(batch)
    assert cache.query("pod_cpu_usage", 0, 10).covered == 7


def test_several_reductions_in_one_call() -> None:
    points = filled().query("pod_cpu_usage", 0, 9, pod_uid="uid-1")
    assert points.aggregates([Aggregation.AVG, Aggregation.P90]) == {Aggregation.AVG: 9, Aggregation.P90: 16}
    with pytest.raises(AggregationError):
        points.since(10).aggregates([Aggregation.COUNT, Aggregation.P50])


def test_a_kind_is_kept_longer_after_retain() -> None:
    cache = MetricCache(tick=1.0, short_seconds=10, max_seconds=50)
    for at in range(5):
        batch = Batch(at)
        batch.add("pod_cpu_usage", at, "uid")
        cache.commit(batch)
    assert cache.retain("pod_cpu_usage", 30) == pytest.approx(30)
    assert cache.retain("pod_cpu_usage", 5) == pytest.approx(5), "the requested time; never fewer samples than before"
    assert cache.retain("node_numa_cpu_usage", 1000) == 50
    for at in range(5, 40):
        batch = Batch(at)
        batch.add("pod_cpu_usage", at, "uid")
        cache.commit(batch)
    assert list(cache.query("pod_cpu_usage", 9, 100).values) == list(range(9, 40))
    assert cache.retain("pod_cpu_usage", 49) == pytest.approx(49)
    assert list(cache.query("pod_cpu_usage", 9, 100).values) == list(range(9, 40)), "widening loses nothing"


def test_total_memory_is_bounded() -> None:
    cache = MetricCache(max_bytes=40_000)
    keys = [(f"uid-{number}",) for number in range(500)]
    batch = Batch(0)
    batch.extend("pod_cpu_usage", keys, np.ones(500))
    cache.commit(batch)
    assert cache.nbytes <= 40_000
    assert cache.lost > 0
    kept = len(cache.window("pod_cpu_usage", 0, 0).keys)
    assert kept + cache.lost == 500
    assert cache.retain("pod_cpu_usage", 3600) < 3600, "retain uses no more either"


def test_snapshot_round_trip(tmp_path: Path) -> None:
    cache, copy, path = filled(), MetricCache(), tmp_path / "state" / "metrics.npz"
    save(cache, path, 9, BOOT)
    assert load(copy, path, 20, BOOT, max_age=60) == 3
    for kind in ("node_cpu_usage", "pod_cpu_usage"):
        assert list(copy.query(kind, 0, 100).values) == list(cache.query(kind, 0, 100).values)
    assert [entry.name for entry in path.parent.iterdir()] == ["metrics.npz"]


def test_a_missing_snapshot_is_an_empty_start(tmp_path: Path) -> None:
    assert load(MetricCache(), tmp_path / "none", 0, BOOT, max_age=60) == 0


@pytest.mark.parametrize(
    ("now", "boot", "message"),
    [(100, BOOT, "91 s ago"), (5, BOOT, "-4 s ago"), (10, "another", "last boot")],
    ids=["too old", "from the future", "another boot"],
)
def test_a_snapshot_of_another_time_or_boot_is_rejected(tmp_path: Path, now: int, boot: str, message: str) -> None:
    save(filled(), tmp_path / "m", 9, BOOT)
    with pytest.raises(SnapshotError, match=message):
        load(MetricCache(), tmp_path / "m", now, boot, max_age=60)


@pytest.mark.parametrize("damage", [b"", b"garbage", None], ids=["empty", "garbage", "cut short"])
def test_a_damaged_snapshot_is_rejected(tmp_path: Path, damage: bytes | None) -> None:
    path = tmp_path / "m"
    save(filled(), path, 9, BOOT)
    path.write_bytes(path.read_bytes()[:-400] if damage is None else damage)
    with pytest.raises(SnapshotError, match="not a usable snapshot"):
        load(MetricCache(), path, 10, BOOT, max_age=60)


def test_a_failed_save_leaves_the_old_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m"
    save(filled(), path, 9, BOOT)
    before = path.read_bytes()

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        save(MetricCache(), path, 10, BOOT)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["m"]

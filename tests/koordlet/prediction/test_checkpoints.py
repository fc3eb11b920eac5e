"""Checkpoints: the worked examples of spec 02 §8.4, round trips, damaged files and full disks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.api.crs.analysis import HistogramCheckpoint
from koordlet.api.encoding.wire import Time, decode, encode
from koordlet.app.histogram import CPU_BUCKETS, Buckets, CheckpointError, Histograms, pack, unpack
from koordlet.prediction.checkpoints import CheckpointDirectory, ModelCheckpoint
from koordlet.prediction.models import PredictionModels

NOW = 1_782_864_000.0  # 2026-07-01T00:00:00Z
HALF = 12 * 3600.0
ROW = np.array([0])


def with_weights(weights: dict[int, float]) -> Histograms:
    histograms = Histograms(Buckets(np.arange(10.0)), HALF, rows=1)
    for bucket, weight in weights.items():
        histograms.add(ROW, np.array([float(bucket)]), NOW, weight)
    return histograms


PACKED = {
    "unchanged": ({1: 1, 2: 10000, 3: 50}, {"1": 1, "2": 10000, "3": 50}, 10051),
    "too small": ({1: 1, 2: 100000}, {"2": 10000}, 100001),
    "half up": ({1: 0.5, 2: 10000}, {"1": 1, "2": 10000}, 10000.5),
    "nothing": ({}, {}, 0),
}


@pytest.mark.parametrize(("weights", "shares", "total"), PACKED.values(), ids=PACKED)
def test_weights_are_written_relative_to_the_largest(
    weights: dict[int, float], shares: dict[str, int], total: float
) -> None:
    packed = pack(with_weights(weights), 0)
    assert packed.bucket_weights == shares
    assert packed.total_weight == pytest.approx(total)


def test_weights_are_read_as_fractions_of_the_total() -> None:
    histograms = with_weights({})
    unpack(HistogramCheckpoint(bucket_weights={"0": 1, "1": 2}, total_weight=6.0), histograms, 0)
    assert histograms.weights[0, :3].tolist() == [2.0, 4.0, 0.0]


def test_a_file_has_exactly_koordinators_format(tmp_path: Path) -> None:
    models = PredictionModels()
    models.train(["__node-sys__"], np.array([0.5]), np.array([float(1 << 30)]), NOW, 0)
    CheckpointDirectory(tmp_path).write(models, "__node-sys__", NOW + 600)
    assert (tmp_path / "__node-sys__").read_text() == (
        '{"UID":"__node-sys__",'
        '"CPU":{"referenceTimestamp":"2026-07-01T00:00:00Z","bucketWeights":{"14":10000},"totalWeight":1},'
        '"Memory":{"referenceTimestamp":"2026-07-01T00:00:00Z","bucketWeights":{"49":10000},"totalWeight":1},'
        '"LastUpdated":"2026-07-01T00:10:00Z"}'
    )
    assert [path.name for path in tmp_path.iterdir()] == ["__node-sys__"]


BAD = {
    "no histogram": (None, "histogram is missing"),
    "negative total": ({"totalWeight": -1}, "totalWeight"),
    "bucket below": ({"totalWeight": 1, "bucketWeights": {"-1": 1}}, r"bucketWeights\[-1\]"),
    "bucket above": ({"totalWeight": 1, "bucketWeights": {"10": 1}}, r"bucketWeights\[10\]"),
    "bucket without a number": ({"totalWeight": 1, "bucketWeights": {"x": 1}}, r"bucketWeights\[x\]"),
    "negative weight": ({"totalWeight": 1, "bucketWeights": {"1": -1}}, r"bucketWeights\[1\]"),
}


@pytest.mark.parametrize(("body", "message"), BAD.values(), ids=BAD)
def test_an_invalid_histogram_is_rejected(body: dict[str, Any] | None, message: str) -> None:
    histograms = with_weights({})
    stored = None if body is None else decode(json.dumps(body), HistogramCheckpoint)
    with pytest.raises(CheckpointError, match=message):
        unpack(stored, histograms, 0)
    assert not histograms.weights.any()


def test_weights_with_sum_zero_give_an_empty_histogram() -> None:
    histograms = with_weights({})
    unpack(HistogramCheckpoint(bucket_weights={"1": 0}, total_weight=5.0), histograms, 0)
    assert histograms.total[0] == 0


@given(
    st.lists(st.tuples(st.floats(0, 2000), st.floats(0.01, 10), st.floats(0, 200 * HALF)), max_size=30),
    st.lists(st.floats(0.01, 1), min_size=1, max_size=5),
)
def test_a_round_trip_keeps_weights_within_a_ten_thousandth(
    samples: list[tuple[float, float, float]], shares: list[float]
) -> None:
    histograms, copy = Histograms(CPU_BUCKETS, HALF, rows=1), Histograms(CPU_BUCKETS, HALF, rows=1)
    for value, weight, ahead in sorted(samples, key=lambda sample: sample[2]):
        histograms.add(ROW, np.array([value]), NOW + ahead, weight)
    stored: HistogramCheckpoint = decode(encode(pack(histograms, 0)), HistogramCheckpoint)
    unpack(stored, copy, 0)
    largest = histograms.weights.max()
    # The total is divided among rounded weights, so each bucket may add half a ten-thousandth to every other.
    assert copy.weights == pytest.approx(histograms.weights, abs=largest * (1 + len(samples)) / 10_000)
    if largest:
        assert copy.total == pytest.approx(histograms.total)
    # The percentile is the same unless the cumulative weight is close to the requested share.
    reached = np.cumsum(histograms.weights[0])
    for share in shares:
        if np.abs(reached - share * histograms.total[0]).min() > largest * (1 + len(samples)) ** 2 / 10_000:
            assert copy.percentiles(ROW, [share]) == histograms.percentiles(ROW, [share])


def filled(directory: CheckpointDirectory) -> PredictionModels:
    models = PredictionModels()
    for minute in range(30):
        models.train(["uid", "__node__"], np.array([0.5, 2.0]), np.array([1e9, 8e9]), NOW + 60 * minute, 60.0 * minute)
    for key in models.stamps:
        directory.write(models, key, NOW + 1800)
    return models


def restored(directory: CheckpointDirectory, *expected: str) -> tuple[PredictionModels, dict[str, str]]:
    models = PredictionModels()
    result = directory.restore(models, set(expected).__contains__, unix_offset=NOW)
    assert result.models == len(models.stamps)
    return models, {key.rpartition("/")[2]: value for key, value in result.problems.items()}


def test_restored_models_have_the_same_peaks(tmp_path: Path) -> None:
    directory = CheckpointDirectory(tmp_path / "made" / "as needed")
    before = filled(directory)
    after, notes = restored(directory, "uid", "__node__")
    assert after.peaks(before.stamps) == before.peaks(before.stamps)
    assert not notes
    assert after.stamps["uid"].updated == 1800, "the file's time, on the stamps' clock"
    assert after.stamps["uid"].checkpointed == -np.inf


def test_unusable_files_are_removed(tmp_path: Path) -> None:
    directory = CheckpointDirectory(tmp_path)
    filled(directory)
    (tmp_path / "uid.tmp").write_text("half")
    (tmp_path / "corrupt").write_text('{"UID":')
    (tmp_path / "a directory").mkdir()
    (tmp_path / "a link").symlink_to(tmp_path / "uid")
    models, notes = restored(directory, "uid", "corrupt")
    assert list(models.stamps) == ["uid"]
    assert notes["uid.tmp"] == "partly written"
    assert notes.keys() == {"uid.tmp", "corrupt"}, "the file of a pod that is gone is no problem"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a directory", "a link", "uid"]


def test_the_valid_histogram_of_a_damaged_file_is_used(tmp_path: Path) -> None:
    directory = CheckpointDirectory(tmp_path)
    before = filled(directory)
    file = tmp_path / "uid"
    file.write_text(file.read_text().replace('"totalWeight"', '"totalWeight":-1,"x"', 1))
    models, notes = restored(directory, "uid", "__node__")
    row, old = models.stamps["uid"].row, before.stamps["uid"].row
    assert models.memory.percentiles(np.array([row]), [0.98]) == before.memory.percentiles(np.array([old]), [0.98])
    assert models.cpu.total[row] == 0
    assert models.peaks(["uid"]) == {}, "a peak of 0 would overcommit everything"
    assert notes == {"uid: CPU": "totalWeight is -1.0"}


def test_the_file_name_is_the_key(tmp_path: Path) -> None:
    filled(CheckpointDirectory(tmp_path))
    (tmp_path / "uid").rename(tmp_path / "other")
    models, _ = restored(CheckpointDirectory(tmp_path), "other")
    assert list(models.stamps) == ["other"]


def test_a_missing_directory_is_an_empty_start(tmp_path: Path) -> None:
    models, notes = restored(CheckpointDirectory(tmp_path / "none"), "uid")
    assert not models.stamps
    assert not notes


@pytest.mark.parametrize("key", ["../uid", "a/b", "..", "", "x.tmp"])
def test_a_key_that_is_no_file_name_is_rejected(tmp_path: Path, key: str) -> None:
    models = PredictionModels()
    models.train([key], np.array([1.0]), np.array([1.0]), NOW, 0)
    with pytest.raises(CheckpointError, match="name of a file"):
        CheckpointDirectory(tmp_path / "inner").write(models, key, NOW)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = CheckpointDirectory(tmp_path)
    models = filled(directory)
    before = (tmp_path / "uid").read_bytes()

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    models.train(["uid"], np.array([9.0]), np.array([9e9]), NOW + 9000, 9000.0)
    with pytest.raises(OSError, match="No space"):
        directory.write(models, "uid", NOW)
    assert (tmp_path / "uid").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["__node__", "uid"]


def test_koordinators_own_file_is_read() -> None:
    text = (
        '{"UID":"u","CPU":{"referenceTimestamp":null,"bucketWeights":{"12":10000,"13":37},"totalWeight":812.5},'
        '"Memory":null,"LastUpdated":"2026-07-01T00:10:00Z"}'
    )
    stored: ModelCheckpoint = decode(text, ModelCheckpoint)
    assert stored.cpu is not None
    assert stored.cpu.bucket_weights == {"12": 10000, "13": 37}
    assert stored.memory is None
    assert stored.last_updated == Time.parse("2026-07-01T00:10:00Z")

"""The benchmark of a hostile pod runs; its figures are compared with their budgets on demand only."""

import asyncio

from tests.scale.bench_hostile_pod import MAX_ANNOTATION_BYTES, answer, hostile_annotations, measure


def test_the_benchmark_measures_every_figure() -> None:
    figures = asyncio.run(measure(3))
    assert [figure.value > 0 for figure in figures[:3]] == [True] * 3


def test_the_attackers_annotations_have_the_maximal_size() -> None:
    texts = hostile_annotations(1)
    assert MAX_ANNOTATION_BYTES - 100 < sum(len(key) + len(text) for key, text in texts.items()) <= MAX_ANNOTATION_BYTES
    assert len(answer(texts)) > MAX_ANNOTATION_BYTES

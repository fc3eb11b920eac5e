"""The benchmark of a long answer runs; its figures are compared with their budgets on demand only."""

from tests.scale.bench_long_answer import run


def test_the_benchmark_measures_every_figure() -> None:
    assert all(figure.value > 0 for figure in run(2))

"""The pages that `make configuration` writes are current and complete."""

from __future__ import annotations

from scripts import configreference, metricsreference
from tests.repository.sources import facts, product_modules


def test_the_configuration_reference_is_current() -> None:
    written = configreference.PAGE.read_text(encoding="utf-8")
    assert configreference.page() == written, "run `make configuration`"


def test_the_metrics_of_components_are_current() -> None:
    written = metricsreference.PAGE.read_text(encoding="utf-8")
    assert metricsreference.page() == written, "run `make configuration`"


def test_every_set_of_metrics_is_listed() -> None:
    defined = {name for path in product_modules() for name, _, bases in facts(path).classes if "MetricSet" in bases}
    listed = [of.__name__ for sets in metricsreference.SETS.values() for of in sets]
    assert sorted(listed) == sorted(defined), "SETS of scripts/metricsreference.py"

"""CEL selectors over devices: results, bounds, and results that are reused only for devices that are equal in what was
read."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control.scheduler.plugins.dynamicresources import regexes, selectors
from control.scheduler.plugins.dynamicresources.pools import ClaimableDevice, Pools
from control.scheduler.plugins.dynamicresources.selectors import Expression, ExpressionError, Version, expression
from tests.control.scheduler.dynamicresources.objects import DRIVER, MODEL, device, slice_of

ATTRIBUTES = f'device.attributes["{DRIVER}"]'
MEMORY = f'device.capacity["{DRIVER}"].memory'


def a_device(**more: Any) -> ClaimableDevice:
    body = device("gpu-0", **more)
    body["attributes"] |= {"other.com/rank": {"int": 3}, "mig": {"bool": True}, "driverVersion": {"version": "1.2.3"}}
    (known,) = Pools.of([slice_of("n1", body)]).local["n1"]
    return known


@pytest.mark.parametrize(
    ("text", "result"),
    [
        (f'device.driver == "{DRIVER}"', True),
        (f'{MODEL} == "A100"', True),
        (f'{MODEL} == "H100"', False),
        (f"{ATTRIBUTES}.mig", True),
        (f"{ATTRIBUTES}.numa < 1 && {ATTRIBUTES}.mig", True),
        (f'{MEMORY}.compareTo(quantity("40Gi")) == 0', True),
        (f'{MEMORY}.isGreaterThan(quantity("39Gi")) && !{MEMORY}.isLessThan(quantity("1Gi"))', True),
        (f'{ATTRIBUTES}.driverVersion.isGreaterThan(semver("1.2.3-rc.1"))', True),
        (f'{ATTRIBUTES}.driverVersion.compareTo(semver("1.10.0")) < 0', True),
        (f'{MODEL}.matches("^[AH]100$")', True),
        (f'"{DRIVER}" in device.attributes', True),
        ('"none.com" in device.attributes', False),
        (f'"model" in {ATTRIBUTES}', True),
        (f"has({ATTRIBUTES}.nothing)", False),
        (f"has({ATTRIBUTES}.nothing) && {ATTRIBUTES}.nothing == 1", False),
        ('device.attributes["other.com"].rank == 3', True),
        ('has(device.attributes["none.com"].rank)', False),
        (f'{MODEL} in ["A100", "H100"]', True),
        (f'{ATTRIBUTES}.numa % 2 == 0 && size({MODEL}) == 4 && {MODEL}.matches("^A\\\\d+$")', True),
    ],
)
def test_expressions(text: str, result: bool) -> None:
    assert Expression(text).matches(a_device()) is result


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("device.driver ==", "cannot be parsed"),
        (f"{ATTRIBUTES}.nothing == 1", "cannot be evaluated: .no such member in mapping: 'nothing'"),
        ("device.driver", "the result is not a boolean"),
        ("1 / 0 == 1", "cannot be evaluated"),
        (f'{MEMORY}.compareTo(semver("1.0.0")) == 0', "cannot be evaluated"),
        ('semver("1") == semver("1.0.0")', "cannot be evaluated"),
        ("unknown == 1", "cannot be evaluated"),
        ("[1, 2].all(x, [1, 2].all(y, x == y))", "the function .all. is not evaluated"),
        ("[1].map(x, x) == [1]", "the function .map. is not evaluated"),
        ("device.driver == '" + "x" * 3000 + "'", "at most 2048 are evaluated"),
        ("(" * 900 + "true" + ")" * 900, "cannot be|not"),
        # exponential time in regular expressions of cel-python, and a string of 1 GB
        ('duration("' + "a" * 60 + '!") == duration("1h")', "the function .duration. is not evaluated"),
        ('.timestamp("2026-01-01T00:00:00Z").getHours("/etc/hosts") == 1', "the function .* is not evaluated"),
        ('"' + "\\" * 100, "more than 16 backslashes"),
        ('"' * 3 + "\r\n" * 100, "carriage returns, and more than 16 backslashes"),
        ('"' * 3 + "\n" * 100 + "\\" * 16, "cannot be parsed"),
        ('"%999999999d" % 1 == "x"', "cannot be evaluated"),
        ('semver("1.0.0") < 1', "cannot be evaluated"),
    ],
)
def test_what_cannot_be_evaluated_says_why(text: str, reason: str) -> None:
    with pytest.raises(ExpressionError, match=reason):
        assert Expression(text).matches(a_device())


def test_a_compiled_expression_and_its_error_are_remembered() -> None:
    assert expression(f'{MODEL} == "x"', 2048) is expression(f'{MODEL} == "x"', 2048)
    assert expression("device.", 2048) is expression("device.", 2048)


def test_devices_that_are_equal_in_what_was_read_are_evaluated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    test = Expression(f'{MODEL} == "A100" && {MEMORY}.isGreaterThan(quantity("1Gi"))')
    evaluated: list[str] = []
    view = selectors._view

    def noted(of: ClaimableDevice, note: Any) -> Any:
        evaluated.append(of.id.device)
        return view(of, note)

    monkeypatch.setattr(selectors, "_view", noted)
    known = [
        device("gpu-0"), device("gpu-1"), device("gpu-2", model="H100"), device("gpu-3", memory="80Gi"),
        device("gpu-4", model="H100"),
    ]  # fmt: skip
    results = [test.matches(each) for each in Pools.of([slice_of("n1", *known)]).local["n1"]]
    assert results == [True, True, False, True, False]
    assert evaluated == ["gpu-0", "gpu-2", "gpu-3"]


WORDS = st.sampled_from(("A100", "H100", "T4"))
TERMS = st.one_of(
    WORDS.map(lambda model: f'{MODEL} == "{model}"'),
    st.integers(0, 3).map(lambda number: f"{ATTRIBUTES}.numa >= {number}"),
    st.sampled_from(("10Gi", "40Gi")).map(lambda amount: f'{MEMORY}.isGreaterThan(quantity("{amount}"))'),
    st.sampled_from(("model", "nothing")).map(lambda name: f'"{name}" in {ATTRIBUTES}'),
    st.sampled_from(("model", "nothing")).map(lambda name: f"has({ATTRIBUTES}.{name})"),
    st.just(f'{ATTRIBUTES}.nothing == "x"'),
)
EXPRESSIONS = st.recursive(
    TERMS, lambda inner: st.tuples(inner, st.sampled_from(("&&", "||")), inner).map(lambda p: f"({p[0]} {p[1]} {p[2]})")
)


@settings(max_examples=60)
@given(EXPRESSIONS, st.lists(st.tuples(WORDS, st.integers(0, 3), st.sampled_from(("8Gi", "40Gi", "80Gi"))), max_size=6))
def test_a_reused_result_is_the_evaluated_one(text: str, models: list[tuple[str, int, str]]) -> None:
    devices = [device(f"gpu{at}-{numa}", model, memory) for at, (model, numa, memory) in enumerate(models)]
    shared = Expression(text)
    for each in Pools.of([slice_of("n1", *devices)]).local.get("n1", []):
        assert outcome(shared, each) == outcome(Expression(text), each)


def outcome(test: Expression, each: ClaimableDevice) -> bool | str:
    try:
        return test.matches(each)
    except ExpressionError as error:
        return str(error)


def test_versions() -> None:
    texts = ["1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-alpha.beta", "1.0.0-beta", "1.0.0-rc.1", "1.0.0", "1.0.1", "1.10.0"]
    assert sorted(map(Version, reversed(texts))) == [Version(text) for text in texts]
    assert Version("1.0.0+build") == Version("1.0.0")
    with pytest.raises(ValueError, match="semantic version"):
        Version("1.0")


@pytest.mark.parametrize("operator", ["||", "&&"])
def test_errors_of_many_operands_do_not_add_up(operator: str) -> None:
    """Two errors of an operand made an error that was twice as long, so 30 operands needed more than 2 GB."""
    text = f" {operator} ".join(f'device.attributes["a{number}"].b == "x"' for number in range(18))
    test, gpu = Expression(text), a_device()
    tracemalloc.start()
    try:
        with pytest.raises(ExpressionError, match="found no matching overload"):
            test.matches(gpu)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2_000_000


def test_a_pattern_is_charged_by_its_size() -> None:
    """A pattern of 18 characters took 40 ms for each device, at the price of 12 us."""
    spent: list[int] = []
    gpu = a_device()
    assert Expression(f'{MODEL}.matches("x{{1,900}}|A100")').matches(gpu, spent.append)
    assert sum(spent) > regexes.COMPILE_STEPS
    spent.clear()
    assert Expression(f'{MODEL}.matches("^[AH]100$")').matches(gpu, lambda steps: None)
    assert Expression(f'{MODEL}.matches("^[AH]100$") ').matches(gpu, spent.append)
    assert sum(spent) < 100  # it is compiled already


def test_a_refused_pattern_is_compiled_once_and_not_logged(capfd: pytest.CaptureFixture[str]) -> None:
    compilations = regexes._compiled.cache_info().misses
    for number in range(3):
        with pytest.raises(ExpressionError, match="the pattern is refused"):
            Expression(f'"{number}".matches("(?i)(\\\\pL{{9}}){{100}}")').matches(a_device())
    assert regexes._compiled.cache_info().misses == compilations + 1
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f'["{"a" * 200}", "{"a" * 200}"].matches("a")', "needs a text and a pattern"),
        (" || ".join([f'"{"a" * 180}".matches("((((((a?){{9}})?){{9}})?){{9}})?b")'] * 8), "take too long"),
        (f'"{"a" * 300}".matches("a")', "at most 256 characters"),
        (f'"a".matches("{"a" * 300}")', "at most 256 characters"),
        ('"a".matches(1)', "needs a text and a pattern"),
    ],
)
def test_patterns_and_their_texts_are_bounded(text: str, reason: str) -> None:
    with pytest.raises(ExpressionError, match=reason):
        Expression(text).matches(a_device())

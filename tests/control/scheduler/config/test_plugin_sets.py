"""The plugins at each point: merging with the defaults, expanding `multiPoint`, order and weights (spec 05 §2.1)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.scheduler.config.model import PluginRef, PluginSet, ProfilePlugins
from control.scheduler.config.plugins import PluginError, expanded, merge_set, merged


def refs(text: str) -> list[PluginRef]:
    """`A B:3`."""
    built = []
    for word in text.split():
        name, _, weight = word.partition(":")
        built.append(PluginRef(name, int(weight or 0)))
    return built


def of(enabled: str = "", disabled: str = "") -> PluginSet:
    return PluginSet(refs(enabled), refs(disabled))


def everything(plugin: str, point: str) -> bool:
    return True


@pytest.mark.parametrize(
    ("default", "own", "expected"),
    [
        (of("A B C"), of(), "A B C"),
        (of("A B C"), of("D"), "A B C D"),
        (of("A B C"), of("", "B"), "A C"),
        (of("A B C"), of("", "*"), ""),
        (of("A B C"), of("C D", "*"), "C D"),
        (of("A B:1 C"), of("B:9 D"), "A B:9 C D"),
        (of("A B C"), of("A", "A"), "B C A"),
    ],
    ids=["default", "append", "drop-one", "drop-all", "only", "in-place", "disabled-and-enabled-moves-last"],
)
def test_merging(default: PluginSet, own: PluginSet, expected: str) -> None:
    assert merge_set(default, own).enabled == refs(expected)


@pytest.mark.parametrize(
    ("multi", "filter_set", "expected"),
    [
        (of("A B"), of(), "A B"),
        (of("A B"), of("X Y"), "A B X Y"),
        (of("A B C"), of("X C A Y"), "C A B X Y"),
        (of("A B"), of("", "A"), "B"),
        (of("A B"), of("X", "*"), "X"),
        (of("A B Silent"), of(), "A B"),
        (of("A B"), of("Silent C"), "A B C"),
    ],
    ids=["multi", "explicit-behind", "overridden-first", "one-off", "all-off", "not-implemented", "does-nothing-there"],
)
def test_expansion_order(multi: PluginSet, filter_set: PluginSet, expected: str) -> None:
    expansion = expanded(ProfilePlugins(filter=filter_set, multi_point=multi), lambda name, point: name != "Silent")
    assert " ".join(expansion.points["filter"]) == expected


def test_weights_come_from_the_point_before_multi_point() -> None:
    expansion = expanded(ProfilePlugins(score=of("A:5 C"), multi_point=of("A:2 B:3 D")), everything)
    assert expansion.weights == {"A": 5, "C": 1, "B": 3, "D": 1}
    assert expansion.points["score"] == ("A", "B", "D", "C")


@pytest.mark.parametrize(
    "plugins", [ProfilePlugins(filter=of("A A")), ProfilePlugins(multi_point=of("A A"))], ids=["point", "multi"]
)
def test_twice_is_once_too_often(plugins: ProfilePlugins) -> None:
    with pytest.raises(PluginError, match='plugin "A" already registered as'):
        expanded(plugins, everything)


def test_a_plugin_cannot_be_listed_at_a_point_that_it_does_not_extend() -> None:
    with pytest.raises(PluginError, match='plugin "Coscheduling" does not extend FilterPlugin plugin'):
        expanded(ProfilePlugins(filter=of("Coscheduling")), lambda name, point: False)


@pytest.mark.parametrize(
    ("pre_bind", "expected"),
    [
        (of(), ["DefaultPreBind"]),
        (of("X"), ["X", "DefaultPreBind"]),
        (of("DefaultPreBind X"), ["DefaultPreBind", "X"]),
        (of("X", "DefaultPreBind"), ["X"]),
        (of("X", "*"), ["X"]),
    ],
    ids=["alone", "last", "already", "disabled", "all-disabled"],
)
def test_default_pre_bind_is_appended(pre_bind: PluginSet, expected: list[str]) -> None:
    assert merged(ProfilePlugins(pre_bind=pre_bind)).pre_bind.names() == expected


names = st.lists(st.sampled_from("ABCDEF"), unique=True).map(lambda letters: of(" ".join(letters)))


@given(names, names, st.sets(st.sampled_from("ABCDEF")))
def test_each_plugin_runs_once_in_a_known_order(multi: PluginSet, explicit: PluginSet, off: set[str]) -> None:
    plugins = ProfilePlugins(filter=PluginSet(explicit.enabled, [PluginRef(name) for name in off]), multi_point=multi)
    filters = expanded(plugins, everything).points["filter"]
    assert set(filters) == set(explicit.names()) | (set(multi.names()) - off)
    assert len(filters) == len(set(filters))
    both = [name for name in explicit.names() if name in multi.names() and name not in off]
    assert list(filters[: len(both)]) == both

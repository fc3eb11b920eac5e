"""Strategic merge patch with the real schemas of Pod and Deployment."""

import copy
from typing import Any

import pytest

from control.standalone.schema.builtin import Builtins
from koordlet.api.encoding import strategicmerge
from koordlet.api.encoding.strategicmerge import StrategicPatchError

POD = Builtins().schema("", "v1", "Pod")
DEPLOYMENT = Builtins().schema("apps", "v1", "Deployment")


def pod(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p"}, "spec": spec}


A, B, C = ({"name": n, "image": f"{n}:1"} for n in "abc")

CASES = {
    "merges containers by name": (
        pod(containers=[A, B]),
        pod(containers=[{"name": "b", "image": "b:2"}, C]),
        pod(containers=[A, {"name": "b", "image": "b:2"}, C]),
    ),
    "deletes a container": (
        pod(containers=[A, B]),
        {"spec": {"containers": [{"name": "a", "$patch": "delete"}]}},
        pod(containers=[B]),
    ),
    "replaces the list": (
        pod(containers=[A, B]),
        {"spec": {"containers": [C, {"$patch": "replace"}]}},
        pod(containers=[C]),
    ),
    "replaces a map": (
        {"metadata": {"labels": {"a": "1", "b": "2"}}},
        {"metadata": {"labels": {"$patch": "replace", "c": "3"}}},
        {"metadata": {"labels": {"c": "3"}}},
    ),
    "deletes a map's content": (pod(nodeSelector={"a": "1"}), {"spec": {"$patch": "delete"}}, {**pod(), "spec": {}}),
    "null removes": (pod(nodeName="n", priority=1), {"spec": {"nodeName": None}}, pod(priority=1)),
    "atomic list is replaced": (
        pod(tolerations=[{"key": "a"}]),
        {"spec": {"tolerations": [{"key": "b"}]}},
        pod(tolerations=[{"key": "b"}]),
    ),
    "primitive list merges": (
        {"metadata": {"finalizers": ["a", "b"]}},
        {"metadata": {"finalizers": ["b", "c"]}},
        {"metadata": {"finalizers": ["a", "b", "c"]}},
    ),
    "primitive list loses": (
        {"metadata": {"finalizers": ["a", "b", "c"]}},
        {"metadata": {"$deleteFromPrimitiveList/finalizers": ["b"]}},
        {"metadata": {"finalizers": ["a", "c"]}},
    ),
    "new items come in the patch's order": (
        pod(containers=[C, B]),
        pod(containers=[{"name": "c"}, A]),
        pod(containers=[C, A, B]),
    ),
    "new items come first": (pod(containers=[B]), pod(containers=[C, A]), pod(containers=[C, A, B])),
    "patched items take the patch's order": (
        pod(containers=[A, B]),
        pod(containers=[{"name": "b"}, {"name": "a"}]),
        pod(containers=[B, A]),
    ),
    "deleted items have no place": (
        pod(containers=[A, B]),
        pod(containers=[{"name": "a", "$patch": "delete"}, C]),
        pod(containers=[C, B]),
    ),
    "new primitives come first": (
        {"metadata": {"finalizers": ["a", "b"]}},
        {"metadata": {"finalizers": ["c", "b"]}},
        {"metadata": {"finalizers": ["c", "a", "b"]}},
    ),
    "order is set": (
        pod(containers=[A, B]),
        {"spec": {"$setElementOrder/containers": [{"name": "c"}, {"name": "b"}, {"name": "a"}], "containers": [C]}},
        pod(containers=[C, B, A]),
    ),
    "unnamed items keep their place": (
        pod(containers=[A, B]),
        {"spec": {"$setElementOrder/containers": [{"name": "b"}, {"name": "c"}], "containers": [C]}},
        pod(containers=[A, B, C]),
    ),
    "retains only the keys": (
        pod(volumes=[{"name": "v", "emptyDir": {}}]),
        {"spec": {"volumes": [{"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/x"}}]}},
        pod(volumes=[{"name": "v", "hostPath": {"path": "/x"}}]),
    ),
    "nested merge keys": (
        pod(containers=[{"name": "a", "env": [{"name": "X", "value": "1"}], "ports": [{"containerPort": 80}]}]),
        {"spec": {"containers": [{"name": "a", "env": [{"name": "Y", "value": "2"}],
                                  "ports": [{"containerPort": 80, "name": "web"}]}]}},
        pod(containers=[{"name": "a", "env": [{"name": "Y", "value": "2"}, {"name": "X", "value": "1"}],
                         "ports": [{"containerPort": 80, "name": "web"}]}]),
    ),
    "directives leave no trace in new maps": (
        pod(),
        {"spec": {"securityContext": {"$patch": "merge", "runAsUser": 1, "fsGroup": None}}},
        pod(securityContext={"runAsUser": 1}),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("doc", "patch", "want"), CASES.values(), ids=CASES.keys())
def test_pod(doc: dict[str, Any], patch: dict[str, Any], want: dict[str, Any]) -> None:
    before = copy.deepcopy(doc), copy.deepcopy(patch)
    assert strategicmerge.apply(doc, patch, POD) == want
    assert (doc, patch) == before


def test_changing_a_deployments_strategy_removes_the_old_strategys_settings() -> None:
    doc = {"spec": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}}}
    patch = {"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}}
    assert strategicmerge.apply(doc, patch, DEPLOYMENT) == {"spec": {"strategy": {"type": "Recreate"}}}


BAD = {
    "no merge key": ({"spec": {"containers": [{"image": "x"}]}}, "does not contain declared merge key: name"),
    "not an object": ({"spec": {"containers": ["x"]}}, ".spec.containers: expected objects"),
    "unknown directive": ({"spec": {"$patch": "mangle"}}, "unknown .patch type"),
    "order not a list": ({"spec": {"$setElementOrder/containers": 1}}, "expected a list"),
    "not retained": ({"spec": {"$retainKeys": ["a"], "b": 1}}, "must be in its .retainKeys"),
}


@pytest.mark.parametrize(("patch", "message"), BAD.values(), ids=BAD.keys())
def test_malformed_patches_are_rejected(patch: dict[str, Any], message: str) -> None:
    with pytest.raises(StrategicPatchError, match=message):
        strategicmerge.apply(pod(containers=[A]), patch, POD)


class CountedName(str):
    """A name that counts the comparisons of all names."""

    __slots__ = ()
    comparisons = 0

    def __eq__(self, other: object) -> bool:
        CountedName.comparisons += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def names(count: int) -> list[CountedName]:
    return [CountedName(f"n{number}") for number in range(count)]


def containers(count: int) -> dict[str, Any]:
    return pod(containers=[{"name": name, "image": "x"} for name in names(count)])


ITEMS = 400
LONG_LISTS = {
    "objects": (containers(ITEMS), containers(ITEMS), ITEMS),
    "new objects": (pod(), containers(ITEMS), ITEMS),
    "deleted objects": (
        containers(ITEMS),
        pod(containers=[{"name": name, "$patch": "delete"} for name in names(ITEMS)]),
        0,
    ),
    "primitives": ({"metadata": {"finalizers": names(ITEMS)}}, {"metadata": {"finalizers": names(ITEMS)}}, ITEMS),
    "new primitives": ({"metadata": {}}, {"metadata": {"finalizers": names(ITEMS)}}, ITEMS),
    "deleted primitives": (
        {"metadata": {"finalizers": names(ITEMS)}},
        {"metadata": {"$deleteFromPrimitiveList/finalizers": names(ITEMS)[::-1]}},
        0,
    ),
}


@pytest.mark.parametrize(("doc", "patch", "items"), LONG_LISTS.values(), ids=LONG_LISTS.keys())
def test_comparisons_are_proportional_to_the_list(doc: dict[str, Any], patch: dict[str, Any], items: int) -> None:
    CountedName.comparisons = 0
    result = strategicmerge.apply(doc, patch, POD)
    assert CountedName.comparisons < 20 * ITEMS
    merged = result["spec"]["containers"] if "spec" in result else result["metadata"]["finalizers"]
    assert len(merged) == items


UNHASHABLE = {
    "deleted primitives": {"metadata": {"$deleteFromPrimitiveList/finalizers": [["a"], {}]}},
    "order": {"metadata": {"$setElementOrder/finalizers": [["b"], "b", "a"]}},
    "retained keys": {"spec": {"$retainKeys": [["containers"], {}, "containers"]}},
    "merge key": pod(containers=[{"name": {"a": [1]}}, {"name": {"a": [1]}, "image": "x"}]),
    "order of merge keys": {"spec": {"$setElementOrder/containers": [{"name": ["x"]}, {"name": "a"}]}},
}
UNHASHABLE_RESULTS = {
    "order": ("metadata", "finalizers", ["b", "a"]),
    "merge key": ("spec", "containers", [{"name": {"a": [1]}, "image": "x"}, A]),
}


@pytest.mark.parametrize("case", UNHASHABLE)
def test_lists_and_objects_instead_of_names_are_compared_by_value(case: str) -> None:
    doc = {"metadata": {"finalizers": ["a", "b"]}, "spec": {"containers": [A]}}
    result = strategicmerge.apply(doc, UNHASHABLE[case], POD)  # type: ignore[arg-type]
    section, field, expected = UNHASHABLE_RESULTS.get(case, ("spec", "containers", [A]))
    assert result[section][field] == expected


def test_the_path_of_an_error_shows_the_beginning_of_a_long_name() -> None:
    patch = pod(containers=[{"name": "x" * 10_000, "ports": ["not an object"]}])
    with pytest.raises(StrategicPatchError, match="expected objects") as error:
        strategicmerge.apply(pod(), patch, POD)
    assert len(str(error.value)) < 200

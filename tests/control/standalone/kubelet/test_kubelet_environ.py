"""Environment and command line of a container."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.standalone.kubelet.pods.environ import (
    DownwardNodeInfo,
    EnvError,
    command_line,
    environment,
    expand,
    sources,
)
from control.standalone.kubelet.pods.spec import parse_pod

NODE = DownwardNodeInfo("n1", "10.0.0.1", 3500, 8 << 30)
DATA = {("ConfigMap", "cm"): {"a": "1", "b": "2"}, ("Secret", "s"): {"k": "hush"}}


def env_of(*env: Any, env_from: Any = None, **container: Any) -> dict[str, str]:
    raw = {
        "metadata": {
            "name": "p", "namespace": "ns", "uid": "u", "labels": {"app": "web"}, "annotations": {"x/y": "z"}
        },
        "spec": {
            "serviceAccountName": "robot",
            "containers": [{"name": "c", "env": list(env), "envFrom": env_from or [], **container}],
        },
    }  # fmt: skip
    pod = parse_pod(raw)
    return environment(pod, pod.containers[0], NODE, lambda kind, name: DATA.get((kind, name)))


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("$(A)", "1"),
        ("x$(A)y$(A)", "x1y1"),
        ("$(NONE)", "$(NONE)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$A", "$A"),
        ("$(", "$("),
        ("$()", "$()"),
        ("100$", "100$"),
    ],
)
def test_expand(text: str, result: str) -> None:
    assert expand(text, {"A": "1"}) == result


@given(st.text(alphabet="ab ()", max_size=20))
def test_text_without_dollar_is_not_changed(text: str) -> None:
    assert expand(text, {"a": "1"}) == text


def test_later_variables_see_earlier_ones_only() -> None:
    variables = env_of({"name": "A", "value": "$(B)"}, {"name": "B", "value": "b"}, {"name": "C", "value": "$(A)-$(B)"})
    assert variables == {"A": "$(B)", "B": "b", "C": "$(B)-b"}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.name", "p"),
        ("metadata.namespace", "ns"),
        ("metadata.uid", "u"),
        ("metadata.labels['app']", "web"),
        ("metadata.labels['none']", ""),
        ("metadata.annotations['x/y']", "z"),
        ("spec.nodeName", "n1"),
        ("spec.serviceAccountName", "robot"),
        ("status.hostIP", "10.0.0.1"),
        ("status.podIP", "10.0.0.1"),
    ],
)
def test_field_ref(path: str, value: str) -> None:
    assert env_of({"name": "V", "valueFrom": {"fieldRef": {"fieldPath": path}}}) == {"V": value}


@pytest.mark.parametrize(
    ("resource", "divisor", "value"),
    [
        ("limits.cpu", None, "2"),
        ("limits.cpu", "1m", "1500"),
        ("requests.cpu", "1m", "250"),
        ("limits.memory", "1Mi", "64"),
        ("requests.memory", None, str(64 << 20)),
        ("requests.ephemeral-storage", None, "0"),
    ],
)
def test_resource_ref_rounds_up(resource: str, divisor: str | None, value: str) -> None:
    ref = {"resource": resource, **({"divisor": divisor} if divisor else {})}
    resources = {"requests": {"cpu": "250m"}, "limits": {"cpu": "1500m", "memory": "64Mi"}}
    assert env_of({"name": "V", "valueFrom": {"resourceFieldRef": ref}}, resources=resources) == {"V": value}


def test_an_absent_limit_is_the_nodes_allocatable() -> None:
    refs = [
        {"name": n, "valueFrom": {"resourceFieldRef": {"resource": f"limits.{n}", "divisor": d}}}
        for n, d in (("cpu", "1m"), ("memory", "1Gi"))
    ]
    assert env_of(*refs) == {"cpu": "3500", "memory": "8"}


def test_config_maps_and_secrets() -> None:
    variables = env_of(
        {"name": "S", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        {"name": "O", "valueFrom": {"secretKeyRef": {"name": "none", "key": "k", "optional": True}}},
        env_from=[{"prefix": "P_", "configMapRef": {"name": "cm"}}],
    )
    assert variables == {"P_a": "1", "P_b": "2", "S": "hush"}


@pytest.mark.parametrize(
    ("env", "text"),
    [
        ({"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.shoe"}}}, "spec.shoe"),
        ({"name": "A", "valueFrom": {"configMapKeyRef": {"name": "cm", "key": "z"}}}, "couldn't find key z"),
        ({"name": "A", "valueFrom": {"secretKeyRef": {"name": "x", "key": "z"}}}, 'secret "x" not found'),
        ({"name": "A=B", "value": ""}, "not valid"),
        ({"name": "A", "valueFrom": {"resourceFieldRef": {"resource": "cpu"}}}, "unsupported value"),
    ],
)
def test_invalid_environments_are_rejected(env: Any, text: str) -> None:
    with pytest.raises(EnvError, match=text):
        env_of(env)


def test_nested_variables_do_not_grow_without_limit() -> None:
    doubled = [{"name": f"V{n}", "value": f"$(V{n - 1})$(V{n - 1})"} for n in range(1, 61)]
    with pytest.raises(EnvError, match="the expanded value has more than 131072 characters"):
        env_of({"name": "V0", "value": "x" * 100}, *doubled)
    copies = [{"name": f"C{n}", "value": "$(V)"} for n in range(100)]
    with pytest.raises(EnvError, match="the expanded values have more than 6291456 characters"):
        env_of({"name": "V", "value": "x" * 100_000}, *copies)


def test_nested_arguments_do_not_grow_without_limit() -> None:
    raw = {"metadata": {"name": "p", "uid": "u"}, "spec": {"containers": [{"name": "c", "args": ["$(V)"] * 100}]}}
    container = parse_pod(raw).containers[0]
    assert len(command_line(container, {"V": "x" * 10})) == 100
    with pytest.raises(EnvError, match="the expanded values have more than 6291456 characters"):
        command_line(container, {"V": "x" * 100_000})


def test_command_line_and_sources() -> None:
    raw = {
        "metadata": {"name": "p", "uid": "u"},
        "spec": {
            "containers": [
                {
                    "name": "c",
                    "command": ["run", "$(A)"],
                    "args": ["--x=$(A)"],
                    "envFrom": [{"secretRef": {"name": "s"}}],
                    "env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "cm", "key": "a"}}}],
                }
            ]
        },
    }
    container = parse_pod(raw).containers[0]
    assert command_line(container, {"A": "1"}) == ["run", "1", "--x=1"]
    assert sources(container) == {("Secret", "s"), ("ConfigMap", "cm")}

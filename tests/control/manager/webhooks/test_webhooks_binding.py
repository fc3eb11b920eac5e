"""Who may bind pods: the decision table of spec 04 §13, row by row."""

from __future__ import annotations

from typing import Any

import pytest

from control.manager.webhooks.binding import BindingScope, before_pod, with_pod
from koordlet.api.core import Pod
from koordlet.api.encoding.wire import convert

FLAGS = {
    "user_names": "koord-scheduler, ,system:kube",
    "dry_run": False,
    "namespaces": "*",
    "excluded": "kube-system",
    "bypass_labels": "bypass",
    "bypass_annotations": "note, other",
}


def pod(labels: dict[str, str] | None = None, annotations: dict[str, str] | None = None) -> Pod:
    return convert({"metadata": {"labels": labels or {}, "annotations": annotations or {}}}, Pod)


ROWS = {
    "1 gate off": ({}, False, "someone", "default", pod(), (True, "")),
    "1 no names": ({"user_names": " , "}, True, "someone", "default", pod(), (True, "")),
    "2 user": ({}, True, "system:serviceaccount:koord-scheduler:x", "default", pod(), (True, "allowed_username")),
    "3 excluded": ({}, True, "someone", "kube-system", pod(), (True, "excluded_ns")),
    "4 no namespaces": ({"namespaces": ""}, True, "someone", "default", pod(), (True, "")),
    "5 out of scope": ({"namespaces": "a, b"}, True, "someone", "default", pod(), (True, "out_of_scope")),
    "6 unknown pod": ({}, True, "someone", "default", None, (True, "")),
    "7 label": ({}, True, "someone", "default", pod({"bypass": ""}), (True, "bypass_label")),
    "8 annotation": ({}, True, "someone", "default", pod(None, {"other": ""}), (True, "bypass_annotation")),
    "9 dry run": ({"dry_run": True}, True, "someone", "default", pod(), (True, "dry_run")),
    "10 denied": ({}, True, "someone", "default", pod(), (False, "denied")),
    "10 denied in a listed namespace": (
        {"namespaces": "a,default"},
        True,
        "someone",
        "default",
        pod(),
        (False, "denied"),
    ),
}


@pytest.mark.parametrize(("flags", "enabled", "user", "namespace", "subject", "expected"), ROWS.values(), ids=ROWS)
def test_rows(
    flags: dict[str, Any], enabled: bool, user: str, namespace: str, subject: Pod | None, expected: tuple[bool, str]
) -> None:
    scope = BindingScope.read(**{**FLAGS, **flags})
    decision = before_pod(scope, enabled=enabled, user=user, namespace=namespace)
    if decision is None:
        decision = with_pod(scope, subject, user=user, namespace=namespace, name="web-0")
    assert (decision.allowed, decision.counted) == expected
    if not decision.allowed:
        assert decision.message == 'user "someone" is not allowed to bind pod default/web-0'

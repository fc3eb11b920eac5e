"""Label values of Prometheus rows that several collectors share. Pure."""

from __future__ import annotations

from koordlet.statesinformer.pods.cgroupindex import Owner
from koordlet.statesinformer.pods.model import Subject, SubjectKind

Row = tuple[tuple[str, ...], float]
"""(label values, value)."""


def container_labels(subject: Subject) -> tuple[str, ...]:
    """pod_uid, pod_name, pod_namespace, container_id, container_name"""
    return (subject.pod_uid, subject.pod_name, subject.namespace, subject.key, subject.name)


def pod_labels(subject: Subject) -> tuple[str, ...]:
    """pod_uid, pod_name, pod_namespace"""
    return (subject.pod_uid, subject.pod_name, subject.namespace)


def subject_labels(kind: SubjectKind, subject: Subject) -> tuple[str, ...]:
    """The labels of a container's or a pod's family."""
    return container_labels(subject) if kind is SubjectKind.CONTAINER else pod_labels(subject)


def culprit_labels(owner: Owner | None) -> tuple[str, ...]:
    """kind, namespace, pod, name; None stands for all culprits without a series of their own."""
    return ("other", "", "", "") if owner is None else (owner.kind, owner.namespace, owner.pod, owner.name)

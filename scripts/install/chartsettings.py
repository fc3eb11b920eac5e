"""Which fields of the manifests are values of the Helm chart. Data. Names are those of Koordinator's chart where the
meaning is the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from control.ctl.manifests import privileged
from control.ctl.manifests.koordlet import CONFINED
from control.ctl.manifests.optionalrights import RIGHTS

POD = ("spec", "template", "spec")
POLICIES = {
    "PODS": "pods",
    "NODES": "nodes",
    "NODE_STATUS": "nodeStatus",
    "CONFIGMAPS": "configmaps",
    "RESERVATIONS": "reservations",
    "PODMIGRATIONJOBS": "podmigrationjobs",
    "DRAINNODES": "drainnodes",
    "ELASTICQUOTAS": "elasticquotas",
}
"""Suffix of WEBHOOK_CONFIGURATION_FAILURE_POLICY_… -> key below webhookConfiguration.failurePolicy."""


@dataclass(frozen=True)
class Setting:
    """A field of an object that a template expression replaces. A step of `path` into a list is an item's name, or the
    beginning of its text; `prefix` is text before the expression."""

    kind: str
    name: str
    path: tuple[str, ...]
    expression: str
    prefix: str = ""


@dataclass(frozen=True)
class Choice(Setting):
    """A field with one of two contents; the expression is a boolean value, false by default."""

    contents: tuple[object, object] = ("", "")
    """While it is false, and while it is true."""

    @property
    def template(self) -> str:
        no, yes = (json.dumps(content) for content in self.contents)
        return f"ternary `{yes}` `{no}` {self.expression}"


@dataclass(frozen=True)
class Optional(Setting):
    """A field that the manifest lacks, and that is left out while its value is empty."""


_ENABLED = {"descheduler": ".Values.descheduler.enabled"}
CONDITIONS = {
    "crds": ".Values.crds.managed",
    "descheduler": ".Values.descheduler.enabled",
    **{
        f"{part}-rights/{each.name}.yaml": " ".join(
            (*(("and", _ENABLED[part]) if part in _ENABLED else ()), f".Values.{part}.rights.{each.value}")
        )
        for part, _, rights in RIGHTS
        for each in rights
    },
    "device-daemon": ".Values.deviceDaemon.enabled",
    "monitoring": ".Values.monitoring.enabled",
}
"""Folder of deploy/, or one of its files, -> condition under which the chart contains it."""

KEEP = ".Values.crds.keep"
KEPT = '"helm.sh/resource-policy" "keep"'
"""Annotation of a CRD, key and value, while `KEEP` is true."""


def _workload(kind: str, name: str, container: str, values: str) -> Iterator[Setting]:
    at = (*POD, "containers", container)
    image = f"{values}.image"
    full = f'(printf "%s/%s:%s" .Values.imageRepositoryHost {image}.repository (toString {image}.tag)) | quote'
    yield Setting(kind, name, (*at, "image"), full)
    yield Setting(kind, name, (*at, "resources"), f"toJson {values}.resources")
    yield Setting(kind, name, (*at, "args", "--v="), f"{values}.log.level", "--v=")
    yield Optional(kind, name, (*POD, "imagePullSecrets"), ".Values.imagePullSecrets")


def _deployment(name: str, container: str, values: str) -> Iterator[Setting]:
    yield from _workload("Deployment", name, container, values)
    yield Setting("Deployment", name, ("spec", "replicas"), f"{values}.replicas")
    yield Optional("Deployment", name, (*POD, "nodeSelector"), f"{values}.nodeSelector")
    yield Optional("Deployment", name, (*POD, "tolerations"), f"{values}.tolerations")
    yield Optional("Deployment", name, (*POD, "affinity", "nodeAffinity"), f"{values}.nodeAffinity")


def _settings() -> Iterator[Setting]:
    yield from _deployment("koord-manager", "manager", ".Values.manager")
    yield from _deployment("koord-scheduler", "scheduler", ".Values.scheduler")
    yield from _deployment("koord-descheduler", "descheduler", ".Values.descheduler")
    yield from _workload("DaemonSet", "koordlet", "koordlet", ".Values.koordlet")
    yield from _workload("DaemonSet", "koord-device-daemon", "koord-device-daemon", ".Values.deviceDaemon")
    yield Optional("DaemonSet", "koordlet", (*POD, "affinity"), '(include "koordlet.affinity" . | fromJson)')
    yield from _confinement()
    gates = "--feature-gates="
    for kind, name, container, value in (
        ("Deployment", "koord-manager", "manager", ".Values.featureGates"),
        ("Deployment", "koord-scheduler", "scheduler", ".Values.scheduler.featureGates"),
        ("Deployment", "koord-descheduler", "descheduler", ".Values.descheduler.featureGates"),
        ("DaemonSet", "koordlet", "koordlet", ".Values.koordlet.features"),
    ):
        yield Setting(kind, name, (*POD, "containers", container, "args", gates), value, gates)
    env = (*POD, "containers", "manager", "env")
    for suffix, key in POLICIES.items():
        variable = f"WEBHOOK_CONFIGURATION_FAILURE_POLICY_{suffix}"
        expression = f".Values.webhookConfiguration.failurePolicy.{key}"
        yield Setting("Deployment", "koord-manager", (*env, variable, "value"), expression)
    timeout = ".Values.webhookConfiguration.timeoutSeconds | toString | quote"
    yield Setting("Deployment", "koord-manager", (*env, "WEBHOOK_CONFIGURATION_TIMEOUT_SECONDS", "value"), timeout)
    yield Setting("ConfigMap", "slo-controller-config", ("data",), "toJson .Values.sloControllerConfig")


def _confinement() -> Iterator[Setting]:
    """`koordlet.privileged`, as deploy/koordlet-privileged."""
    container = (*POD, "containers", "koordlet")
    value = ".Values.koordlet.privileged"
    contents = (CONFINED, privileged.PRIVILEGED)
    yield Choice("DaemonSet", "koordlet", (*container, "securityContext"), value, contents=contents)
    propagation = (privileged.CONFINED_PROPAGATION, privileged.PROPAGATION)
    for mount in privileged.propagating():
        path = (*container, "volumeMounts", mount["name"], "mountPropagation")
        yield Choice("DaemonSet", "koordlet", path, value, contents=propagation)


SETTINGS = tuple(_settings())

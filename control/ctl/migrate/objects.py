"""CRDs, ConfigMaps, role bindings and webhooks of an installation of Koordinator. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from control.component.errors import ConfigurationError
from control.ctl.manifests.optionalrights import ROLE_NAMES
from control.ctl.migrate.model import MigrationItem
from control.manager.options import WebhookEnv
from control.scheduler.config.load import load
from control.scheduler.plugins.registry import PLUGINS
from control.scheduler.process.profiles import KNOWN_PLUGINS, implements
from koordlet.api.encoding.crdgen import documents
from koordlet.api.names import KOORDINATOR_NAMESPACE
from koordlet.api.sloconfig import configmap
from koordlet.api.sloconfig.documents import KEYS
from koordlet.api.sloconfig.profile import PROFILE_KEY

ACCOUNTS: Final = ("koordlet", "koord-manager", "koord-scheduler", "koord-descheduler")
DOMAINS: Final = (".koordinator.sh", "scheduling.sigs.k8s.io", "topology.node.k8s.io")
OWN_BINDINGS: Final = frozenset((*ACCOUNTS, "koordinator-view-pages", *ROLE_NAMES))


def check_crds(installed: Iterable[Mapping[str, Any]]) -> Iterator[MigrationItem]:
    """CustomResourceDefinitions by name; stored versions must be served here, too."""
    own = {document["metadata"]["name"]: document for document in documents().values()}
    present = {crd["metadata"]["name"]: crd for crd in installed}
    for name, document in own.items():
        crd = present.get(name)
        if crd is None:
            yield MigrationItem("crd", name, "action", "is not installed", "kubectl apply --server-side -k deploy/crds")
            continue
        served = {version["name"] for version in document["spec"]["versions"]}
        stored = set((crd.get("status") or {}).get("storedVersions") or [])
        if stored - served:
            versions = ", ".join(sorted(stored - served))
            yield MigrationItem(
                "crd", name, "action", f"objects are stored in version {versions}", "Migrate them to a served version."
            )
        else:
            yield MigrationItem("crd", name, "same", "is applied over; no object is changed")
    for name in present:
        if name not in own and name.split(".", 1)[-1].endswith(DOMAINS):
            yield MigrationItem("crd", name, "differs", "is not read by this system", "It stays, with its objects.")


def check_slo_config(data: Mapping[str, str] | None) -> Iterator[MigrationItem]:
    """`slo-controller-config`: each key is read as koord-manager reads it."""
    if data is None:
        yield MigrationItem("config", "slo-controller-config", "differs", "does not exist: defaults apply, as before")
        return
    _, problems = configmap.load(configmap.SLOConfig(), data)
    by_key = {problem.key: problem for problem in problems}
    for key in data:
        if key in by_key:
            yield MigrationItem("config", key, "action", by_key[key].message, "Correct the key.")
        elif key in KEYS:
            yield MigrationItem("config", key, "same", "is read as before")
        elif key == PROFILE_KEY:
            yield MigrationItem("config", key, "same", "is a key of this system: it selects strategies")
        else:
            yield MigrationItem("config", key, "differs", "belongs to an extension, which this system does not have")


def check_scheduler_config(text: str | None) -> Iterator[MigrationItem]:
    """`koord-scheduler-config`: the file is read as koord-scheduler reads it."""
    subject = "koord-scheduler-config"
    if text is None:
        yield MigrationItem("config", subject, "differs", "does not exist: the shipped configuration is used")
        return
    try:
        settings = load(text, PLUGINS, implements, KNOWN_PLUGINS)
    except ConfigurationError as error:
        for problem in error.errors:
            yield MigrationItem("config", subject, "action", problem, "Correct the field.")
        return
    for profile in settings.profiles:
        for plugin in profile.left_out:
            yield MigrationItem(
                "config",
                f"{subject} {profile.name}",
                "action",
                f"plugin {plugin} is not in this system",
                "Pods that need it must keep their scheduler; remove it from the profile.",
            )
        yield MigrationItem(
            "config", f"{subject} {profile.name}", "same", f"{len(profile.args)} plugin arguments are read as before"
        )


def check_bindings(bindings: Iterable[Mapping[str, Any]]) -> Iterator[MigrationItem]:
    """Bindings to the same accounts outlive the take-over, with rights that this system does not use."""
    for binding in bindings:
        name = binding["metadata"]["name"]
        subjects = [
            subject["name"]
            for subject in binding.get("subjects") or []
            if subject.get("kind") == "ServiceAccount"
            and subject.get("namespace") == KOORDINATOR_NAMESPACE
            and subject.get("name") in ACCOUNTS
        ]
        if not subjects:
            continue
        kind, role = binding.get("kind") or "ClusterRoleBinding", binding["roleRef"]["name"]
        if name in OWN_BINDINGS and role == name:
            yield MigrationItem("right", f"{kind} {name}", "same", "is replaced by the narrower role of the same name")
        else:
            yield MigrationItem(
                "right",
                f"{kind} {name}",
                "action",
                f"gives {', '.join(subjects)} the role {role}, which this system does not need",
                f"After the take-over: kubectl delete {kind.lower()} {name}",
            )


def check_webhooks(configurations: Iterable[Mapping[str, Any]]) -> Iterator[MigrationItem]:
    """Webhook configurations with Koordinator's names are taken over by koord-manager."""
    names = WebhookEnv()
    for configuration in configurations:
        name = configuration["metadata"]["name"]
        webhooks = configuration.get("webhooks") or []
        services = {(item.get("clientConfig") or {}).get("service", {}).get("namespace") for item in webhooks}
        if KOORDINATOR_NAMESPACE not in services:
            continue
        strict = sorted(item["name"] for item in webhooks if item.get("failurePolicy") == "Fail")
        if name not in (names.mutating_name, names.validating_name):
            yield MigrationItem(
                "webhook", name, "action", "is not managed by koord-manager", "Delete it after the take-over."
            )
        elif strict:
            yield MigrationItem(
                "webhook",
                name,
                "differs",
                f"{len(strict)} webhooks have failurePolicy Fail; koord-manager registers Ignore by default",
                "WEBHOOK_CONFIGURATION_FAILURE_POLICY_* keeps Fail (docs/webhooks.md).",
            )
        else:
            yield MigrationItem("webhook", name, "same", "is taken over by koord-manager")

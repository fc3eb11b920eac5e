"""Admission of new pods: sets service account, priority, and tolerations of failing nodes.

Each step reads other objects from the store and changes the pod in place, like the plugins of kube-apiserver with
the same names.
"""

from __future__ import annotations

import asyncio
from typing import Any

from control.standalone import errors, objectmeta
from control.standalone.policyinterfaces import AdmissionAttributes
from control.standalone.schema.validation import SYSTEM_PRIORITIES
from control.standalone.store import ObjectStore

Json = dict[str, Any]

PRIORITY_CLASSES = "scheduling.k8s.io/priorityclasses"
ACCOUNTS = "/serviceaccounts"
MIRROR = "kubernetes.io/config.mirror"
DEFAULT_ACCOUNT = "default"
ACCOUNT_ATTEMPTS = 20
ACCOUNT_PAUSE_SECONDS = 0.05
"""The default account of a new namespace is created shortly after it: wait up to a second for it."""
TOLERATION_SECONDS = 300
TOKEN_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
TOKEN_VOLUME_PREFIX = "kube-api-access-"
TOKEN_SECONDS = 3607  # by this number the token issuer recognises a token of a pod's volume
FAILING = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


def applies(request: AdmissionAttributes) -> bool:
    return (
        request.kind.key == "/pods"
        and request.operation == "CREATE"
        and not request.subresource
        and request.obj is not None
    )


def _is_mirror(request: AdmissionAttributes) -> bool:
    return MIRROR in (((request.obj or {}).get("metadata") or {}).get("annotations") or {})


def _forbidden(request: AdmissionAttributes, why: str) -> errors.StatusError:
    name = request.name or str(((request.obj or {}).get("metadata") or {}).get("generateName", ""))
    return errors.forbidden("", "pods", name, why)


async def service_account(store: ObjectStore, request: AdmissionAttributes) -> None:
    """Set the namespace's `default` account if the pod names none; the account must exist.

    The mirror pod of a static pod gets no account. It may not name one nor use secrets, because its creator would
    bypass the checks of both.
    """
    spec = _spec(request)
    if _is_mirror(request):
        if spec.get("serviceAccountName") or spec.get("serviceAccount"):
            raise _forbidden(request, "a mirror pod may not reference service accounts")
        if any(isinstance(volume, dict) and volume.get("secret") for volume in spec.get("volumes") or ()):
            raise _forbidden(request, "a mirror pod may not reference secrets")
        return
    name = spec.get("serviceAccountName") or spec.get("serviceAccount") or DEFAULT_ACCOUNT
    spec["serviceAccountName"] = spec["serviceAccount"] = name
    for attempt in range(ACCOUNT_ATTEMPTS if name == DEFAULT_ACCOUNT else 1):
        if attempt:
            await asyncio.sleep(ACCOUNT_PAUSE_SECONDS)
        account = store.get(ACCOUNTS, request.namespace, name)
        if account is not None:
            break
    else:
        why = f'error looking up service account {request.namespace}/{name}: serviceaccount "{name}" not found'
        raise _forbidden(request, why)
    if not spec.get("imagePullSecrets") and account.get("imagePullSecrets"):
        spec["imagePullSecrets"] = [dict(each) for each in account["imagePullSecrets"]]
    automount = spec.get("automountServiceAccountToken", account.get("automountServiceAccountToken", True))
    if automount is not False:
        _mount_token(spec)


def _mount_token(spec: Json) -> None:
    """Mount the account's token, the cluster's CA and the namespace into containers that mount nothing at that path."""
    containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    without = [c for c in containers if not any(m.get("mountPath") == TOKEN_PATH for m in c.get("volumeMounts") or ())]
    if not without:
        return
    name = objectmeta.generate_name(TOKEN_VOLUME_PREFIX)
    for container in without:
        mount = {"name": name, "readOnly": True, "mountPath": TOKEN_PATH}
        container["volumeMounts"] = [*(container.get("volumeMounts") or ()), mount]
    namespace = {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}
    sources = [
        {"serviceAccountToken": {"expirationSeconds": TOKEN_SECONDS, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [namespace]}},
    ]
    volume = {"name": name, "projected": {"sources": sources, "defaultMode": 0o644}}
    spec["volumes"] = [*(spec.get("volumes") or ()), volume]


def priority(store: ObjectStore, request: AdmissionAttributes) -> None:
    """Set spec.priority and preemptionPolicy from the pod's PriorityClass, or from the global default."""
    spec = _spec(request)
    name = spec.get("priorityClassName") or ""
    policy = None
    if name:
        priority_class = store.get(PRIORITY_CLASSES, None, name)
        if priority_class is not None:
            value, policy = int(priority_class.get("value", 0)), priority_class.get("preemptionPolicy")
        elif name in SYSTEM_PRIORITIES:
            value = SYSTEM_PRIORITIES[name]
        else:
            raise _forbidden(request, f"no PriorityClass with name {name} was found")
    else:
        default = _global_default(store)
        value = int(default.get("value", 0)) if default else 0
        if default:
            spec["priorityClassName"] = default["metadata"]["name"]
            policy = default.get("preemptionPolicy")
    requested = spec.get("priority")
    if requested is not None and requested != value:
        why = (
            f"the integer value of priority ({requested}) must not be provided in pod spec; "
            f"priority admission controller computed {value} from the given PriorityClass name"
        )
        raise _forbidden(request, why)
    policy = policy or "PreemptLowerPriority"
    if spec.get("preemptionPolicy") not in (None, policy):
        why = (
            f"the string value of PreemptionPolicy ({spec['preemptionPolicy']}) must not be provided in pod spec; "
            f"priority admission controller computed {policy} from the given PriorityClass name"
        )
        raise _forbidden(request, why)
    spec["priority"] = value
    spec["preemptionPolicy"] = policy


def _global_default(store: ObjectStore) -> Json | None:
    classes = [each for each in store.list(PRIORITY_CLASSES) if each.get("globalDefault")]
    return min(classes, key=lambda each: int(each.get("value", 0)), default=None)


def tolerations(request: AdmissionAttributes) -> None:
    """Tolerate a node that is not ready or unreachable for five minutes, unless the pod has its own toleration."""
    spec = _spec(request)
    present = list(spec.get("tolerations") or ())
    for key in FAILING:
        if not any(_tolerates(each, key) for each in present):
            present.append(
                {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": TOLERATION_SECONDS}
            )
    spec["tolerations"] = present


def _tolerates(toleration: Json, key: str) -> bool:
    return toleration.get("effect") in (None, "", "NoExecute") and toleration.get("key") in (None, "", key)


def _spec(request: AdmissionAttributes) -> Json:
    assert request.obj is not None
    spec = request.obj.get("spec")
    if not isinstance(spec, dict):
        spec = request.obj["spec"] = {}
    return spec

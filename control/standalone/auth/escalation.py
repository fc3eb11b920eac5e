"""Prevents privilege escalation by RBAC objects.

The author of a role must have all of its rights, or the verb `escalate` on it. The author of a binding must
have the rights of its role, which must exist, or the verb `bind` on it. Called by validating admission.
"""

from __future__ import annotations

from control.standalone import errors
from control.standalone.auth.rbac import BINDINGS, CLUSTER_BINDINGS, CLUSTER_ROLES, GROUP, RBAC, ROLES, SUPERUSERS
from control.standalone.auth.rules import show, uncovered
from control.standalone.policyinterfaces import AdmissionAttributes, AuthzAttributes


def check(rbac: RBAC, request: AdmissionAttributes) -> None:
    """Raises StatusError 403 for a write that grants rights which its author doesn't have."""
    kind, obj, old = request.kind, request.obj, request.old or {}
    if obj is None or SUPERUSERS in request.user.groups:
        return
    if kind.key in (ROLES, CLUSTER_ROLES):
        if obj.get("rules") == old.get("rules") and obj.get("aggregationRule") == old.get("aggregationRule"):
            return
        granted, verb, target = list(obj.get("rules") or ()), "escalate", kind.plural
        name = request.name
        if obj.get("aggregationRule") and obj.get("aggregationRule") != old.get("aggregationRule"):
            granted += [
                {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]},
                {"verbs": ["*"], "nonResourceURLs": ["*"]},
            ]
    elif kind.key in (BINDINGS, CLUSTER_BINDINGS):
        if obj.get("roleRef") == old.get("roleRef") and obj.get("subjects") == old.get("subjects"):
            return
        ref = obj.get("roleRef") or {}
        granted, verb = rbac.role_rules(request.namespace, ref), "bind"
        target, name = ("roles" if ref.get("kind") == "Role" else "clusterroles"), str(ref.get("name", ""))
    else:
        return
    attributes = AuthzAttributes(request.user, verb, GROUP, "v1", target, "", request.namespace, name)
    if rbac.authorize(attributes)[0]:
        return
    if verb == "bind" and not rbac.role_exists(request.namespace, ref):
        raise errors.not_found(GROUP, target, name)  # its future rules can't be compared with the author's
    missing = uncovered(rbac.rules_for(request.user, request.namespace), granted)
    if missing:
        listed = "\n".join(sorted(show(piece) for piece in missing))
        groups = " ".join(f'"{group}"' for group in request.user.groups)
        why = (
            f'user "{request.user.name}" (groups=[{groups}]) is attempting to grant RBAC permissions not currently '
            f"held:\n{listed}"
        )
        raise errors.forbidden(kind.group, kind.plural, request.name, why)

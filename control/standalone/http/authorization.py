"""Requires a right of a request's user, with Kubernetes' message when it is missing."""

from __future__ import annotations

from control.standalone import errors
from control.standalone.policyinterfaces import Authorizer, AuthzAttributes


def require(authorizer: Authorizer, attributes: AuthzAttributes) -> None:
    """Raises StatusError 403 unless the authorizer allows the request."""
    allowed, reason = authorizer.authorize(attributes)
    if allowed:
        return
    user, verb, resource = attributes.user.name, attributes.verb, attributes.resource
    if not resource:
        message = f'forbidden: User "{user}" cannot {verb} path "{attributes.path}"'
        raise errors.of_reason("Forbidden", message)
    full_resource = f"{resource}/{attributes.subresource}" if attributes.subresource else resource
    scope = f' in the namespace "{attributes.namespace}"' if attributes.namespace else " at the cluster scope"
    why = f'User "{user}" cannot {verb} resource "{full_resource}" in API group "{attributes.group}"{scope}'
    if reason:
        why += f": {reason}"
    raise errors.forbidden(attributes.group, resource, attributes.name, why)

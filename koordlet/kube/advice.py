"""What an operator can do about an error of the API server: one sentence for logs and readiness pages. Pure."""

from __future__ import annotations

import ssl

from koordlet.api.registry import CUSTOM, ApiResource
from koordlet.kube.errors import ConnectionFailed, Forbidden, NotFound, Unauthorized

OLDEST_SERVER = (1, 24)
"""The first Kubernetes version that serves every built-in resource we read (storage.k8s.io/v1 CSIStorageCapacity)."""

_CUSTOM_GROUPS = frozenset(resource.group for resource in CUSTOM)
_BY_KIND: tuple[tuple[type[Exception], str], ...] = (
    (
        Unauthorized,
        "the API server does not accept the credentials: renew the token or client certificate of the kubeconfig"
        " or ServiceAccount",
    ),
    (Forbidden, "grant this right: apply rbac.yaml of this component (deploy/)"),
)


def oldest_server() -> str:
    return ".".join(map(str, OLDEST_SERVER))


def advice(error: BaseException, resource: ApiResource | None = None) -> str:
    """The advice; empty if there is none. `resource`: the resource that was listed or watched."""
    for kind, text in _BY_KIND:
        if isinstance(error, kind):
            return text
    if isinstance(error, NotFound) and resource is not None:
        name = f"{resource.plural}.{resource.group or 'core'}/{resource.version}"
        if resource.group in _CUSTOM_GROUPS:
            return f"the API server does not serve {name}: apply the CRDs (deploy/crds)"
        return f"the API server does not serve {name}: use Kubernetes {oldest_server()} or later"
    if isinstance(error, ConnectionFailed):
        return _connection_advice(error)
    return ""


def _connection_advice(error: ConnectionFailed) -> str:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return "the server's certificate does not match certificate-authority and server of the kubeconfig"
        cause = cause.__cause__ or cause.__context__
    return "check that the API server runs and that the kubeconfig has its address"


def with_advice(error: BaseException, resource: ApiResource | None = None) -> str:
    """The error's text, followed by the advice if there is any."""
    text = str(error)
    hint = advice(error, resource)
    return f"{text}; {hint}" if hint else text

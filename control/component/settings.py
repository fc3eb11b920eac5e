"""The sections of a configuration file that Kubernetes components share: leader election and the API connection."""

from __future__ import annotations

import msgspec

from control.component.errors import invalid, required, unsupported
from koordlet.api.encoding.times import Duration


class LeaderElection(msgspec.Struct, rename="camel"):
    """Leader election by a lease; a component sets the default name and namespace of its lease."""

    leader_elect: bool = True
    lease_duration: Duration = Duration("15s")
    renew_deadline: Duration = Duration("10s")
    retry_period: Duration = Duration("2s")
    resource_lock: str = "leases"
    resource_name: str = ""
    resource_namespace: str = ""


class ClientConnection(msgspec.Struct, rename="camel"):
    """The connection to the API server. Content types are accepted, but JSON is used."""

    kubeconfig: str = ""
    accept_content_types: str = ""
    content_type: str = "application/vnd.kubernetes.protobuf"
    qps: float = 50
    burst: int = 100


def check_connection(connection: ClientConnection, errors: list[str]) -> None:
    """Append the errors of `clientConnection`."""
    if connection.burst < 0:
        errors.append(invalid("clientConnection.burst", connection.burst, "must be non-negative"))


def check_lease(lease: LeaderElection, errors: list[str]) -> None:
    """Append the errors of `leaderElection`; one that is switched off is not checked."""
    where = "leaderElection"
    if not lease.leader_elect:
        return
    for name, duration in (
        ("leaseDuration", lease.lease_duration),
        ("renewDeadline", lease.renew_deadline),
        ("retryPeriod", lease.retry_period),
    ):
        if duration.nanoseconds <= 0:
            errors.append(invalid(f"{where}.{name}", duration, "must be greater than zero"))
    if lease.lease_duration < lease.renew_deadline:
        errors.append(
            invalid(f"{where}.leaseDuration", lease.lease_duration, "LeaseDuration must be greater than RenewDeadline")
        )
    if lease.resource_lock != "leases":
        errors.append(unsupported(f"{where}.resourceLock", lease.resource_lock, ["leases"]))
    if not lease.resource_namespace:
        errors.append(required(f"{where}.resourceNamespace"))
    if not lease.resource_name:
        errors.append(required(f"{where}.resourceName"))

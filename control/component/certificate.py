"""The certificate of the secure port, by kube-scheduler's flags; changed files are read."""

from __future__ import annotations

from pathlib import Path

from prometheus_client import CollectorRegistry

from control.component.errors import ConfigurationError
from control.component.options import ComponentOptions
from koordlet.app.clock import Clock
from koordlet.app.periodic import Periodic
from koordlet.app.servertls import RELOAD_PERIOD_S, ServerCertificate


def secure_certificate(options: ComponentOptions) -> ServerCertificate | None:
    """None without a secure port. Raises ConfigurationError for unusable files."""
    if not options.secure_port:
        return None
    files = (options.tls_cert_file, options.tls_private_key_file, options.client_ca_file)
    cert, key, client_ca = (Path(name) if name else None for name in files)
    try:
        return ServerCertificate(cert, key, client_ca, options.tls_min_version)
    except OSError as error:  # includes SSLError
        names = ", ".join(filter(None, files))
        raise ConfigurationError([f"TLS of the secure port ({names}): {error}"]) from error


def reloaded(certificate: ServerCertificate, clock: Clock, registry: CollectorRegistry) -> Periodic:
    """The task that reads changed files, for the runner."""
    return Periodic(
        "page-certificate", RELOAD_PERIOD_S, certificate.reload, immediate=False, clock=clock, registry=registry
    )

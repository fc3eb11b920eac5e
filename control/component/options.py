"""The flags that scheduler and descheduler share: configuration, connection, lease, secure port.

Flags of Kubernetes components without a meaning here are accepted, so that manifests need no change.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from koordlet.app.flags import Duration, FlagError, flag
from koordlet.app.logging import LoggingOptions
from koordlet.app.servertls import TLS_VERSIONS
from koordlet.kube.delegated import PUBLIC

UNUSED = "accepted, without effect"


@dataclass
class ComponentOptions(LoggingOptions):
    """A component states its own defaults by declaring a flag again; the order is that of this class."""

    config: str = flag("", "configuration file")
    write_config_to: str = flag("", "write the effective configuration to this file and exit")
    kubeconfig: str = flag("", "kubeconfig file; default: from the configuration, in-cluster, or KUBECONFIG")
    master: str = flag("", "URL of the API server, overrides the kubeconfig")
    port: int = flag(10251, "port of the HTTP pages; 0: disabled", minimum=0)
    address: str = flag("0.0.0.0", "IP address of the HTTP pages")
    feature_gates: dict[str, bool] = flag({}, "A=true,B=false; AllAlpha and AllBeta set all gates of a stage")
    leader_elect: bool | None = flag(None, "work only while holding the lease; default: as in the configuration")
    leader_elect_lease_duration: str = flag("", "duration of the lease (15s)")
    leader_elect_renew_deadline: str = flag("", "time limit for renewing the lease (10s)")
    leader_elect_retry_period: str = flag("", "interval between attempts to acquire or renew the lease (2s)")
    leader_elect_resource_lock: str = flag("", "type of the lock object", choices=("", "leases"))
    leader_elect_resource_name: str = flag("", "name of the lease")
    leader_elect_resource_namespace: str = flag("", "namespace of the lease")
    bind_address: str = flag("0.0.0.0", "IP address of the secure port")
    secure_port: int = flag(0, "port of the HTTPS pages for authorized callers; 0: disabled", minimum=0)
    cert_dir: str = flag("", "accepted, without effect: generated certificates are not stored", unused=True)
    tls_cert_file: str = flag("", "certificate of the secure port; default: generated at each start")
    tls_private_key_file: str = flag("", "private key of the certificate")
    tls_cipher_suites: str = flag("", "accepted, without effect: OpenSSL's defaults are used", unused=True)
    tls_min_version: str = flag(
        "", "minimum TLS version: VersionTLS12 (default) or VersionTLS13", choices=tuple(TLS_VERSIONS)
    )
    client_ca_file: str = flag("", "CA of client certificates for the secure port")
    http2_max_streams_per_connection: int = flag(0, "accepted, without effect: HTTP/1.1 is used", unused=True)
    permit_port_sharing: bool = flag(False, UNUSED, unused=True)
    permit_address_sharing: bool = flag(False, UNUSED, unused=True)
    tls_sni_cert_key: list[str] = flag([], "accepted, without effect: --tls-cert-file is used", unused=True)
    authentication_token_webhook_cache_ttl: Duration = flag("10s", "how long the user of a token is cached")
    authorization_always_allow_paths: list[str] = flag(
        list(PUBLIC), "paths of the secure port that need no authorization"
    )
    authorization_webhook_cache_authorized_ttl: Duration = flag("10s", "how long an allowed authorization is cached")
    authorization_webhook_cache_unauthorized_ttl: Duration = flag("10s", "how long a denied authorization is cached")
    allow_metric_labels: str = flag("", UNUSED, unused=True)
    allow_metric_labels_manifest: str = flag("", UNUSED, unused=True)
    disabled_metrics: list[str] = flag([], UNUSED, unused=True)
    show_hidden_metrics_for_version: str = flag("", "accepted, without effect: no metrics are hidden", unused=True)
    log_flush_frequency: Duration = flag("5s", "accepted, without effect: every line is written at once", unused=True)
    log_json_info_buffer_size: str = flag("0", "see --log-flush-frequency", unused=True)
    log_json_split_stream: bool = flag(False, "accepted, without effect: logs go to standard error", unused=True)
    log_text_info_buffer_size: str = flag("0", "see --log-flush-frequency", unused=True)
    log_text_split_stream: bool = flag(False, "accepted, without effect: logs go to standard error", unused=True)

    def __post_init__(self) -> None:
        for name, port in (("port", self.port), ("secure-port", self.secure_port)):
            if not 0 <= port <= 65535:
                raise FlagError(f"--{name}: {port} must be between 0 and 65535, inclusive")
        for name, address in (("address", self.address), ("bind-address", self.bind_address)):
            try:
                ipaddress.ip_address(address or "0.0.0.0")
            except ValueError as error:
                raise FlagError(f'--{name}: "{address}" is not an IP address') from error
        if bool(self.tls_cert_file) != bool(self.tls_private_key_file):
            raise FlagError("--tls-cert-file and --tls-private-key-file: give both, or none")

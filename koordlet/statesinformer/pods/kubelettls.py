"""How koordlet verifies the kubelet before it sends its token.

With --kubelet-certificate-authority, by that authority and the address. Otherwise by the kubelet's own certificate
files, which koordlet reads on the same node: most kubelets have a self-signed certificate that no authority knows.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final

from koordlet.app.logging import get_logger

log = get_logger(__name__)

OWN_CERTIFICATES: Final = ("pki/kubelet-server-current.pem", "pki/kubelet.crt")
"""The kubelet's serving certificate, relative to its directory: issued by the cluster, or self-signed."""
_NO_CHECK_TIME: Final = 0x200000
"""X509_V_FLAG_NO_CHECK_TIME of OpenSSL: a kubelet keeps its self-signed certificate after its end."""


def kubelet_context(authority: Path | None, kubelet_dir: Path) -> ssl.SSLContext:
    """The context for connections to the kubelet. Raises OSError for certificates that cannot be read.

    Without an authority and without certificate files the kubelet is not verified; that is logged once.
    """
    if authority is not None:
        context = ssl.create_default_context(cafile=str(authority))
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        return context
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # the certificates themselves are known, not an authority
    context.verify_flags = ssl.VerifyFlags(context.verify_flags | ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME)
    files = [kubelet_dir / name for name in OWN_CERTIFICATES]
    known = [file for file in files if file.exists()]
    for file in known:
        context.load_verify_locations(file)
    if not known:
        context.verify_mode = ssl.CERT_NONE
        log.once(
            "unverified-kubelet",
            "The kubelet is not verified: set --kubelet-certificate-authority",
            missing=", ".join(map(str, files)),
        )
    return context


class KubeletVerification:
    """Makes a context from the current files for each new session. If the kubelet's own certificate files do not verify
    it, as when `kubelet.crt` is left over from before the cluster issued certificates, the next session uses the
    cluster's authority and the node's address."""

    def __init__(self, authority: str, kubelet_dir: Path, cluster_authority: Path | None = None) -> None:
        self._authority = Path(authority) if authority else None
        self._kubelet_dir = kubelet_dir
        self._cluster_authority = cluster_authority
        self._use_cluster = False

    def __call__(self) -> ssl.SSLContext:
        """Raises OSError for certificates that cannot be read."""
        if self._use_cluster:
            return kubelet_context(self._cluster_authority, self._kubelet_dir)
        return kubelet_context(self._authority, self._kubelet_dir)

    def refused(self) -> str:
        """The kubelet was not verified: take the other way for the next session. Returns what to do about it."""
        way = "the cluster's authority" if self._use_cluster else self._way()
        cluster = self._cluster_authority
        if self._authority is None:
            self._use_cluster = not self._use_cluster and cluster is not None and cluster.exists()
        return f"not verified by {way}; --kubelet-certificate-authority names the authority of its certificate"

    def _way(self) -> str:
        if self._authority is not None:
            return str(self._authority)
        files = (self._kubelet_dir / name for name in OWN_CERTIFICATES)
        return " and ".join(str(file) for file in files if file.exists())

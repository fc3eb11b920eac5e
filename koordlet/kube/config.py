"""Configuration of API clients: address of the API server, credentials, limits.

Searched in this order: an explicit path (a flag), KUBECONFIG (several files are merged, the first definition of a name
has precedence), the service account of the pod, ~/.kube/config. Supported in a kubeconfig: server, certificate
authority (file or data), insecure-skip-tls-verify, tls-server-name, proxy-url, client certificates, token, tokenFile,
user name and password, exec plug-ins. The auth-provider plug-ins, which Kubernetes removed, are an error.
"""

from __future__ import annotations

import base64
import binascii
import os
import ssl
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from koordlet.app.version import user_agent as default_user_agent
from koordlet.kube.credentials import Anonymous, Credentials, ExecPlugin, Fixed, TokenFile
from koordlet.kube.errors import ConfigError
from koordlet.kube.tls import client_context, load_client_cert

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True)
class ClientConfig:
    """Configuration of a `Client`. qps and burst hold for each API group; qps <= 0 means no limit; times in seconds."""

    server: str
    ssl: ssl.SSLContext | None = None
    credentials: Credentials = field(default_factory=Anonymous)
    namespace: str = "default"
    server_hostname: str | None = None
    proxy: str | None = None
    user_agent: str = field(default_factory=lambda: default_user_agent("koordlet"))
    qps: float = 20.0
    burst: int = 30
    timeout: float = 30.0
    """For one complete request other than a watch."""

    @classmethod
    def load(
        cls,
        kubeconfig: str | Path | None = None,
        *,
        context: str | None = None,
        user_agent: str | None = None,
        qps: float = 20.0,
        burst: int = 30,
        timeout: float = 30.0,
        environ: Mapping[str, str] = os.environ,
        service_account: Path = SERVICE_ACCOUNT,
    ) -> ClientConfig:
        """Find and read the configuration. Raises ConfigError."""
        common: dict[str, Any] = {"qps": qps, "burst": burst, "timeout": timeout}
        if user_agent is not None:
            common["user_agent"] = user_agent
        if kubeconfig:
            return cls._from_files([Path(kubeconfig)], context, environ, common)
        if environ.get("KUBECONFIG"):
            paths = [Path(part).expanduser() for part in environ["KUBECONFIG"].split(os.pathsep) if part]
            return cls._from_files(paths, context, environ, common)
        if environ.get("KUBERNETES_SERVICE_HOST") and (service_account / "token").exists():
            return cls._in_cluster(environ, service_account, common)
        home = Path(environ.get("HOME", "/root")) / ".kube/config"
        if home.exists():
            return cls._from_files([home], context, environ, common)
        raise ConfigError(f"no API server configured: no --kubeconfig, no KUBECONFIG, not in a pod, no {home}")

    @classmethod
    def _in_cluster(cls, environ: Mapping[str, str], directory: Path, common: dict[str, Any]) -> ClientConfig:
        host = environ["KUBERNETES_SERVICE_HOST"]
        port = environ.get("KUBERNETES_SERVICE_PORT", "443")
        namespace = directory / "namespace"
        return cls(
            server=f"https://{f'[{host}]' if ':' in host else host}:{port}",
            ssl=client_context(ca=_read(directory / "ca.crt", "service account"), insecure=False),
            credentials=TokenFile(directory / "token"),
            namespace=namespace.read_text(encoding="utf-8").strip() if namespace.exists() else "default",
            **common,
        )

    @classmethod
    def _from_files(
        cls, paths: list[Path], context: str | None, environ: Mapping[str, str], common: dict[str, Any]
    ) -> ClientConfig:
        merged = _MergedKubeconfig(paths)
        name = context or merged.current
        if not name:
            raise ConfigError(f"{merged.source}: current-context is not set")
        selected = merged.find("contexts", name, "context")
        cluster = merged.find("clusters", str(selected.value.get("cluster", "")), "cluster")
        user_name = selected.value.get("user")
        user = merged.find("users", str(user_name), "user") if user_name else _Entry("", {}, Path())
        server = str(cluster.value.get("server") or "").rstrip("/")
        parts = urlsplit(server)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ConfigError(f'{cluster.where}.server: "{server}" is not an http(s) URL')
        tls = None
        if parts.scheme == "https":
            tls = client_context(
                ca=cluster.content("certificate-authority"),
                insecure=bool(cluster.value.get("insecure-skip-tls-verify")),
            )
            certificate, key = user.content("client-certificate"), user.content("client-key")
            if certificate and key:
                load_client_cert(tls, certificate, key, user.where)
            elif certificate or key:
                raise ConfigError(f"{user.where}: client-certificate and client-key must be set together")
        return cls(
            server=server,
            ssl=tls,
            credentials=_credentials(user, tls),
            namespace=str(selected.value.get("namespace") or "default"),
            server_hostname=cluster.value.get("tls-server-name") or None,
            proxy=cluster.value.get("proxy-url") or _proxy_of_environment(parts.scheme, parts.netloc, environ),
            **common,
        )


@dataclass(frozen=True)
class _Entry:
    """A cluster, user or context, with its location for messages and the base directory of relative paths."""

    where: str
    value: Mapping[str, Any]
    directory: Path

    def content(self, key: str) -> bytes | None:
        """The bytes of `<key>-data` (base64) or of the file named by `<key>`; None if neither is set."""
        if data := self.value.get(f"{key}-data"):
            try:
                return base64.b64decode(str(data), validate=True)
            except (binascii.Error, ValueError) as error:
                raise ConfigError(f"{self.where}.{key}-data: not base64") from error
        if path := self.value.get(key):
            return _read(self.directory / str(path), f"{self.where}.{key}")
        return None


class _MergedKubeconfig:
    """Merged kubeconfig files: the first definition of a name, or of the current context, has precedence."""

    def __init__(self, paths: list[Path]) -> None:
        import yaml  # 1 MB that processes in pods do not need

        self.source = os.pathsep.join(map(str, paths))
        self.current = ""
        self._entries: dict[tuple[str, str], _Entry] = {}
        existing = [path for path in paths if path.exists()]
        if not existing:
            raise ConfigError(f"kubeconfig {self.source} does not exist")
        for path in existing:
            try:
                content = yaml.safe_load(_read(path, "kubeconfig")) or {}
            except yaml.YAMLError as error:
                raise ConfigError(f"kubeconfig {path} is not YAML: {error}") from error
            if not isinstance(content, dict):
                raise ConfigError(f"kubeconfig {path} is not a mapping")
            self.current = self.current or str(content.get("current-context") or "")
            for section in ("clusters", "users", "contexts"):
                for index, item in enumerate(content.get(section) or []):
                    if not isinstance(item, dict) or not item.get("name"):
                        raise ConfigError(f"{path}: {section}[{index}].name is missing")
                    name = str(item["name"])
                    value = item.get(section[:-1]) or {}
                    where = f"{path}: {section}[{name}].{section[:-1]}"
                    if not isinstance(value, dict):
                        raise ConfigError(f"{where} is not a mapping")
                    self._entries.setdefault((section, name), _Entry(where, value, path.parent))

    def find(self, section: str, name: str, title: str) -> _Entry:
        entry = self._entries.get((section, name))
        if entry is None:
            raise ConfigError(f'{self.source}: there is no {title} named "{name}"')
        return entry


def _credentials(user: _Entry, tls: ssl.SSLContext | None) -> Credentials:
    value = user.value
    if provider := value.get("auth-provider"):
        name = provider.get("name") if isinstance(provider, dict) else provider
        raise ConfigError(f"{user.where}.auth-provider: {name} is not supported; use an exec plug-in")
    if value.get("token"):
        return Fixed.bearer(str(value["token"]))
    if value.get("tokenFile"):
        return TokenFile(user.directory / str(value["tokenFile"]))
    if value.get("exec"):
        if not isinstance(value["exec"], dict) or not value["exec"].get("command"):
            raise ConfigError(f"{user.where}.exec.command is missing")
        return ExecPlugin(value["exec"], tls)
    if value.get("username") and value.get("password"):
        return Fixed.basic(str(value["username"]), str(value["password"]))
    return Anonymous()


def _proxy_of_environment(scheme: str, netloc: str, environ: Mapping[str, str]) -> str | None:
    """The proxy according to https_proxy and no_proxy, as in Go's client."""
    proxies = {k[: -len("_proxy")].lower(): v for k, v in environ.items() if k.lower().endswith("_proxy") and v}
    proxy = proxies.get(scheme)
    if not proxy or urllib.request.proxy_bypass_environment(netloc, proxies):  # type: ignore[attr-defined]
        return None
    return proxy


def _read(path: Path, where: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{where}: cannot read {path}: {error.strerror}") from error

"""What a component needs of the API server: its client's configuration, and the gate of the secure port."""

from __future__ import annotations

from dataclasses import replace

from control.component.options import ComponentOptions
from control.component.settings import ClientConnection
from koordlet.app.version import user_agent
from koordlet.kube import Client, ClientConfig
from koordlet.kube.delegated import DelegatedAuth


def client_config(
    config: ClientConfig | None, connection: ClientConnection, options: ComponentOptions, component: str
) -> ClientConfig:
    """`config`, or that of the kubeconfig or the cluster, with limits and name of the component. Raises ConfigError."""
    config = config or ClientConfig.load(connection.kubeconfig or None)
    return replace(
        config,
        user_agent=user_agent(component),
        qps=connection.qps,
        burst=connection.burst,
        server=options.master or config.server,
    )


def delegated_auth(client: Client, options: ComponentOptions) -> DelegatedAuth:
    """Authentication and authorization of callers of the secure port."""
    return DelegatedAuth(
        client,
        public=options.authorization_always_allow_paths,
        token_seconds=options.authentication_token_webhook_cache_ttl,
        allowed_seconds=options.authorization_webhook_cache_authorized_ttl,
        denied_seconds=options.authorization_webhook_cache_unauthorized_ttl,
    )

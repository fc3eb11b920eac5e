"""Tokens of ServiceAccounts, from the API server."""

from __future__ import annotations

import json
from dataclasses import replace

from control.standalone.apiserver import ApiServer
from koordlet.api.names import KOORDINATOR_NAMESPACE
from koordlet.kube import Client, ClientConfig
from koordlet.kube.credentials import Fixed


async def account_token(admin: Client, account: str, namespace: str = KOORDINATOR_NAMESPACE) -> str:
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    token: str = json.loads(await admin.raw("POST", path, body=body))["status"]["token"]
    return token


async def account_config(server: ApiServer, admin: Client, account: str) -> ClientConfig:
    """For a client with the rights of an account in Koordinator's namespace."""
    credentials = Fixed.bearer(await account_token(admin, account))
    config = ClientConfig.load(server.kubeconfig_path)
    return replace(config, credentials=credentials, namespace=KOORDINATOR_NAMESPACE)

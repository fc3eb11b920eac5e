"""Where the API server is found, and what is said when it can't be."""

import base64
import os
import ssl
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from prometheus_client import CollectorRegistry

from koordlet.api.core import Node
from koordlet.kube import Client, ClientConfig, ConfigError, ConnectionFailed
from koordlet.kube.credentials import ExecPlugin, TokenFile
from tests.certificates import identity
from tests.fakeclock import FakeClock


def kubeconfig(
    server: str = "https://localhost:6443",
    cluster: tuple[Any, ...] | dict[str, str] = (),
    user: tuple[Any, ...] | dict[str, Any] = (),
    context: tuple[Any, ...] | dict[str, str] = (),
    **more: Any,
) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [{"name": "k", "cluster": {"server": server, **dict(cluster)}}],
        "users": [{"name": "u", "user": dict(user)}],
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u", **dict(context)}}],
        **more,
    }


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def save(content: dict[str, Any] | str, name: str = "config") -> Path:
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
        return path

    return save


async def test_the_search_order(write: Callable[..., Path], tmp_path: Path) -> None:
    flag, env = write(kubeconfig("http://flag"), "a"), write(kubeconfig("http://env"), "b")
    (tmp_path / ".kube").mkdir()
    write(kubeconfig("http://home"), ".kube/config")
    account = tmp_path / "sa"
    account.mkdir()
    for name, content in (("token", "t0k"), ("ca.crt", identity("ca").cert_pem.decode()), ("namespace", "koord")):
        (account / name).write_text(content)
    environ = {
        "KUBECONFIG": str(env), "HOME": str(tmp_path), "KUBERNETES_SERVICE_HOST": "fd00::1",
        "KUBERNETES_SERVICE_PORT": "6443",
    }  # fmt: skip
    assert ClientConfig.load(flag, environ=environ, service_account=account).server == "http://flag"
    assert ClientConfig.load(environ=environ, service_account=account).server == "http://env"
    del environ["KUBECONFIG"]
    inside = ClientConfig.load(environ=environ, service_account=account, qps=7, burst=9, user_agent="x")
    assert (inside.server, inside.namespace, inside.qps, inside.burst) == ("https://[fd00::1]:6443", "koord", 7, 9)
    assert await inside.credentials.headers() == {"Authorization": "Bearer t0k"}
    del environ["KUBERNETES_SERVICE_HOST"]
    assert ClientConfig.load(environ=environ, service_account=account).server == "http://home"
    with pytest.raises(ConfigError, match="no API server configured"):
        ClientConfig.load(environ={"HOME": str(tmp_path / "nowhere")}, service_account=account)


async def test_merged_files_the_first_definition_has_precedence(write: Callable[..., Path]) -> None:
    first = write({"current-context": "c", "users": [{"name": "u", "user": {"token": "first"}}]}, "one")
    two = write(kubeconfig("http://two", user={"token": "second"}, context={"namespace": "apps"}), "two")
    config = ClientConfig.load(environ={"KUBECONFIG": f"{first}{os.pathsep}{two}{os.pathsep}/missing"})
    assert (config.server, config.namespace) == ("http://two", "apps")
    assert await config.credentials.headers() == {"Authorization": "Bearer first"}


@pytest.mark.parametrize(
    ("user", "headers"),
    [
        ({"token": "abc"}, {"Authorization": "Bearer abc"}),
        ({"username": "u", "password": "p"}, {"Authorization": "Basic dTpw"}),
        ({}, {}),
    ],
)
async def test_credentials(write: Callable[..., Path], user: dict[str, str], headers: dict[str, str]) -> None:
    assert await ClientConfig.load(write(kubeconfig(user=user))).credentials.headers() == headers


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a: [", "is not YAML"),
        ("[]\n", "is not a mapping|current-context"),
        ({}, "current-context is not set"),
        (kubeconfig() | {"current-context": "x"}, 'no context named "x"'),
        (kubeconfig() | {"clusters": []}, 'no cluster named "k"'),
        (kubeconfig() | {"users": []}, 'no user named "u"'),
        (kubeconfig() | {"users": [{"user": {}}]}, r"users\[0\].name is missing"),
        (kubeconfig("localhost:6443"), r"clusters\[k\].cluster.server: .* is not an http"),
        (kubeconfig(cluster={"certificate-authority-data": "%"}), "certificate-authority-data: not base64"),
        (kubeconfig(cluster={"certificate-authority-data": "YQ=="}), "not a PEM certificate"),
        (kubeconfig(cluster={"certificate-authority": "gone.crt"}), "certificate-authority: cannot read"),
        (kubeconfig(user={"client-certificate-data": "YQ=="}), "must be set together"),
        (kubeconfig(user={"client-certificate-data": "YQ==", "client-key-data": "YQ=="}), "do not match"),
        (kubeconfig(user={"auth-provider": {"name": "gcp"}}), "gcp is not supported"),
        (kubeconfig(user={"exec": {}} | {"exec": {"args": []}}), "exec.command is missing"),
    ],
)
def test_errors_name_file_and_field(write: Callable[..., Path], content: str | dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ClientConfig.load(write(content))


def test_a_missing_file_is_named() -> None:
    with pytest.raises(ConfigError, match="kubeconfig /no/such does not exist"):
        ClientConfig.load("/no/such")


def test_proxies(write: Callable[..., Path]) -> None:
    assert ClientConfig.load(write(kubeconfig(cluster={"proxy-url": "http://p:1"})), environ={}).proxy == "http://p:1"
    path = write(kubeconfig())
    assert ClientConfig.load(path, environ={"HTTPS_PROXY": "http://p:2"}).proxy == "http://p:2"
    assert ClientConfig.load(path, environ={"https_proxy": "http://p:2", "no_proxy": "localhost"}).proxy is None


async def test_client_certificate_over_tls(write: Callable[..., Path], tmp_path: Path) -> None:
    ca = identity("ca")
    server_identity, client_identity = identity("api.test", ca), identity("koordlet", ca)
    files = {"s.pem": server_identity.cert_pem, "s.key": server_identity.key_pem, "ca.pem": ca.cert_pem}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=tmp_path / "ca.pem")
    context.load_cert_chain(tmp_path / "s.pem", tmp_path / "s.key")
    context.verify_mode = ssl.CERT_REQUIRED
    client_names = []

    async def answer(request: web.Request) -> web.Response:
        assert request.transport is not None
        subject = request.transport.get_extra_info("peercert")["subject"]
        client_names.append(dict(pair for part in subject for pair in part)["commonName"])
        return web.json_response({"metadata": {"name": "n"}})

    app = web.Application()
    app.router.add_get("/api/v1/nodes/n", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    server = f"https://127.0.0.1:{runner.addresses[0][1]}"
    user = {
        "client-certificate-data": base64.b64encode(client_identity.cert_pem).decode(),
        "client-key-data": base64.b64encode(client_identity.key_pem).decode(),
    }
    cluster = {"certificate-authority": "ca.pem", "tls-server-name": "api.test"}
    clock = FakeClock(auto=True)
    async with Client(
        ClientConfig.load(write(kubeconfig(server, cluster, user))), clock=clock, registry=CollectorRegistry()
    ) as client:
        assert (await client.get(Node, "n")).metadata.name == "n"
    assert client_names == ["koordlet"]
    bad = ClientConfig.load(write(kubeconfig(server, {"certificate-authority": "ca.pem"}, user)))
    async with Client(bad, clock=clock, registry=CollectorRegistry()) as client:
        with pytest.raises(ConnectionFailed, match="ertificate"):
            await client.get(Node, "n")
    await runner.cleanup()


async def test_exec_plugin_is_run_once_and_again_when_expired(write: Callable[..., Path], tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    script = write(
        f"#!/bin/sh\necho x >> {runs}\n"
        'echo "{\\"apiVersion\\":\\"client.authentication.k8s.io/v1\\",\\"kind\\":\\"ExecCredential\\",'
        '\\"status\\":{\\"token\\":\\"t$(wc -l < ' + str(runs) + ')\\",'
        '\\"expirationTimestamp\\":\\"2023-11-14T23:00:00Z\\"}}"\n',
        "plugin",
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    clock = FakeClock(wall=1_700_000_000)  # 2023-11-14T22:13:20Z
    plugin = ExecPlugin({"command": str(script), "apiVersion": "client.authentication.k8s.io/v1"}, None, clock=clock)
    assert await plugin.headers() == await plugin.headers() == {"Authorization": "Bearer t1"}
    clock.jump(3600)
    assert await plugin.headers() == {"Authorization": "Bearer t2"}
    broken = ExecPlugin({"command": "/no/such", "apiVersion": "v1"}, None, clock=clock)
    with pytest.raises(ConfigError, match="exec plug-in /no/such"):
        await broken.headers()


async def test_token_file_survives_a_rotation_in_progress(tmp_path: Path) -> None:
    clock, path = FakeClock(), tmp_path / "token"
    credentials = TokenFile(path, clock=clock)
    with pytest.raises(ConfigError, match="cannot read token file"):
        await credentials.headers()
    path.write_text("one")
    assert await credentials.headers() == {"Authorization": "Bearer one"}
    path.unlink()
    await clock.advance(61)
    assert await credentials.headers() == {"Authorization": "Bearer one"}
    path.write_text("two")
    await clock.advance(61)
    assert await credentials.headers() == {"Authorization": "Bearer two"}

"""Real containers for a node brought up here: its own containerd, and koord-runtime-proxy between that and the kubelet.

Used when Debian's containerd, runc and busybox-static are installed and work here (`--runtime auto`), or when asked for
(`--runtime containerd`). Everything is below `<state-dir>/containerd`; only shims' sockets are elsewhere, as every
containerd's: in /run/containerd/s. A pod is run on trial before the kubelet relies on it.
"""

from __future__ import annotations

import asyncio
import shutil
import uuid
from pathlib import Path
from typing import Any

from control.ctl.errors import CtlError
from control.ctl.node.state import Settings
from control.standalone.containerd import config
from control.standalone.containerd.slices import write_wrapper
from control.standalone.containerd.wipe import WipeError, wipe
from control.standalone.kubelet.cgroups.directories import CgroupTree

AUTO, CONTAINERD, PROCESS = "auto", "containerd", "process"
RUNTIMES = (AUTO, CONTAINERD, PROCESS)
SOCKET_LIMIT = 107
"""Bytes of a unix socket's path."""
ASK_SECONDS = 3.0
IMPORT_SECONDS = 20.0
TTRPC = ".ttrpc"


def folder(state_dir: Path) -> config.Folder:
    return config.Folder(state_dir / "containerd")


def proxy_socket(state_dir: Path) -> Path:
    return state_dir / "proxy.sock"


def hook_servers(state_dir: Path) -> Path:
    """Where koordlet tells the proxy that it serves hooks."""
    return state_dir / "hookservers"


def endpoint(state_dir: Path, settings: Settings) -> str:
    """The kubelet's `--container-runtime-endpoint`; empty for plain processes."""
    return f"unix://{proxy_socket(state_dir)}" if settings.runtime == CONTAINERD else ""


def unusable(state_dir: Path) -> str | None:
    """Why there can't be a containerd here, before anything is started; None when there may."""
    longest = f"{folder(state_dir).socket}{TTRPC}"
    if len(longest.encode()) > SOCKET_LIMIT:
        return f"{state_dir} is too long a path for a socket below it"
    return config.missing()


def words(settings: Settings) -> str:
    """What pods are here, as `up` and `status` say it."""
    if settings.runtime == AUTO:
        return "what pods run as is decided when the kubelet is started"
    if settings.runtime == CONTAINERD:
        return "pods are containers of a containerd of their own, through koord-runtime-proxy"
    why = f" (containerd: {settings.runtime_reason})" if settings.runtime_reason else ""
    return f"pods are plain processes of this host in their cgroups{why}"


# --- containerd as a part


def argv(state_dir: Path) -> list[str]:
    return [shutil.which("containerd") or "containerd", "-c", str(folder(state_dir).config)]


def before(state_dir: Path, settings: Settings) -> None:
    """Write its configuration."""
    where = folder(state_dir)
    where.root.mkdir(parents=True, exist_ok=True, mode=0o711)
    runc: Path | None = None
    if settings.cgroup_driver == "systemd":
        runc = where.root / "runc.sh"
        write_wrapper(runc, shutil.which("runc") or "runc")
    where.config.write_text(config.configuration(where, runc))


async def problem(state_dir: Path) -> str | None:
    """Does it serve? None, or why not (yet)."""
    from control.standalone.kubelet.runtimes.criclient import CriClient, CriError

    async with CriClient(str(folder(state_dir).socket), seconds=ASK_SECONDS) as client:
        try:
            return None if (await client.conditions()).get("RuntimeReady") else "RuntimeReady is false"
        except CriError as error:
            return str(error)


async def after(state_dir: Path) -> None:
    """Give it its images, and see one pod run. Raises CtlError."""
    from control.standalone.containerd import images
    from control.standalone.kubelet.runtimes.criclient import CriClient, CriError

    where = folder(state_dir)
    async with CriClient(str(where.socket)) as client:
        try:
            if any([await client.image(name) is None for name in images.NAMES]):
                await _import(where)
                async with asyncio.timeout(IMPORT_SECONDS):
                    await asyncio.gather(*(_known(client, name) for name in images.NAMES))
            await _check(client)
        except (CriError, OSError, ValueError) as error:  # TimeoutError is an OSError
            raise CtlError(
                f"containerd does not work here: {error}", "`--runtime process` gives plain processes."
            ) from error


async def _known(client: Any, name: str) -> None:
    """CRI hears of an import a moment later."""
    while await client.image(name) is None:  # noqa: ASYNC110 - another process's doing
        await asyncio.sleep(0.02)


async def _import(where: config.Folder) -> None:
    from control.standalone.containerd import images

    await asyncio.to_thread(images.write_images, where.images)
    ctr = await asyncio.create_subprocess_exec(
        "ctr", "--address", str(where.socket), "--namespace", "k8s.io", "images", "import", str(where.images),
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    _, said = await ctr.communicate()
    if ctr.returncode != 0:
        raise OSError(f"ctr images import: {said.decode(errors='replace').strip()[-300:]}")


async def _check(client: Any) -> None:
    """Run a sandbox, which is a container as good as any, and take it away again. Its cgroup has no parent."""
    from koordlet.api.cri import api_pb2 as cri

    network = cri.NamespaceOption(network=cri.NODE, pid=cri.CONTAINER)
    sandbox = await client.run_pod_sandbox(
        cri.PodSandboxConfig(
            metadata=cri.PodSandboxMetadata(name="check", uid=str(uuid.uuid4()), namespace="koordctl"),
            linux=cri.LinuxPodSandboxConfig(
                cgroup_parent="/", security_context=cri.LinuxSandboxSecurityContext(namespace_options=network)
            ),
        )
    )
    await client.stop_pod_sandbox(sandbox)
    await client.remove_pod_sandbox(sandbox)


def proxy_flags(state_dir: Path, settings: Settings) -> list[str]:
    return [
        f"--koord-runtimeproxy-endpoint={proxy_socket(state_dir)}",
        f"--remote-runtime-service-endpoint={folder(state_dir).socket}",
        f"--hook-server-dir={hook_servers(state_dir)}",
        f"--metrics-addr=127.0.0.1:{settings.runtimeproxy_port}",
    ]


# --- the end


def clear(state_dir: Path, tree: CgroupTree | None) -> bool:
    """Take away what containerd left and forget its containers; False when nothing ran. Raises CtlError."""
    where = folder(state_dir)
    if tree is None or not where.root.exists():
        return False
    try:
        found = wipe(where, tree)
    except WipeError as error:
        raise CtlError(f"containerd's leftovers: {error}", "Run `koordctl down` again.") from error
    for path in (where.content, where.state):
        shutil.rmtree(path, ignore_errors=True)
    return found


def is_part(argv: tuple[str, ...]) -> bool:
    """Is this the command line of a containerd started here, and not of a shim?"""
    return Path(argv[0]).name == "containerd"

"""Real containers for a node: its own containerd, and koord-runtime-proxy between that and the kubelet.

Used if Debian's containerd, runc and busybox-static are installed and work here (`--runtime auto`), or if requested
(`--runtime containerd`). All files are below `<state-dir>/containerd`, except the shims' sockets, which every
containerd has in /run/containerd/s. A test pod runs before the kubelet uses it.
"""

from __future__ import annotations

import asyncio
import shutil
import uuid
from pathlib import Path
from typing import Any

from control.ctl.errors import CtlError
from control.ctl.node import hostfolders
from control.ctl.node.state import NodeSettings
from control.standalone.containerd import config
from control.standalone.containerd.slices import write_wrapper
from control.standalone.containerd.wipe import WipeError, wipe
from control.standalone.kubelet.cgroups.directories import CgroupTree

AUTO = "auto"
CONTAINERD = "containerd"
PROCESS = "process"
RUNTIMES = (AUTO, CONTAINERD, PROCESS)
MAX_SOCKET_PATH_BYTES = 107
"""Longest path of a unix socket."""
HOOK_SERVERS = Path("/etc/runtime/hookserver.d")
"""Where koordlet's DaemonSet registers, and koord-runtime-proxy looks by default."""
REGISTRATION = "koordlet.json"
"""koordlet's file in it, which a killed koordlet leaves."""
REQUEST_TIMEOUT_S = 3.0
IMPORT_TIMEOUT_S = 20.0
TTRPC = ".ttrpc"


def folder(state_dir: Path) -> config.Folder:
    return config.Folder(state_dir / "containerd")


def proxy_socket(state_dir: Path) -> Path:
    return state_dir / "proxy.sock"


def hook_servers(state_dir: Path, settings: NodeSettings) -> Path:
    """Directory in which koordlet registers its hook server; of a bare node that of koordlet's DaemonSet."""
    return HOOK_SERVERS if settings.bare else state_dir / "hookservers"


def create_hook_servers(state_dir: Path, settings: NodeSettings) -> None:
    """Of a bare node, whose directory is outside the state directory; koord-runtime-proxy creates the other."""
    if settings.bare:
        hostfolders.create(state_dir, HOOK_SERVERS)


def endpoint(state_dir: Path, settings: NodeSettings) -> str:
    """The kubelet's `--container-runtime-endpoint`; empty for plain processes."""
    return f"unix://{proxy_socket(state_dir)}" if settings.runtime == CONTAINERD else ""


def unusable(state_dir: Path) -> str | None:
    """Why containerd cannot be used here, checked before anything starts; None when it may work."""
    longest = f"{folder(state_dir).socket}{TTRPC}"
    if len(longest.encode()) > MAX_SOCKET_PATH_BYTES:
        return f"{state_dir} is too long for socket paths below it"
    return config.missing()


def describe_runtime(settings: NodeSettings) -> str:
    """How pods run here, as printed by `up` and `status`."""
    if settings.runtime == AUTO:
        return "the container runtime is chosen when the kubelet starts"
    if settings.runtime == CONTAINERD:
        return "pods are containers of their own containerd, behind koord-runtime-proxy"
    reason = f" (containerd: {settings.runtime_reason})" if settings.runtime_reason else ""
    return f"pods are plain processes of this host in their cgroups{reason}"


# containerd as a part


def argv(state_dir: Path) -> list[str]:
    return [shutil.which("containerd") or "containerd", "-c", str(folder(state_dir).config)]


def before(state_dir: Path, settings: NodeSettings) -> None:
    """Write containerd's configuration."""
    paths = folder(state_dir)
    paths.root.mkdir(parents=True, exist_ok=True, mode=0o711)
    runc: Path | None = None
    if settings.cgroup_driver == "systemd":
        runc = paths.root / "runc.sh"
        write_wrapper(runc, shutil.which("runc") or "runc")
    paths.config.write_text(config.configuration(paths, runc))


async def problem(state_dir: Path) -> str | None:
    """None when containerd is ready, else the reason."""
    from control.standalone.kubelet.runtimes.criclient import CriClient, CriError

    async with CriClient(str(folder(state_dir).socket), seconds=REQUEST_TIMEOUT_S) as client:
        try:
            return None if (await client.conditions()).get("RuntimeReady") else "RuntimeReady is false"
        except CriError as error:
            return str(error)


async def after(state_dir: Path) -> None:
    """Import the images and run a test pod. Raises CtlError."""
    from control.standalone.containerd import images
    from control.standalone.kubelet.runtimes.criclient import CriClient, CriError

    paths = folder(state_dir)
    async with CriClient(str(paths.socket)) as client:
        try:
            if any([await client.image(name) is None for name in images.NAMES]):
                await _import(paths)
                async with asyncio.timeout(IMPORT_TIMEOUT_S):
                    await asyncio.gather(*(_wait_listed(client, name) for name in images.NAMES))
            await _check(client)
        except (CriError, OSError, ValueError) as error:  # TimeoutError is an OSError
            raise CtlError(
                f"containerd does not work here: {error}", "`--runtime process` runs pods as plain processes."
            ) from error


async def _wait_listed(client: Any, name: str) -> None:
    """Wait until CRI lists an imported image, which takes a moment."""
    while await client.image(name) is None:  # noqa: ASYNC110 - containerd offers no event
        await asyncio.sleep(0.02)


async def _import(paths: config.Folder) -> None:
    from control.standalone.containerd import images

    await asyncio.to_thread(images.write_images, paths.images)
    ctr = await asyncio.create_subprocess_exec(
        *("ctr", "--address", str(paths.socket), "--namespace", "k8s.io", "images", "import", str(paths.images)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, stderr = await ctr.communicate()
    if ctr.returncode != 0:
        raise OSError(f"ctr images import: {stderr.decode(errors='replace').strip()[-300:]}")


async def _check(client: Any) -> None:
    """Create a sandbox, which runs a container, and remove it. Its cgroup has no parent."""
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


def proxy_flags(state_dir: Path, settings: NodeSettings) -> list[str]:
    return [
        f"--koord-runtimeproxy-endpoint={proxy_socket(state_dir)}",
        f"--remote-runtime-service-endpoint={folder(state_dir).socket}",
        f"--hook-server-dir={hook_servers(state_dir, settings)}",
        f"--metrics-addr=127.0.0.1:{settings.runtimeproxy_port}",
    ]


# Removal


def clear(state_dir: Path, tree: CgroupTree | None) -> bool:
    """Remove containerd's leftovers and its containers; False when nothing ran. Raises CtlError."""
    paths = folder(state_dir)
    if tree is None or not paths.root.exists():
        return False
    try:
        removed = wipe(paths, tree)
    except WipeError as error:
        raise CtlError(f"containerd's leftovers: {error}", "Run `koordctl down` again.") from error
    for path in (paths.content, paths.state):
        shutil.rmtree(path, ignore_errors=True)
    return removed


def is_part(argv: tuple[str, ...]) -> bool:
    """Whether this is the command line of a containerd started here, not of a shim."""
    return Path(argv[0]).name == "containerd"

"""Volumes of a pod, and what its securityContext asks of the runtime."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from control.standalone.kubelet.pods.environ import DownwardNodeInfo, EnvError, Lookup
from control.standalone.kubelet.pods.security import container_security, reaches_node, sandbox_security
from control.standalone.kubelet.pods.spec import ParsedPod, parse_pod
from control.standalone.kubelet.pods.volumes import PodVolumes, TokenWish
from control.standalone.kubelet.runtimes.runtime import PathMount
from tests.fakeclock import FakeClock

DATA = {("ConfigMap", "cm"): {"a": "1", "b": "2"}, ("Secret", "s"): {"k": "hush"}}
ACCOUNT = {"projected": {"sources": [
    {"serviceAccountToken": {"path": "token", "expirationSeconds": 1000}},
    {"configMap": {"name": "cm", "items": [{"key": "a", "path": "ca.crt"}]}},
    {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
]}}  # fmt: skip
LABELS = {"downwardAPI": {"items": [{"path": "l", "fieldRef": {"fieldPath": "metadata.labels"}}]}}


class Sources:
    """ConfigMaps, Secrets, and numbered tokens."""

    def __init__(self) -> None:
        self.wishes: list[TokenWish] = []

    async def lookup(self, namespace: str, references: set[tuple[str, str]]) -> Lookup:
        return lambda kind, name: DATA.get((kind, name))

    async def token(self, pod: ParsedPod, wish: TokenWish) -> str:
        self.wishes.append(wish)
        return f"{pod.namespace}/{pod.service_account} {len(self.wishes)}"


def pod_of(*volumes: Mapping[str, Any], container: Mapping[str, Any] | None = None, **spec: Any) -> ParsedPod:
    names = [f"v{number}" for number in range(len(volumes))]
    mounts = [{"name": name, "mountPath": f"/mnt/{name}"} for name in names]
    return parse_pod(
        {
            "metadata": {"name": "p", "namespace": "ns", "uid": "u", "labels": {"b": "2", "a": "1"}},
            "spec": {
                "serviceAccountName": "robot",
                "volumes": [{"name": name, **volume} for name, volume in zip(names, volumes, strict=True)],
                "containers": [{"name": "c", "image": "i", "volumeMounts": mounts, **(container or {})}],
                **spec,
            },
        }
    )


class VolumeScene:
    """The volumes of one pod below `root`."""

    def __init__(self, root: Path) -> None:
        self.clock, self.sources = FakeClock(), Sources()
        node = DownwardNodeInfo("n1", "10.0.0.1", 3500, 8 << 30)
        self.volumes = PodVolumes(root / "pods/u", self.sources, node, self.clock)

    async def mounts(self, pod: ParsedPod) -> list[PathMount]:
        return await self.volumes.mounts(pod, pod.containers[0])


@pytest.fixture
def scene(tmp_path: Path) -> VolumeScene:
    return VolumeScene(tmp_path)


def contents(mount: PathMount) -> dict[str, str]:
    root = Path(mount.source)
    return {str(path.relative_to(root)): path.read_text() for path in sorted(root.rglob("*")) if path.is_file()}


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(
    ("volume", "files"),
    [
        ({"configMap": {"name": "cm"}}, {"a": "1", "b": "2"}),
        ({"configMap": {"name": "cm", "items": [{"key": "b", "path": "x/y"}]}}, {"x/y": "2"}),
        ({"configMap": {"name": "absent", "optional": True}}, {}),
        ({"secret": {"secretName": "s"}}, {"k": "hush"}),
        ({"emptyDir": {"medium": "Memory"}}, {}),
        (ACCOUNT, {"token": "ns/robot 1", "ca.crt": "1", "namespace": "ns"}),
        (LABELS, {"l": 'a="1"\nb="2"'}),
    ],
    ids=lambda value: next(iter(value), "") if isinstance(value, dict) else "",
)  # fmt: skip
async def test_contents(scene: VolumeScene, volume: dict[str, Any], files: dict[str, str]) -> None:
    (mount,) = await scene.mounts(pod_of(volume))
    assert mount.path == "/mnt/v0" and contents(mount) == files
    assert mount.read_only == ("emptyDir" not in volume), "containers cannot change what the kubelet writes"


async def test_a_mode_is_that_of_the_volume(scene: VolumeScene) -> None:
    (mount,) = await scene.mounts(pod_of({"secret": {"secretName": "s", "defaultMode": 0o400}}))
    assert mode(Path(mount.source) / "k") == 0o400


async def test_an_empty_directory_keeps_its_files_when_the_container_starts_again(scene: VolumeScene) -> None:
    pod = pod_of({"emptyDir": {}})
    (mount,) = await scene.mounts(pod)
    (Path(mount.source) / "kept").write_text("x")
    assert contents((await scene.mounts(pod))[0]) == {"kept": "x"}
    assert mode(Path(mount.source)) == 0o777


async def test_a_token_is_renewed_before_it_expires(scene: VolumeScene) -> None:
    pod = pod_of(ACCOUNT)
    (mount,) = await scene.mounts(pod)
    assert scene.sources.wishes == [TokenWish("", 1000)]
    assert await scene.volumes.renew(pod) == 800.0
    assert len(scene.sources.wishes) == 1
    await scene.clock.advance(801)
    assert await scene.volumes.renew(pod) == 1601.0
    assert contents(mount)["token"] == "ns/robot 2"


async def test_a_restarted_kubelet_renews_the_tokens_that_it_finds(scene: VolumeScene, tmp_path: Path) -> None:
    pod = pod_of(ACCOUNT)
    (mount,) = await scene.mounts(pod)
    restarted = VolumeScene(tmp_path)
    assert await restarted.volumes.renew(pod) == 800.0
    assert len(restarted.sources.wishes) == 1 and "token" in contents(mount)


async def test_a_path_of_the_node_is_mounted_as_it_is(scene: VolumeScene, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    existing = {"hostPath": {"path": str(tmp_path / "data"), "type": "Directory"}}
    created = {"hostPath": {"path": str(tmp_path / "new/deep"), "type": "DirectoryOrCreate"}}
    propagated = {"name": "v0", "mountPath": "/data", "readOnly": True, "mountPropagation": "HostToContainer"}
    pod = pod_of(existing, created, container={"volumeMounts": [propagated, {"name": "v1", "mountPath": "/new"}]})
    assert await scene.mounts(pod) == [
        PathMount(str(tmp_path / "data"), "/data", True, "HostToContainer"),
        PathMount(str(tmp_path / "new/deep"), "/new", False),
    ]
    assert (tmp_path / "new/deep").is_dir()


@pytest.mark.parametrize(
    ("volume", "mount", "message"),
    [
        ({"configMap": {"name": "absent"}}, {}, 'configmap "absent" not found'),
        ({"configMap": {"name": "cm", "items": [{"key": "z", "path": "z"}]}}, {}, "non-existent key: z"),
        ({"configMap": {"name": "cm", "items": [{"key": "a", "path": "../../etc/x"}]}}, {}, "is not valid"),
        ({"configMap": {"name": "cm", "items": [{"key": "a", "path": "/etc/x"}]}}, {}, "is not valid"),
        ({"persistentVolumeClaim": {"claimName": "x"}}, {}, r"unsupported kind \['persistentVolumeClaim'\]"),
        ({"hostPath": {"path": "/proc/1/mem", "type": "Directory"}}, {}, "is not a Directory"),
        ({"hostPath": {"path": "/tmp/../etc"}}, {}, "without `..`"),
        ({"hostPath": {"path": "relative"}}, {}, "not an absolute path"),
        ({"hostPath": {"path": "/nowhere", "type": "Sometimes"}}, {}, "unsupported type"),
        ({"emptyDir": {}}, {"subPath": "a"}, "subPath"),
        ({"emptyDir": {}}, {"mountPropagation": "Sideways"}, "mountPropagation"),
        ({"emptyDir": {}}, {"name": "other"}, "there is no volume 'other'"),
        ({"downwardAPI": {"items": [{"path": "x", "resourceFieldRef": {}}]}}, {}, "only fieldRef"),
    ],
    ids=str,
)
async def test_what_cannot_be_mounted_is_named(
    scene: VolumeScene, volume: dict[str, Any], mount: dict[str, Any], message: str
) -> None:
    pod = pod_of(volume, container={"volumeMounts": [{"name": "v0", "mountPath": "/mnt", **mount}]})
    with pytest.raises(EnvError, match=message):
        await scene.mounts(pod)


@pytest.mark.parametrize(
    ("spec", "container", "reached"),
    [
        ({}, {"securityContext": {"capabilities": {"drop": ["ALL"]}, "privileged": False}}, None),
        ({"hostNetwork": True}, {}, None),  # every pod has the node's network
        ({"hostPID": True}, {}, "hostPID"),
        ({"hostIPC": True}, {}, "hostIPC"),
        ({"volumes": [{"name": "x", "hostPath": {"path": "/"}}]}, {}, "hostPath of volume x"),
        ({}, {"securityContext": {"privileged": True}}, "privileged of container c"),
        ({}, {"securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}, "capabilities.add of container c"),
        ({"initContainers": [{"name": "i", "image": "i", "securityContext": {"privileged": True}}]}, {},
         "privileged of container i"),
    ],
    ids=str,
)  # fmt: skip
def test_what_reaches_the_node(spec: dict[str, Any], container: dict[str, Any], reached: str | None) -> None:
    assert reaches_node(pod_of(container=container, **spec)) == reached


def test_the_security_of_a_container() -> None:
    context = {
        "capabilities": {"drop": ["ALL"], "add": ["CAP_BPF", "PERFMON"]},
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
    }  # fmt: skip
    security = {"seccompProfile": {"type": "RuntimeDefault"}, "runAsNonRoot": True, "runAsUser": 7}
    pod = pod_of(container={"securityContext": context}, securityContext=security, hostPID=True)
    result = container_security(pod, pod.containers[0])
    assert (result.add, result.drop) == (("BPF", "PERFMON"), ("ALL",))
    assert result.read_only_root and result.no_new_privileges and result.host_pid and not result.host_ipc
    assert result.seccomp == "RuntimeDefault" and not result.privileged
    assert sandbox_security(pod).host_pid and not sandbox_security(pod).privileged


@pytest.mark.parametrize(
    ("context", "message"),
    [
        ({"runAsNonRoot": True, "runAsUser": 0}, "breaks non-root policy"),
        ({"privileged": True, "allowPrivilegeEscalation": False}, "allowPrivilegeEscalation"),
        ({"seccompProfile": {"type": "Localhost"}}, "unsupported value 'Localhost'"),
    ],
)
def test_settings_that_cannot_be_met_are_named(context: dict[str, Any], message: str) -> None:
    pod = pod_of(container={"securityContext": context})
    with pytest.raises(EnvError, match=message):
        container_security(pod, pod.containers[0])

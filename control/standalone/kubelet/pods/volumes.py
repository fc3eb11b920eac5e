"""The volumes of one pod: directories below its folder, filled from the API, and paths of the node.

`emptyDir` is a directory (also with `medium: Memory`); `configMap`, `secret`, `downwardAPI` and `projected` are written
when a container that mounts them starts; tokens are renewed before they expire. Other kinds, `subPath` and
`resourceFieldRef` are not supported: such a container waits with the reason CreateContainerConfigError.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from control.standalone.kubelet.pods.environ import DownwardNodeInfo, EnvError, Lookup, field_value
from control.standalone.kubelet.pods.spec import ContainerSpec, ParsedPod
from control.standalone.kubelet.runtimes.runtime import PathMount
from koordlet.app import atomicfile
from koordlet.app.clock import Clock

TOKEN_LIFETIME_S = 3600
RENEWED_AT_SHARE = 0.8
"""A token is renewed after this share of its lifetime, as in kubelet."""
FILE_MODE, DIRECTORY_MODE, SCRATCH_MODE = 0o644, 0o755, 0o777
PROPAGATIONS = {"": "", "None": "", "HostToContainer": "HostToContainer", "Bidirectional": "Bidirectional"}
_KINDS = ("emptyDir", "hostPath", "configMap", "secret", "downwardAPI", "projected")
_IS = {"Directory": stat.S_ISDIR, "File": stat.S_ISREG, "Socket": stat.S_ISSOCK, "CharDevice": stat.S_ISCHR,
       "BlockDevice": stat.S_ISBLK}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TokenWish:
    """A token of the pod's account for an audience (empty: the API server)."""

    audience: str
    seconds: int


class VolumeSources(Protocol):
    """Where the contents come from. Both raise `ApiUnavailable`."""

    async def lookup(self, namespace: str, references: set[tuple[str, str]]) -> Lookup: ...

    async def token(self, pod: ParsedPod, wish: TokenWish) -> str:
        """A token that is bound to the pod."""
        ...


@dataclass(frozen=True, slots=True)
class _Projection:
    """A source of files: its kind in a projected volume, its fields."""

    kind: str
    fields: Mapping[str, Any]
    mode: int


class PodVolumes:
    """`folder`: the pod's own directory, which only root can enter."""

    def __init__(self, folder: Path, sources: VolumeSources, node: DownwardNodeInfo, clock: Clock) -> None:
        self._folder = folder / "volumes"
        self._sources = sources
        self._node = node
        self._clock = clock
        self._renewals: dict[Path, float] = {}
        """File of a token -> monotonic time of its renewal."""

    async def mounts(self, pod: ParsedPod, container: ContainerSpec) -> list[PathMount]:
        """Write the volumes that the container mounts. Raises EnvError, ApiUnavailable, OSError."""
        return [await self._mount(pod, mount) for mount in container.mounts]

    async def renew(self, pod: ParsedPod) -> float | None:
        """Renew the tokens that are due; the monotonic time of the next renewal. Raises ApiUnavailable, OSError."""
        for path, projection in self._token_files(pod):
            if path.exists() and self._renewals.get(path, 0.0) <= self._clock.monotonic():
                await self._write_token(pod, path, projection)
        return min(self._renewals.values(), default=None)

    async def _mount(self, pod: ParsedPod, mount: Mapping[str, Any]) -> PathMount:
        name, inside = str(mount.get("name") or ""), str(mount.get("mountPath") or "")
        volume = pod.volumes.get(name)
        if volume is None:
            raise EnvError(f"volumeMounts: there is no volume {name!r}")
        if mount.get("subPath") or mount.get("subPathExpr"):
            raise EnvError(f"volumeMounts: subPath of volume {name} is not supported")
        propagation = str(mount.get("mountPropagation") or "")
        if propagation not in PROPAGATIONS:
            raise EnvError(f"volumeMounts: unsupported mountPropagation {propagation!r}")
        kind = next((kind for kind in _KINDS if volume.get(kind) is not None), None)
        if kind is None:
            raise EnvError(f"volume {name}: unsupported kind {sorted(set(volume) - {'name'})}")
        read_only = mount.get("readOnly") is True or kind not in ("emptyDir", "hostPath")
        if kind == "hostPath":
            path = _node_path(volume["hostPath"])
        else:
            path = self._folder / _component(name)
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(SCRATCH_MODE if kind == "emptyDir" else DIRECTORY_MODE)
            for projection in _projections(volume, kind):
                await self._write(pod, path, projection)
        return PathMount(str(path), inside, read_only, PROPAGATIONS[propagation])

    async def _write(self, pod: ParsedPod, folder: Path, projection: _Projection) -> None:
        if projection.kind == "serviceAccountToken":
            await self._write_token(pod, _below(folder, str(projection.fields.get("path") or "")), projection)
        elif projection.kind == "downwardAPI":
            for item in projection.fields.get("items") or ():
                _write_file(_below(folder, str(item.get("path") or "")), self._downward(pod, item), projection.mode)
        else:
            kind = {"configMap": "ConfigMap", "secret": "Secret"}[projection.kind]
            name = str(projection.fields.get("name") or projection.fields.get("secretName") or "")
            data = (await self._sources.lookup(pod.namespace, {(kind, name)}))(kind, name)
            if data is None and projection.fields.get("optional"):
                return
            if data is None:
                raise EnvError(f'{kind.lower()} "{name}" not found')
            for key, path, mode in _items(projection, data):
                _write_file(_below(folder, path), data[key], mode)

    def _downward(self, pod: ParsedPod, item: Mapping[str, Any]) -> str:
        reference = item.get("fieldRef")
        if not reference:
            raise EnvError("downwardAPI: only fieldRef is supported")
        field = str(reference.get("fieldPath") or "")
        maps = {"metadata.labels": pod.labels, "metadata.annotations": pod.annotations}
        if field in maps:
            return "\n".join(f'{key}="{value}"' for key, value in sorted(maps[field].items()))
        return field_value(pod, self._node, field)

    def _token_files(self, pod: ParsedPod) -> Iterator[tuple[Path, _Projection]]:
        for name, volume in pod.volumes.items():
            if volume.get("projected") is None:
                continue
            for projection in _projections(volume, "projected"):
                if projection.kind == "serviceAccountToken":
                    folder = self._folder / _component(name)
                    yield _below(folder, str(projection.fields.get("path") or "")), projection

    async def _write_token(self, pod: ParsedPod, path: Path, projection: _Projection) -> None:
        seconds = int(projection.fields.get("expirationSeconds") or TOKEN_LIFETIME_S)
        wish = TokenWish(str(projection.fields.get("audience") or ""), seconds)
        began = self._clock.monotonic()
        _write_file(path, await self._sources.token(pod, wish), projection.mode)
        self._renewals[path] = began + seconds * RENEWED_AT_SHARE


def _projections(volume: Mapping[str, Any], kind: str) -> Iterator[_Projection]:
    fields = volume[kind]
    mode = int(fields.get("defaultMode") or FILE_MODE)
    if kind == "projected":
        for source in fields.get("sources") or ():
            for name in ("serviceAccountToken", "configMap", "secret", "downwardAPI"):
                if source.get(name) is not None:
                    yield _Projection(name, source[name], mode)
    elif kind != "emptyDir":
        yield _Projection(kind, fields, mode)


def _items(projection: _Projection, data: Mapping[str, str]) -> Iterator[tuple[str, str, int]]:
    """(key, path, mode) of the files of a ConfigMap or Secret."""
    items = projection.fields.get("items")
    if not items:
        yield from ((key, key, projection.mode) for key in data)
        return
    for item in items:
        key = str(item.get("key") or "")
        if key in data:
            yield key, str(item.get("path") or ""), int(item.get("mode") or projection.mode)
        elif not projection.fields.get("optional"):
            raise EnvError(f"references non-existent key: {key}")


def _node_path(fields: Mapping[str, Any]) -> Path:
    """The path of the node, of the type that the volume demands."""
    path, kind = Path(str(fields.get("path") or "")), str(fields.get("type") or "")
    if not path.is_absolute() or ".." in path.parts:
        raise EnvError(f"hostPath {path}: not an absolute path without `..`")
    if kind == "DirectoryOrCreate":
        path.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    elif kind == "FileOrCreate":
        path.touch(mode=FILE_MODE)
    elif kind in _IS:
        if not path.exists() or not _IS[kind](path.stat().st_mode):
            raise EnvError(f"hostPath type check failed: {path} is not a {kind}")
    elif kind:
        raise EnvError(f"hostPath {path}: unsupported type {kind!r}")
    return path


def _component(name: str) -> str:
    """A volume's name as one component of a path."""
    if not name or "/" in name or name in (".", ".."):
        raise EnvError(f"volume name {name!r} is not valid")
    return name


def _below(folder: Path, path: str) -> Path:
    """A file of a volume. The volume has no links: containers mount it read-only."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts:
        raise EnvError(f"path {path!r} of a volume is not valid")
    return folder.joinpath(*parts)


def _write_file(path: Path, text: str, mode: int) -> None:
    path.parent.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    atomicfile.write(path, text.encode(), mode=mode, durable=False)

"""Validation of a pod's volumes and of the places where its containers mount them.

Each function yields `FieldError`s with paths below its `path` argument and with Kubernetes' wording.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from control.standalone.errors import FieldError
from control.standalone.schema import fielderrors as fe
from control.standalone.schema.structural import parse_quantity
from control.standalone.schema.validation_env import object_field, resource_field
from control.standalone.schema.validation_security import descending_path, without_parents

Json = Mapping[str, Any]

MAX_FILE_MODE = 0o777
MIN_TOKEN_SECONDS, MAX_TOKEN_SECONDS = 10 * 60, 2**32
_HOST_PATH_TYPES = (
    "", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket",
)  # fmt: skip
_PROPAGATIONS = ("Bidirectional", "HostToContainer", "None")


def volume_source(volume: Json, path: str) -> Iterator[FieldError]:
    for name, check in (
        ("hostPath", _host_path),
        ("emptyDir", _empty_dir),
        ("secret", _secret),
        ("configMap", _config_map),
        ("persistentVolumeClaim", _claim),
        ("downwardAPI", _downward),
        ("projected", _projected),
    ):
        if isinstance(source := volume.get(name), Mapping):
            yield from check(source, f"{path}.{name}")


def mounts(container: Json, path: str, volumes: set[str]) -> Iterator[FieldError]:
    """`path`: of the container; `volumes`: the names of the pod's volumes."""
    paths: set[str] = set()
    privileged = bool((container.get("securityContext") or {}).get("privileged"))
    for at, mount in enumerate(container.get("volumeMounts") or ()):
        field = f"{path}.volumeMounts"
        where = f"{field}[{at}]"
        if not mount.get("name"):
            yield fe.required(f"{where}.name")
        elif mount["name"] not in volumes:
            yield fe.not_found(f"{where}.name", mount["name"])
        target = mount.get("mountPath")
        if not target:
            yield fe.required(f"{where}.mountPath")
        elif target in paths:
            yield fe.invalid(f"{where}.mountPath", target, "must be unique")
        paths.add(str(target))
        inner, expression = mount.get("subPath"), mount.get("subPathExpr")
        if inner:
            yield from descending_path(str(inner), f"{field}.subPath")
        if expression:
            if inner:
                yield fe.invalid(f"{where}.subPathExpr", expression, "subPathExpr and subPath are mutually exclusive")
            yield from descending_path(str(expression), f"{field}.subPathExpr")
        propagation = mount.get("mountPropagation")
        if propagation == "Bidirectional" and not privileged:
            message = "Bidirectional mount propagation is available only to privileged containers"
            yield fe.forbidden(f"{field}.mountPropagation", message)
        elif propagation not in (None, *_PROPAGATIONS):
            yield fe.not_supported(f"{field}.mountPropagation", propagation, _PROPAGATIONS)


def _host_path(source: Json, path: str) -> Iterator[FieldError]:
    if not source.get("path"):
        yield fe.required(f"{path}.path")
    else:
        yield from without_parents(str(source["path"]), f"{path}.path")
    if source.get("type", "") not in _HOST_PATH_TYPES:
        yield fe.not_supported(f"{path}.type", source["type"], _HOST_PATH_TYPES)


def _empty_dir(source: Json, path: str) -> Iterator[FieldError]:
    size = parse_quantity(str(source["sizeLimit"])) if source.get("sizeLimit") is not None else None
    if size is not None and size.milli_value() < 0:
        yield fe.forbidden(f"{path}.sizeLimit", "SizeLimit field must be a valid resource quantity")


def _secret(source: Json, path: str) -> Iterator[FieldError]:
    if not source.get("secretName"):
        yield fe.required(f"{path}.secretName")
    yield from _files(source, path)


def _config_map(source: Json, path: str) -> Iterator[FieldError]:
    if not source.get("name"):
        yield fe.required(f"{path}.name")
    yield from _files(source, path)


def _files(source: Json, path: str) -> Iterator[FieldError]:
    """Mode and items of a volume of files."""
    yield from _mode(source.get("defaultMode"), f"{path}.defaultMode")
    for at, item in enumerate(source.get("items") or ()):
        where = f"{path}.items[{at}]"
        if not item.get("key"):
            yield fe.required(f"{where}.key")
        yield from _file_path(item, where)
        yield from _mode(item.get("mode"), f"{where}.mode")


def _file_path(item: Json, path: str) -> Iterator[FieldError]:
    value = str(item.get("path") or "")
    if not value:
        yield fe.required(f"{path}.path")
    yield from descending_path(value, f"{path}.path")
    if value.startswith("..") and ".." not in value.split("/"):
        yield fe.invalid(f"{path}.path", value, "must not start with '..'")


def _mode(mode: Any, path: str) -> Iterator[FieldError]:
    if mode is not None and not 0 <= mode <= MAX_FILE_MODE:
        yield fe.invalid(path, mode, "must be a number between 0 and 0777 (octal), both inclusive")


def _claim(source: Json, path: str) -> Iterator[FieldError]:
    if not source.get("claimName"):
        yield fe.required(f"{path}.claimName")


def _downward(source: Json, path: str) -> Iterator[FieldError]:
    yield from _mode(source.get("defaultMode"), f"{path}.defaultMode")
    for item in source.get("items") or ():
        yield from _file_path(item, path)
        field, resource = item.get("fieldRef"), item.get("resourceFieldRef")
        if isinstance(field, Mapping):
            yield from object_field(field, f"{path}.fieldRef", of_volume=True)
            if resource is not None:
                message = "fieldRef and resourceFieldRef can not be specified simultaneously"
                yield fe.invalid(path, "resource", message)
        elif isinstance(resource, Mapping):
            yield from resource_field(resource, f"{path}.resourceFieldRef", of_volume=True)
        else:
            yield fe.required(path, "one of fieldRef and resourceFieldRef is required")
        yield from _mode(item.get("mode"), f"{path}.mode")


def _projected(source: Json, path: str) -> Iterator[FieldError]:
    yield from _mode(source.get("defaultMode"), f"{path}.defaultMode")
    for at, projection in enumerate(source.get("sources") or ()):
        where = f"{path}.sources[{at}]"
        for name in ("secret", "configMap"):
            if isinstance(part := projection.get(name), Mapping):
                if not part.get("name"):
                    yield fe.required(f"{where}.{name}.name")
                yield from _files(part, f"{where}.{name}")
        if isinstance(part := projection.get("downwardAPI"), Mapping):
            yield from _downward(part, f"{where}.downwardAPI")
        if isinstance(part := projection.get("serviceAccountToken"), Mapping):
            yield from _token(part, f"{where}.serviceAccountToken")


def _token(source: Json, path: str) -> Iterator[FieldError]:
    seconds = source.get("expirationSeconds")
    if seconds is not None and seconds < MIN_TOKEN_SECONDS:
        yield fe.invalid(f"{path}.expirationSeconds", seconds, "may not specify a duration less than 10 minutes")
    elif seconds is not None and seconds > MAX_TOKEN_SECONDS:
        yield fe.invalid(f"{path}.expirationSeconds", seconds, "may not specify a duration larger than 2^32 seconds")
    if not source.get("path"):
        yield fe.required(f"{path}.path")

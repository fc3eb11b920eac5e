"""Reduces the JSON of a pod that is much longer than ordinary ones to a bounded size, before it is decoded. Pure.

Kubernetes 1.35 accepts more than 25,000 containers in a pod, and lists and maps of any length in 1.5 MiB; decoded they
take up to ten times that memory in koordlet, for each pod of a node. No runtime starts as many containers: of a long
pod only the first containers are known, and only the fields that koordlet reads. The cgroup of the whole pod is managed
like any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from koordlet.api import names
from koordlet.api.encoding.nesting import shallow

LONG_BYTES: Final = 64 << 10
"""Shorter pods are decoded as they are: an ordinary pod has 5 to 20 KiB."""
MAX_BYTES: Final = 256 << 10
"""Without annotations, which have as much at most, at the API server."""
MAX_CONTAINERS: Final = 256
"""Also the length of other lists and maps in a long pod."""
FEW: Final = 16
"""Their length where the pod is longer than MAX_BYTES nevertheless."""
_SHORT_BYTES: Final = 256
"""A value of this length is kept without a look into it."""
_UNREAD: Final = frozenset(("managedFields", "ephemeralContainers", "ephemeralContainerStatuses", "affinity"))
_CONTAINER: Final = frozenset(("name", "resources", "restartPolicy"))
_STATUS: Final = frozenset(("name", "containerID", "state"))
_READ_KEYS: Final = frozenset(value for value in vars(names).values() if isinstance(value, str))
"""Labels and resources that koordlet may read: with 256 others, a pod would otherwise hide its QoS class or limits."""
_KINDS: Final = (("containers", "containerStatuses"), ("initContainers", "initContainerStatuses"))
_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_LIST: Final = msgspec.json.Decoder(list[msgspec.Raw])
_Object = dict[str, msgspec.Raw]


class _Named(msgspec.Struct):
    name: str = ""


_NAMES: Final = msgspec.json.Decoder(list[_Named])


def reduced(raw: bytes) -> tuple[bytes, bool]:
    """(the pod with bounded lists; whether containers were left out). Text that is no pod is returned as it is: its
    decoder names the error."""
    try:
        try:
            return _reduced(raw)
        except RecursionError:
            return _reduced(shallow(raw))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return raw, False


def _reduced(raw: bytes) -> tuple[bytes, bool]:
    pod = _OBJECT.decode(raw)
    parts: dict[str, _Object] = {
        part: _without(_OBJECT.decode(pod[part])) for part in ("metadata", "spec", "status") if part in pod
    }
    annotations = parts.get("metadata", {}).pop("annotations", None)
    for items in (MAX_CONTAINERS, FEW):
        text, is_cut = _with_items(parts, items)
        if len(text) <= MAX_BYTES:
            break
    if annotations is not None:
        parts_of_text = _OBJECT.decode(text)
        metadata = {**_OBJECT.decode(parts_of_text["metadata"]), "annotations": annotations}
        text = msgspec.json.encode({**parts_of_text, "metadata": metadata})
    return text, is_cut


def _with_items(parts: Mapping[str, _Object], items: int) -> tuple[bytes, bool]:
    """The parts of a pod with at most this many entries in each list and map."""
    kept = {part: dict(fields) for part, fields in parts.items()}
    spec, status = kept.get("spec", {}), kept.get("status", {})
    is_cut = False
    for kind, of_status in _KINDS:
        if kind not in spec:
            continue
        containers = _LIST.decode(spec[kind])
        is_cut |= len(containers) > items
        names = {each.name for each in _NAMES.decode(spec[kind])[:items]}
        spec[kind] = _chosen(containers[:items], _CONTAINER, items)
        if of_status in status:
            listed = zip(_LIST.decode(status[of_status]), _NAMES.decode(status[of_status]), strict=True)
            status[of_status] = _chosen((raw for raw, known in listed if known.name in names), _STATUS, items)
    for fields in kept.values():
        fields.update({key: _cut(value, items) for key, value in fields.items()})
    return msgspec.json.encode(kept), is_cut


def _without(fields: _Object) -> _Object:
    return {key: value for key, value in fields.items() if key not in _UNREAD}


def _chosen(elements: Iterable[msgspec.Raw], fields: frozenset[str], items: int) -> msgspec.Raw:
    """The elements with these fields only."""
    return _raw(
        [{key: _cut(value, items) for key, value in _OBJECT.decode(raw).items() if key in fields} for raw in elements]
    )


def _cut(value: msgspec.Raw, items: int) -> msgspec.Raw:
    """At most `items` entries of each list and map in the value, and those with keys that koordlet reads."""
    view = memoryview(value)
    if len(view) <= _SHORT_BYTES:
        return value
    start = bytes(view[:1])
    if start == b"[":
        return _raw([_cut(each, items) for each in _LIST.decode(value)[:items]])
    if start == b"{":
        entries = _OBJECT.decode(value)
        keys = {*list(entries)[:items], *(entries.keys() & _READ_KEYS)}
        return _raw({key: _cut(each, items) for key, each in entries.items() if key in keys})
    return value


def _raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))

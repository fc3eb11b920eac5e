"""Content negotiation: the form of JSON for the response, and the decoding of the request body.

Responses are JSON; request bodies may also be YAML or protobuf. A client that prefers protobuf gets JSON if it
accepts JSON too, and 406 otherwise; only OpenAPI v2 is available in both. `as=Table` and `as=PartialObjectMetadata` are
the forms of meta.k8s.io. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import msgspec

from control.standalone import errors
from control.standalone.http import protobuf, yamlbody

View = Literal["object", "table", "partial"]
ACCEPTED = "application/json"
OPENAPI_PROTOBUF = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
# kubectl sends the second name.
_OPENAPI_NAMES = (OPENAPI_PROTOBUF, "application/com.github.proto-openapi.spec.v2@v1.0+protobuf")
_JSON_LIKE = ("application/json", "*/*", "application/*")
DISCOVERY_GROUP = "apidiscovery.k8s.io"


@dataclass(frozen=True, slots=True)
class MediaType:
    type: str
    params: tuple[tuple[str, str], ...]

    def get(self, name: str) -> str:
        return dict(self.params).get(name, "")


@lru_cache(maxsize=256)
def parse_accept(header: str) -> tuple[MediaType, ...]:
    """Media types in order of appearance; explicit q weights reorder them."""
    media_types = []
    for part in (header or "*/*").split(","):
        main, *rest = (p.strip() for p in part.split(";"))
        if not main:
            continue
        params = tuple((k.strip(), v.strip()) for k, _, v in (r.partition("=") for r in rest))
        media_types.append(MediaType(main.lower(), params))
    return tuple(sorted(media_types, key=lambda m: -_quality(m)))


def _quality(media: MediaType) -> float:
    try:
        return float(media.get("q") or 1)
    except ValueError:
        return 1.0


@lru_cache(maxsize=256)
def view(header: str) -> View:
    """The first form in the Accept header that the server supports; raises StatusError 406."""
    for media in parse_accept(header):
        if media.type not in _JSON_LIKE:
            continue
        form = media.get("as")
        if not form:
            return "object"
        if media.get("g") not in ("meta.k8s.io", "") or media.get("v") not in ("v1", "v1beta1", ""):
            continue
        if form == "Table":
            return "table"
        if form in ("PartialObjectMetadata", "PartialObjectMetadataList"):
            return "partial"
    raise errors.not_acceptable(ACCEPTED)


@lru_cache(maxsize=64)
def discovery_version(header: str) -> str:
    """ "v2" or "v2beta1" if aggregated discovery comes before plain JSON in the Accept header, else ""."""
    for media in parse_accept(header):
        if media.type not in _JSON_LIKE:
            continue
        if not media.get("as"):
            return ""
        if media.get("g") == DISCOVERY_GROUP and media.get("as") == "APIGroupDiscoveryList":
            return media.get("v") if media.get("v") in ("v2", "v2beta1") else ""
    return ""


@lru_cache(maxsize=64)
def openapi_type(header: str) -> str:
    """The content type of the response to /openapi/v2; raises StatusError 406."""
    for media in parse_accept(header):
        if media.type in _OPENAPI_NAMES:
            return OPENAPI_PROTOBUF
        if media.type in _JSON_LIKE:
            return ACCEPTED
    raise errors.not_acceptable(f"{ACCEPTED}, {OPENAPI_PROTOBUF}")


def decode_body(body: bytes, content_type: str) -> Any:
    """The body as JSON data; raises StatusError 400 or 415."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind in ("", "application/json", "application/octet-stream") or kind.endswith("+json"):
        return decode_json(body)
    if kind in ("application/yaml", "application/x-yaml", "text/yaml") or kind.endswith("+yaml"):
        if body[:1] in (b"{", b"["):
            return decode_json(body)
        return yamlbody.decode(body)
    if kind == protobuf.CONTENT_TYPE:
        return protobuf.decode(body)
    raise errors.unsupported_media_type(f"application/json, application/yaml, {protobuf.CONTENT_TYPE}")


def decode_json(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise errors.bad_request(f"the object provided is not valid JSON: {error}") from error

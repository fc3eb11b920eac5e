"""Data of a page as JSON or YAML. Pure."""

from __future__ import annotations

import json

import yaml

from koordlet.api.encoding.wire import encode

FORMATS = ("json", "yaml")


def formatted(value: object, output: str) -> str:
    """`value` in one of FORMATS, with the keys of the API."""
    text = encode(value).decode()
    return text if output == "json" else yaml.safe_dump(json.loads(text), sort_keys=False).rstrip("\n")

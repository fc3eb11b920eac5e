"""Data of a page as JSON or YAML. Pure."""

from __future__ import annotations

import json

import yaml

from control.ctl.terminal import CONTROLS
from koordlet.api.encoding.wire import encode

FORMATS = ("json", "yaml")
ESCAPED = {code: f"\\u{code:04x}" for code in CONTROLS if code >= 0x7F}
"""Characters that JSON does not have to escape and a terminal would execute."""


def formatted(value: object, output: str) -> str:
    """`value` in one of FORMATS, with the keys of the API."""
    text = encode(value).decode().translate(ESCAPED)
    return text if output == "json" else yaml.safe_dump(json.loads(text), sort_keys=False).rstrip("\n")

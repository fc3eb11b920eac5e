"""Keys of the data of ConfigMaps and Secrets."""

from __future__ import annotations

import re

MAX_KEY_CHARACTERS = 253
_KEY = re.compile(r"[-._a-zA-Z0-9]+")


def config_key_problem(key: str) -> str:
    """Why this cannot be a key; "" when it can."""
    if len(key) > MAX_KEY_CHARACTERS:
        return f"must be no more than {MAX_KEY_CHARACTERS} characters"
    if _KEY.fullmatch(key) and key not in (".", ".."):
        return ""
    return (
        "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  "
        "or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
    )

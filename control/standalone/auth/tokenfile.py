"""Static bearer tokens from a file in Kubernetes' format: one `token,user,uid[,"group1,group2"]` per line."""

from __future__ import annotations

import csv
import hmac
import io
from collections.abc import Iterable
from pathlib import Path

from control.standalone.policyinterfaces import ApiUser


class TokenFileError(ValueError):
    """The file is invalid; the message names file and line, never a token."""


class StaticTokens:
    """Static tokens. The comparison takes constant time, so that response times reveal nothing about them."""

    def __init__(self, users: Iterable[tuple[str, ApiUser]] = ()) -> None:
        self._users = [(token.encode(), user) for token, user in users]

    @classmethod
    def read(cls, path: Path) -> StaticTokens:
        """Raises TokenFileError."""
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise TokenFileError(f"{path}: {error}") from error
        return cls(parse(text, str(path)))

    def add(self, token: str, user: ApiUser) -> None:
        self._users.append((token.encode(), user))

    def find(self, token: str) -> ApiUser | None:
        candidate = token.encode(errors="surrogateescape")
        matching_user = None
        for known, user in self._users:
            if hmac.compare_digest(known, candidate):
                matching_user = user
        return matching_user


def parse(text: str, where: str = "tokens") -> list[tuple[str, ApiUser]]:
    """(token, user) of each line; raises TokenFileError, which names the line."""
    out = []
    for number, row in enumerate(csv.reader(io.StringIO(text)), start=1):
        if not row or row[0].startswith("#"):
            continue
        if len(row) < 3 or not row[0] or not row[1]:
            raise TokenFileError(f'{where}:{number}: expected token,user,uid[,"group1,group2"]')
        groups = tuple(group.strip() for group in row[3].split(",") if group.strip()) if len(row) > 3 else ()
        out.append((row[0].strip(), ApiUser(row[1].strip(), groups, row[2].strip())))
    return out

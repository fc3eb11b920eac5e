"""Static bearer tokens from a file of Kubernetes' own format: `token,user,uid[,"group1,group2"]` a line."""

from __future__ import annotations

import csv
import hmac
import io
from collections.abc import Iterable
from pathlib import Path

from control.standalone.policyinterfaces import RequestUser


class TokenFileError(ValueError):
    """The file can't be used; the message names file and line, never a token."""


class StaticTokens:
    """Tokens known in advance. Compared in constant time, so that answering tells nothing about them."""

    def __init__(self, users: Iterable[tuple[str, RequestUser]] = ()) -> None:
        self._users = [(token.encode(), user) for token, user in users]

    @classmethod
    def read(cls, path: Path) -> StaticTokens:
        """Raises TokenFileError."""
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise TokenFileError(f"{path}: {error}") from error
        return cls(parse(text, str(path)))

    def add(self, token: str, user: RequestUser) -> None:
        self._users.append((token.encode(), user))

    def find(self, token: str) -> RequestUser | None:
        found = None
        for known, user in self._users:
            if hmac.compare_digest(known, token.encode()):
                found = user
        return found


def parse(text: str, where: str = "tokens") -> list[tuple[str, RequestUser]]:
    """The users of a token file; raises TokenFileError naming the line."""
    out = []
    for number, row in enumerate(csv.reader(io.StringIO(text)), start=1):
        if not row or row[0].startswith("#"):
            continue
        if len(row) < 3 or not row[0] or not row[1]:
            raise TokenFileError(f'{where}:{number}: expected token,user,uid[,"group1,group2"]')
        groups = tuple(group.strip() for group in row[3].split(",") if group.strip()) if len(row) > 3 else ()
        out.append((row[0].strip(), RequestUser(row[1].strip(), groups, row[2].strip())))
    return out

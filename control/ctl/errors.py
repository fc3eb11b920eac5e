"""What koordctl tells a user instead of a traceback."""

from __future__ import annotations


class CtlError(Exception):
    """Something the user can act on: `message` says what is wrong, `hint` what to do next."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message, self.hint = message, hint

    def __str__(self) -> str:
        return f"{self.message}\n  {self.hint}" if self.hint else self.message

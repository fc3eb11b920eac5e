"""Errors that koordctl prints without a traceback."""

from __future__ import annotations


class CtlError(Exception):
    """An error that the user can act on: `message` is the problem, `hint` the next step."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  {self.hint}" if self.hint else self.message

"""docs/security.md agrees with the programs, and the tests that it names exist."""

from __future__ import annotations

from scripts import securitytables


def test_the_tables_are_current() -> None:
    text = securitytables.PAGE.read_text(encoding="utf-8")
    assert securitytables.page(text) == text, "run `make security-tables`"

"""docs/security.md agrees with the programs, and the tests that it names exist."""

from __future__ import annotations

import re

from scripts import securitytables

NAMED_TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def test_the_tables_are_current() -> None:
    text = securitytables.PAGE.read_text(encoding="utf-8")
    assert securitytables.page(text) == text, "run `make security-tables`"


def test_the_named_tests_exist() -> None:
    text = securitytables.PAGE.read_text(encoding="utf-8")
    named = NAMED_TEST.findall(text)
    assert len(named) > 20 and len(named) == text.count("::"), "every reference has the form path::name"
    for path, name in named:
        source = (securitytables.ROOT / path).read_text(encoding="utf-8")
        assert re.search(rf"^(async )?def {name}\(", source, re.MULTILINE), f"{path} has no {name}"

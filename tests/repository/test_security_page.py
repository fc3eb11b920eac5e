"""docs/security.md agrees with the programs, and the tests that it names exist."""

from __future__ import annotations

import importlib.util
import re

from control.ctl.manifests.optionalrights import ROLE_NAMES
from scripts import rightsusers, securitytables

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


def test_every_finding_names_its_tests() -> None:
    text = securitytables.PAGE.read_text(encoding="utf-8").partition("## Findings of reviews")[2]
    rows = re.findall(r"^\| ([CHMR]\d+\w?) \| [^|]+ \| (.+) \|$", text, re.MULTILINE)
    listed = [*("C1", "C2"), *(f"C3{part}" for part in "abcdef"), "C4", "C5"]
    listed += [f"{kind}{number}" for kind, last in (("H", 6), ("M", 6), ("R", 20)) for number in range(1, last + 1)]
    assert [finding for finding, _ in rows] == listed
    assert all(NAMED_TEST.findall(tests) for _, tests in rows)


def test_the_tables_have_every_role_of_deploy() -> None:
    in_tables = {component for component, _, _ in securitytables.ROLES} | securitytables.GRANTED.keys()
    in_tables |= set(ROLE_NAMES)
    roles = {role["metadata"]["name"] for _, role in securitytables.roles_of_deploy()}
    assert roles == in_tables


def test_rights_are_used_by_modules_of_their_component() -> None:
    for component, purposes in rightsusers.USERS.items():
        known = [each.text for name, _, of in securitytables.ROLES if name == component for each in of]
        for begin, modules in purposes.items():
            assert any(text.startswith(begin) for text in known), f"{component} has no purpose {begin}"
            for module in modules:
                assert importlib.util.find_spec(module) is not None, module
                assert module.startswith(rightsusers.PACKAGES[component]), f"{component}: {module}"

"""A contract type of import-linter for .importlinter: a table of packages and what each may import directly."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import grimp
from importlinter import Contract, ContractCheck, fields, output


class AllowListContract(Contract):
    """Every module is in one row of `table`, and imports only its own package and the packages named in that row.

    A row is `package: allowed allowed ...`; the longest matching package decides. `roots` names the packages that the
    table has to cover completely.
    """

    type_name = "allow_list"

    roots = fields.ListField(subfield=fields.StringField())
    table = fields.ListField(subfield=fields.StringField())

    def check(self, graph: grimp.ImportGraph, verbose: bool) -> ContractCheck:
        # import-linter replaces the fields of an instance by their parsed values.
        table, roots = cast(list[str], self.table), cast(list[str], self.roots)
        violations = sorted(_violations(graph, dict(_rows(table)), tuple(roots)))
        return ContractCheck(kept=not violations, metadata={"violations": violations})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for violation in check.metadata["violations"]:
            output.print_error(violation)


def _rows(lines: list[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    for line in lines:
        package, _, allowed = line.partition(":")
        yield package.strip(), (package.strip(), *allowed.split())


def _violations(graph: grimp.ImportGraph, rows: dict[str, tuple[str, ...]], roots: tuple[str, ...]) -> Iterator[str]:
    for module in graph.modules:
        if not _within(module, roots):
            continue
        package = max((row for row in rows if _within(module, (row,))), key=len, default=None)
        if package is None:
            # A package that only holds rows of the table needs no row itself.
            if not any(_within(row, (module,)) for row in rows):
                yield f"{module} is in no row of the table"
            continue
        for imported in graph.find_modules_directly_imported_by(module):
            if not _within(imported, rows[package]):
                yield f"{module} imports {imported}, which {package} may not"


def _within(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)

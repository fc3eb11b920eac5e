"""/proc/kallsyms with visible and with hidden addresses."""

from pathlib import Path
from typing import Any

import pytest

from koordlet.system.proc.kallsyms import function_ranges

SHOWN = """\
ffffffff81000000 T _text
ffffffff810010a0 t __pfx_do_swap_page
ffffffff810010b0 T do_swap_page
ffffffff810010b0 T an_alias
ffffffff81002000 t next_one
ffffffff81003000 t do_swap_page\t[module]
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (SHOWN, {"do_swap_page": (0xFFFFFFFF810010B0, 0xFFFFFFFF81002000)}),
        ("0000000000000000 T do_swap_page\n0000000000000000 T next\n", {}),
        ("", {}),
    ],
    ids=["shown", "hidden", "empty"],
)
def test_a_function_ends_where_the_next_symbol_begins(tmp_path: Path, text: str, expected: dict[str, Any]) -> None:
    (tmp_path / "kallsyms").write_text(text)
    assert function_ranges(tmp_path, ["do_swap_page", "not_there"]) == expected


def test_without_the_file_no_address_is_known(tmp_path: Path) -> None:
    assert function_ranges(tmp_path, ["do_swap_page"]) == {}

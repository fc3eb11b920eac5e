"""docs/metrics.md says what the catalogue says."""

from pathlib import Path

from koordlet.metrics.catalogue import FAMILIES

PAGE = Path(__file__).parents[3] / "docs/metrics.md"


def test_the_page_and_the_catalogue_agree():
    rows = {
        cells[1].strip("`"): cells[2:5]
        for line in PAGE.read_text().splitlines()
        if line.startswith("| `koordlet_") and (cells := [cell.strip() for cell in line.split("|")])
    }
    expected = {f.full_name: [f.type, ", ".join(f.all_labels) or "–", f.unit or "–"] for f in FAMILIES}
    assert rows == expected

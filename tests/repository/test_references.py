"""References of the repository to itself resolve: sections of the specification, names in docstrings, links."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts import configreference, foldermap
from tests.repository.sources import (
    PRODUCT,
    ROOT,
    WORD,
    dotted,
    facts,
    known_words,
    product_modules,
    text,
    tracked,
)

SPECIFICATION = ROOT / "docs" / "spec"
HEADING = re.compile(r"^(#{2,5}) +§?([A-Z]?\d+(?:\.\d+)*[a-z]?)\b", re.MULTILINE)
ITEM = re.compile(r"^(?:\| *(\d+) *\||(\d+)[.)] )", re.MULTILINE)
START = re.compile(r"\bspec 0\d\b")
CHAPTER_OR_SECTION = re.compile(r"\b(0\d)(?= §)|§([A-Z]?\d+(?:\.\d+)*)|\bspec (0\d)\b|(\n *\n|\bRFC\b)")
DOCUMENT = re.compile(r"\]\(([^)\s#]+)(#[^)\s]*)?\)")
EXTERNAL = frozenset(
    {
        "L3CODE",
        "NetworkReady",
        "SSLSocket",
        "bpf_get_current_cgroup_id",
        "cbm_validate",
        "getpeercert",
        "grpcurl",
        "jsonField",
        "omitempty",
        "patchMergeKey",
        "savez",
        "sched_runtime",
        "schedutil",
        "statvfs",
    }
)
"""Names of other programs that no code here mentions."""
QUOTED = re.compile(r"(?<!`)`{1,2}([A-Za-z_][\w.]*)(?:\(\))?`{1,2}(?!`)")


def sections(chapter: Path) -> frozenset[str]:
    """Numbers of headings, and `N.M` for the numbered items directly below heading `N`."""
    content = chapter.read_text(encoding="utf-8")
    headings = list(HEADING.finditer(content))
    numbers = {heading[2] for heading in headings}
    for heading, following in zip(headings, [*headings[1:], None], strict=True):
        body = content[heading.end() : following.start() if following else len(content)]
        numbers.update(f"{heading[2]}.{item[1] or item[2]}" for item in ITEM.finditer(body))
    return frozenset(numbers)


@pytest.fixture(scope="module")
def chapters() -> dict[str, frozenset[str]]:
    return {path.name[:2]: sections(path) for path in sorted(SPECIFICATION.glob("0*.md"))}


def referenced_sections(content: str) -> list[tuple[str, str]]:
    """(chapter, section) of each reference: `spec 05 §3.5, §5.7; 06 §6` names three."""
    references = []
    for start in START.finditer(content):
        chapter = ""
        position = start.start()
        while match := CHAPTER_OR_SECTION.match(content, position) or CHAPTER_OR_SECTION.search(
            content, position, position + 40
        ):
            if match[4] is not None:
                break
            chapter = match[1] or match[3] or chapter
            if match[2]:
                references.append((chapter, match[2]))
            position = match.end()
    return references


def test_every_reference_to_the_specification_names_a_section(chapters: dict[str, frozenset[str]]) -> None:
    broken = [
        f"{path}: spec {chapter} §{section}"
        for path in tracked()
        if path.suffix in (".py", ".c", ".h", ".md", ".sh", ".yaml")
        and SPECIFICATION.relative_to(ROOT) not in path.parents
        for chapter, section in referenced_sections(text(path))
        if section not in chapters.get(chapter, ())
    ]
    assert not broken


@pytest.mark.parametrize(
    ("content", "references"),
    [
        ("(spec 05 §3.5)", [("05", "3.5")]),
        ("(spec 05 §3.5, §5.7; 06 §6)", [("05", "3.5"), ("05", "5.7"), ("06", "6")]),
        ("spec 03 §8.14. Elsewhere RFC §4.2", [("03", "8.14")]),
    ],
)
def test_references_are_read_in_lists(content: str, references: list[tuple[str, str]]) -> None:
    assert referenced_sections(content) == references


def test_modules_named_in_text_exist() -> None:
    """Every dotted name that starts with a package of the product is a module, or an attribute of one."""
    modules = {dotted(path) for path in product_modules()} | {"koordlet.api.hooks.api_pb2"}
    packages = {module.rpartition(".")[0] for module in modules}
    name = re.compile(rf"`(?:({'|'.join(PRODUCT)})\.[\w.]+)`")
    broken = []
    for path in tracked():
        if path.suffix not in (".py", ".md", ".c", ".h") or path.name == "CHANGELOG.md":
            continue
        for match in name.finditer(text(path)):
            quoted = match[0].strip("`").rstrip(".")
            owner, _, attribute = quoted.rpartition(".")
            if quoted in modules or quoted in packages or "_pb2" in quoted:
                continue
            if not ((owner in modules or owner.rpartition(".")[0] in modules) and attribute in known_words()):
                broken.append(f"{path}: {quoted}")
    assert not broken


def test_names_in_docstrings_exist() -> None:
    """Every name in backticks occurs in the code: a docstring does not outlive what it names."""
    words = (
        known_words() | EXTERNAL | set(WORD.findall("".join(path.read_text() for path in SPECIFICATION.glob("*.md"))))
    )
    broken = [
        f"{path}:{line}: `{quoted}`"
        for path in product_modules()
        for line, docstring in facts(path).docstrings
        for quoted in QUOTED.findall(docstring)
        for word in quoted.split(".")
        if word and word not in words
    ]
    assert not broken


def test_links_between_documents_resolve() -> None:
    broken = [
        f"{path}: {target}"
        for path in tracked()
        if path.suffix == ".md" and SPECIFICATION.relative_to(ROOT) not in path.parents
        for target, _ in DOCUMENT.findall(text(path))
        if "://" not in target and not (ROOT / path.parent / target).exists()
    ]
    assert not broken


def test_the_map_of_wide_folders_is_current() -> None:
    assert foldermap.PAGE.read_text(encoding="utf-8") == foldermap.page(), "run `make layout`"


def test_files_named_in_text_exist() -> None:
    path_like = re.compile(
        r"(?<![\w/.-])(?:koordlet|control|runtimeproxy|devicedaemon|bpf|tests|scripts|docs|deploy)/[\w./-]*\w"
    )
    generated = re.compile(r"_pb2|objects/|bpf/bpf_|\.o$|vmlinux|/v1|/NAME")
    broken = [
        f"{path}: {name}"
        for path in tracked()
        if path.suffix in (".py", ".c", ".h", ".md", ".sh", ".toml") and path.parts[:2] != ("docs", "spec")
        for name in path_like.findall(text(path))
        if Path(name).suffix in (".py", ".c", ".h", ".md", ".sh", ".yaml", ".json", ".txt", ".svg")
        and not generated.search(name)
        and not (ROOT / name).exists()
    ]
    assert not broken


def test_every_label_and_annotation_has_a_text() -> None:
    """docs/configuration.md lists them; `Not used.` is for keys of Koordinator that no component reads or writes."""
    path = Path("koordlet/api/names.py")
    texts = configreference.docstrings(ROOT / path)
    keys = re.findall(r"^((?:LABEL|ANNOTATION)_\w+): Final", text(path), re.MULTILINE)
    form = re.compile(r"Not used\.|(Read|Written) by [\w, ]+: .+")
    assert [key for key in keys if not form.fullmatch(texts.get(key, ""))] == [], (
        'write """Read by scheduler: ...""" below the name, then run `make configuration`'
    )
    kept_from_users = {path, Path("control/manager/trust/keys.py"), Path("control/scheduler/state/pods.py")}
    users = [
        module
        for module in product_modules()
        if module not in kept_from_users and Path("koordlet/api/annotations") not in module.parents
    ]
    unused = {key for key in keys if texts[key] == "Not used."}
    assert {key for module in users for key in unused & set(WORD.findall(text(module)))} == set()

"""Writes the Helm chart from the manifests of deploy/, so that both install the same objects.

    python -m scripts.install.chart --out build/chart

`chart/` holds what is written by hand: Chart.yaml, values.yaml and NOTES.txt. Templates are the manifests with the
expressions of `SETTINGS`, and conditions of `CONDITIONS` around whole folders.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from koordlet.version import VERSION
from scripts.install.chartsettings import CONDITIONS, KEEP, KEPT, SETTINGS, Choice, Optional, Setting

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (
    "crds",
    "manager",
    "manager-rights",
    "scheduler",
    "scheduler-rights",
    "descheduler",
    "descheduler-rights",
    "koordlet",
    "koordlet-rights",
    "device-daemon",
    "monitoring",
)
Object = dict[str, Any]


@dataclass
class Expressions:
    """Placeholders in YAML, and the template expressions that replace them."""

    texts: list[str] = field(default_factory=list)
    optional: set[int] = field(default_factory=set)

    def add(self, text: str, *, optional: bool = False) -> str:
        """The placeholder of an expression; an optional one is a whole field that is left out when it is empty."""
        self.texts.append(text)
        number = len(self.texts) - 1
        if optional:
            self.optional.add(number)
        return f"HELM-{number}-MLEH"

    def expand(self, text: str) -> str:
        """The YAML with expressions. Braces of the manifests themselves are kept from Helm."""
        escaped = re.sub(r"\{\{|\}\}", lambda match: '{{ "' + match.group() + '" }}', text)
        lines = (self._line(line) for line in escaped.splitlines())
        return "\n".join(lines) + "\n"

    def _line(self, line: str) -> str:
        match = re.fullmatch(r"( *)(\S+): '?HELM-(\d+)-MLEH'?", line)
        if match and int(match.group(3)) in self.optional:
            indent, key, number = match.groups()
            start, end = f"{{{{- with {self.texts[int(number)]} }}}}", "{{- end }}"
            return f"{indent}{start}\n{indent}{key}: {{{{ toJson . }}}}\n{indent}{end}"
        return re.sub(r"'?([^' ]*)HELM-(\d+)-MLEH([^' ]*)'?", self._inline, line)

    def _inline(self, match: re.Match[str]) -> str:
        before, number, after = match.groups()
        return f"{before}{{{{ {self.texts[int(number)]} }}}}{after}"


def templates() -> Iterator[tuple[str, str]]:
    """File name -> template."""
    for folder in FOLDERS:
        listed = yaml.safe_load((ROOT / "deploy" / folder / "kustomization.yaml").read_text())["resources"]
        extra = ["config.yaml"] if folder == "manager" else []
        for name in (*listed, *extra):
            documents = yaml.safe_load_all((ROOT / "deploy" / folder / name).read_text())
            expressions = Expressions()
            objects = [_with_settings(document, folder, expressions) for document in documents]
            text = expressions.expand(yaml.safe_dump_all(objects, sort_keys=False, width=10_000))
            condition = CONDITIONS.get(f"{folder}/{name}", CONDITIONS.get(folder))
            if condition:
                text = f"{{{{- if {condition} }}}}\n{text}{{{{- end }}}}\n"
            yield f"{folder}-{name}", text


def _with_settings(document: Object, folder: str, expressions: Expressions) -> Object:
    if folder == "crds":
        annotations = document["metadata"].get("annotations")
        if annotations is None:
            document["metadata"]["annotations"] = expressions.add(f"(ternary (dict {KEPT}) dict {KEEP})", optional=True)
        else:
            key, value = KEPT.replace('"', "").split()
            annotations[key] = expressions.add(f'(ternary "{value}" "" {KEEP})', optional=True)
    for setting in SETTINGS:
        if (setting.kind, setting.name) == (document["kind"], document["metadata"]["name"]):
            _set(document, setting, expressions)
    return document


def _set(document: Object, setting: Setting, expressions: Expressions) -> None:
    target: Any = document
    for step in setting.path[:-1]:
        target = _item(target, step)
    last = setting.path[-1]
    if isinstance(setting, Optional):
        target[last] = expressions.add(setting.expression, optional=True)
        return
    index = last if isinstance(target, dict) else _index(target, str(last))
    old = target[index]
    placeholder = expressions.add(setting.template if isinstance(setting, Choice) else setting.expression)
    target[index] = f"{setting.prefix}{placeholder}" if setting.prefix else placeholder
    if setting.prefix and not str(old).startswith(setting.prefix):
        raise ValueError(f"{setting.kind} {setting.name}: {old!r} does not start with {setting.prefix!r}")


def _item(target: Any, step: str) -> Any:
    return target[step] if isinstance(target, dict) else target[_index(target, step)]


def _index(items: list[Any], step: str) -> int:
    """Position of the only element with this `name` (or text that starts so)."""
    matches: list[Callable[[Any], bool]] = [
        lambda item: isinstance(item, dict) and item.get("name") == step,
        lambda item: isinstance(item, str) and item.startswith(step),
    ]
    (index,) = (number for number, item in enumerate(items) if any(match(item) for match in matches))
    return index


def write(out: Path) -> None:
    """Write the whole chart; an existing folder is replaced."""
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(ROOT / "chart", out)
    chart = (out / "Chart.yaml").read_text()
    (out / "Chart.yaml").write_text(f"{chart}version: {VERSION}\nappVersion: {VERSION}\n")
    values = (out / "values.yaml").read_text()
    (out / "values.yaml").write_text(values.replace("TAG", VERSION))
    for name, text in templates():
        (out / "templates" / name).write_text(text)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.install.chart")
    parser.add_argument("--out", type=Path, required=True)
    write(parser.parse_args(argv).out)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

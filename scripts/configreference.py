"""Writes docs/configuration.md from the structs, feature gates, flags and names that the programs use.

Use: `make configuration`; a test holds the page current.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from inspect import getdoc
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from control.descheduler.process.options import DeschedulerOptions
from control.manager.options import ManagerOptions
from control.scheduler.process.options import SchedulerOptions
from devicedaemon.options import DeviceDaemonOptions
from koordlet.api import gates, names
from koordlet.api.encoding.schemas import root_schema
from koordlet.api.encoding.wire import to_builtins
from koordlet.api.sloconfig import (
    colocation,
    defaults,
    documents,
    interference,
    normalization,
    overcommit,
    profile,
)
from koordlet.api.sloconfig.bounds import Bound, field_at
from koordlet.api.sloconfig.node import HostApplicationSpec
from koordlet.api.sloconfig.resourceqos import NetworkQOS
from koordlet.api.sloconfig.webhook import RULES
from koordlet.app.flags import usage
from koordlet.options import KoordletOptions
from runtimeproxy.options import ProxyOptions
from scripts.securitytables import table

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "configuration.md"
HEAD = """# Configuration reference

Written by `make configuration` from the programs' own data; a test compares it with them. Metrics are in
[metrics.md](metrics.md).

## ConfigMap `slo-controller-config`

Each key holds a JSON document. koord-manager merges it over the defaults and applies the result to every node
([manager](manager.md)). `-` means that there is no default. Entries for groups of nodes have `name`, `nodeSelector` and
the fields of the strategy; the first entry whose selector matches a node applies. `[]` is an element of a list, `*` a
key of a map.
"""
GATES = """## Feature gates

`--feature-gates=A=true,B=false`; `AllAlpha` and `AllBeta` set all gates of a stage. koordlet's gates of CPU suppression
and of evictions also need `enable` in `resource-threshold-config`. "No effect": it is accepted and changes nothing.
"""
FLAGS = """## Flags

An empty default is false, 0 or an empty text. Deprecated flags are only in `--help`.
"""
KEYS = """## Labels and annotations

By object. Which users may set a key of a pod is in [security.md](security.md#keys-of-pods).
"""
UNUSED = """### Koordinator's keys that are not used

No component reads or writes these. Some are protected from users, because other programs act on them.

"""
CLASSES = ("lsrClass", "lsClass", "beClass", "systemClass", "cgroupRoot")
PROGRAMS: dict[str, type] = {
    "koordlet": KoordletOptions,
    "koord-manager": ManagerOptions,
    "koord-scheduler": SchedulerOptions,
    "koord-descheduler": DeschedulerOptions,
    "koord-runtime-proxy": ProxyOptions,
    "koord-device-daemon": DeviceDaemonOptions,
}
_FLAG = re.compile(r"^  (--\S+)(.*)\n {8}(.*?)(?: \(default ([^()]*)\))?(?: \[deprecated: (.*)\])?$", re.MULTILINE)
_EFFECT = re.compile(r"^(\w+): (.+)$", re.MULTILINE)
_KEY_TEXT = re.compile(r"((?:Read|Written) by) ([^:]+): (.+)")
_KEY_GROUP = re.compile(r"^# --- (.+?)(?: \(§[^)]*\))? -+\n((?:(?!# ---).*\n)*)", re.MULTILINE)
_KEY_NAME = re.compile(r"^((LABEL|ANNOTATION)_\w+): Final", re.MULTILINE)


class StrategyTable(NamedTuple):
    """The table of one strategy: key, form of the document, defaults, bounds beside those of `RULES`."""

    key: str
    place: str
    default: msgspec.Struct
    bounds: tuple[Bound, ...] = ()


_INLINE, _LISTED, _SPEC = "the fields and `nodeConfigs[]`", "`clusterStrategy` and `nodeStrategies[]`", "NodeSLO.spec."
STRATEGIES = (
    StrategyTable(documents.COLOCATION_KEY, f"{_INLINE}.", colocation.DEFAULT),
    StrategyTable(
        f"{documents.COLOCATION_KEY}: extensions.{overcommit.EXTENSION}",
        "below `extensions`. Not in Koordinator.",
        overcommit.DEFAULT,
        overcommit.BOUNDS,
    ),
    StrategyTable(documents.THRESHOLD_KEY, f"{_LISTED}. In {_SPEC}resourceUsedThresholdWithBE.", defaults.THRESHOLD),
    StrategyTable(documents.QOS_KEY, f"{_LISTED}. In {_SPEC}resourceQOSStrategy.", defaults.KOORDLET_QOS),
    StrategyTable(documents.CPU_BURST_KEY, f"{_LISTED}. In {_SPEC}cpuBurstStrategy.", defaults.CPU_BURST),
    StrategyTable(documents.SYSTEM_KEY, f"{_LISTED}. In {_SPEC}systemStrategy.", defaults.SYSTEM),
    StrategyTable(
        documents.HOST_APPLICATION_KEY,
        f"`applications[]` of these fields, and `nodeConfigs[]` with `applications[]`. In {_SPEC}hostApplications.",
        HostApplicationSpec(),
    ),
    StrategyTable(documents.NORMALIZATION_KEY, f"{_INLINE}.", normalization.DEFAULT_NORMALIZATION),
    StrategyTable(documents.AMPLIFICATION_KEY, f"{_INLINE}.", normalization.DEFAULT_AMPLIFICATION),
    StrategyTable(
        interference.CONFIG_KEY,
        f"{_LISTED}. In {_SPEC}extensions.Object.{interference.EXTENSION_KEY}. Not in Koordinator.",
        interference.DEFAULT,
        interference.BOUNDS,
    ),
    StrategyTable(
        profile.PROFILE_KEY,
        "the field, for all nodes. The other keys are merged over the profile's strategies. Not in Koordinator.",
        profile.DEFAULT,
    ),
)


class SchemaField(NamedTuple):
    """A field without fields of its own: its wire path from the strategy, and its schema."""

    path: str
    schema: Mapping[str, Any]


def fields(schema: Mapping[str, Any], prefix: str = "") -> Iterator[SchemaField]:
    """All fields of a schema. The path of a list's element has `[]`, of a map's value `.*`."""
    for name, field in schema.get("properties", {}).items():
        path = f"{prefix}{name}"
        if not prefix and name in ("apiVersion", "kind", "metadata"):
            continue  # `root_schema` adds them for objects
        inner, suffix = field, "."
        if "items" in field:
            inner, suffix = field["items"], "[]."
        elif "additionalProperties" in field:
            inner, suffix = field["additionalProperties"], ".*."
        if inner.get("properties"):
            yield from fields(inner, f"{path}{suffix}")
        else:
            yield SchemaField(path, field)


def _strategy(strategy: StrategyTable) -> str:
    schema = root_schema(type(strategy.default))
    rule = RULES.get(strategy.key)
    ranges = {bound.path: bound for bound in (*strategy.bounds, *(rule.bounds if rule else ()))}
    rows: dict[str, list[str]] = {}
    for path, field in fields(schema):
        head, _, rest = path.partition(".")
        shown = f"CLASS.{rest}" if head in CLASSES else path
        default = _class_default(strategy.default, rest) if head in CLASSES else _value(strategy.default, path)
        bound = ranges.get(path) or Bound(path, field.get("minimum"), field.get("maximum"))
        default = _json(field["default"]) if "default" in field else default
        rows.setdefault(shown, [f"`{shown}`", _type(field), default or "-", _range(bound), field["description"]])
    text = f"### `{strategy.key}`\n\n{schema['description']} Document: {strategy.place}\n\n"
    if strategy.key == documents.QOS_KEY:
        text += "CLASS is one of:\n\n"
        text += "".join(f"* `{name}`: {schema['properties'][name]['description']}\n" for name in CLASSES) + "\n"
        text += f"`networkQOS`: {getdoc(NetworkQOS)} cpuQOS, memoryQOS and resctrlQOS of LSR, LS and BE have\n"
        text += "the values that Kubernetes would set unless their `enable` is true.\n\n"
    return text + table(("field", "type", "default", "range", "effect"), rows.values())


def _value(default: msgspec.Struct, path: str) -> str:
    """The default at a wire path; empty for none."""
    value = None if "[]" in path or ".*" in path else field_at(default, path)
    return "" if value in (None, "", [], {}) else _json(value)


def _class_default(default: msgspec.Struct, path: str) -> str:
    """The defaults of all classes that have one."""
    classes: dict[str, list[str]] = {}
    for name in CLASSES:
        value = _value(default, f"{name}.{path}")
        if value:
            classes.setdefault(value, []).append(name.removesuffix("Class"))
    if len(classes) < 2:
        return next(iter(classes), "")
    return "; ".join(f"{', '.join(of)}: {value}" for value, of in classes.items())


def _json(value: object) -> str:
    return f"`{json.dumps(to_builtins(value))}`"


def _type(field: Mapping[str, Any]) -> str:
    if field.get("x-kubernetes-int-or-string"):
        return "quantity" if "pattern" in field else "integer or string"
    if "items" in field:
        return f"list of {_type(field['items'])}"
    if "additionalProperties" in field:
        return f"map to {_type(field['additionalProperties'])}"
    return str(field["type"])


def _range(bound: Bound) -> str:
    if bound.minimum is not None and bound.maximum is not None:
        return f"{bound.minimum:g} to {bound.maximum:g}"
    low = f">{bound.above:g}" if bound.above is not None else "" if bound.minimum is None else f"≥{bound.minimum:g}"
    high = "" if bound.maximum is None else f"≤{bound.maximum:g}"
    return ", ".join(filter(None, (low, high)))


def docstrings(path: Path) -> dict[str, str]:
    """Name -> the text below its assignment, of a module's constants."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    texts = {}
    for assignment, below in pairwise(body):
        if isinstance(assignment, ast.AnnAssign) and isinstance(below, ast.Expr):
            texts[ast.unparse(assignment.target)] = ast.literal_eval(below.value)
    return texts


def _gates(component: str, known: Mapping[str, gates.Gate], *constants: str) -> str:
    """Raises KeyError for a gate whose effect `koordlet.api.gates` does not describe."""
    texts = docstrings(ROOT / "koordlet" / "api" / "gates.py")
    effects = {match[1]: match[2] for name in constants for match in _EFFECT.finditer(texts[name])}
    rows = (
        (f"`{name}`", "on" if gate.default else "off", gate.stage, effects[name])
        for name, gate in sorted(known.items())
    )
    return f"### {component}\n\n" + table(("gate", "default", "stage", "effect"), rows)


def _flags(program: str, options: type) -> str:
    rows = [
        (f"`{name}`", kind.strip() or "bool", f"`{default}`" if default else "", effect)
        for name, kind, effect, default, old in _FLAG.findall(usage(options, prog=program))
        if not old and name not in ("--help", "--version")
    ]
    return f"### {program}\n\n" + table(("flag", "type", "default", "effect"), rows)


def _keys() -> Iterator[str]:
    """A table for each group of keys in `koordlet.api.names`. Raises KeyError for a key without a text."""
    path = ROOT / "koordlet" / "api" / "names.py"
    texts = docstrings(path)
    unused = []
    for title, body in _KEY_GROUP.findall(path.read_text(encoding="utf-8")):
        rows = []
        for name, kind in _KEY_NAME.findall(body):
            known = _KEY_TEXT.fullmatch(texts[name])
            if known:
                rows.append((f"`{getattr(names, name)}`", kind.lower(), f"{known[1].lower()} {known[2]}", known[3]))
            else:
                unused.append(f"`{getattr(names, name)}`")
        if rows:
            yield f"### {title[0].upper()}{title[1:]}\n\n" + table(("key", "kind", "by", "value and effect"), rows)
    yield UNUSED + ", ".join(unused) + "\n"


def page() -> str:
    descheduler_gates = {name: gates.DESCHEDULER[name] for name in gates.DESCHEDULER_EFFECTIVE}
    koordlet_gates = _gates("koordlet", gates.KOORDLET, "KOORDLET", "KOORDLET_HOOKS")
    parts = [
        HEAD,
        *map(_strategy, STRATEGIES),
        GATES,
        koordlet_gates,
        _gates("koord-manager", gates.MANAGER, "MANAGER"),
        _gates("koord-descheduler", descheduler_gates, "DESCHEDULER"),
        _gates("koord-scheduler", gates.SCHEDULER, "SCHEDULER"),
        FLAGS,
        *(_flags(program, options) for program, options in PROGRAMS.items()),
        KEYS,
        *_keys(),
    ]
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

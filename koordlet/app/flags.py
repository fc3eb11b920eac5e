"""Command-line flags with Go's syntax, declared as a dataclass.

    @dataclass
    class KoordletOptions:
        addr: str = flag(":9316", "address of the metrics server")
        sync_interval: Duration = flag("1s", "…", minimum=1)                    # --sync-interval
        feature_gates: dict[str, bool] = flag({}, "A=true,B=false")

    options = parse(KoordletOptions, sys.argv[1:], prog="koordlet")

A flag's name is the field's name with `-` for `_`. Accepted spellings: `-name v`, `--name v`, `--name=v`; a bool is
`--name` or `--name=false` and never consumes the next argument; `_` and `-` are equivalent in names; `--` ends the
flags. Values are typed by the field's annotation: str, int (Go literals, also 0x…), float, bool, `Duration` (Go syntax,
in seconds), `list[str]` (commas, repeats append) and `dict[str, str|bool|int]` (`A=1,B=2`, repeats merge). A flag
marked `config_file=True` names a YAML mapping of flag names to values; the command line has precedence. Unknown flags
and keys are errors that suggest the nearest known name. `parse` ends the process (2 for an invalid command line, 0 for
--help and --version); `read` raises.
"""

from __future__ import annotations

import dataclasses
import difflib
import sys
import types
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

from koordlet.api.encoding import times
from koordlet.api.encoding.gosyntax import parse_bool
from koordlet.app.version import version_line

_T = TypeVar("_T")
_MARK = "koordlet.flag"

Duration = Annotated[float, "duration"]
"""Seconds; on the command line a Go duration."""


class FlagError(ValueError):
    """An invalid command line or configuration file; the message names flag and value."""


@dataclasses.dataclass(frozen=True)
class _Spec:
    help: str
    default: Any
    name: str | None = None
    minimum: float | None = None
    choices: tuple[str, ...] | None = None
    deprecated: str | None = None
    config_file: bool = False
    unused: bool = False


@dataclasses.dataclass(frozen=True)
class _Flag:
    """A flag bound to its field, with the parser of its values."""

    field: str
    name: str
    spec: _Spec
    kind: str
    """Type of the value in --help."""
    read: Callable[[str], Any]
    merge: bool
    """Repeats accumulate."""

    @property
    def is_bool(self) -> bool:
        return self.kind == "bool"


def flag(
    default: Any,
    help: str,
    *,
    name: str | None = None,
    minimum: float | None = None,
    choices: Sequence[str] | None = None,
    deprecated: str | None = None,
    config_file: bool = False,
    unused: bool = False,
) -> Any:
    """Declare a flag as the default of a dataclass field.

    `default` is a value of the field's type, or the text that a user would type. `name` only if it differs from the
    field's name. `minimum` bounds numbers and durations (seconds). `deprecated` is shown in --help; the flag is still
    read, and the function `deprecated` returns it. `unused`: the flag is accepted without effect, see the function.
    """
    known = tuple(choices) if choices else None
    spec = _Spec(help, default, name, minimum, known, deprecated, config_file, unused=unused)
    return dataclasses.field(default_factory=lambda: None, metadata={_MARK: spec})


def parse(options: type[_T], argv: Sequence[str], *, prog: str, description: str = "") -> _T:
    """Read `argv` (without the program name) or end the process; see the module's docstring."""
    for word in argv:
        if word == "--":
            break
        if word in ("-h", "-help", "--help"):
            sys.stdout.write(usage(options, prog=prog, description=description))
            raise SystemExit(0)
        if word in ("-version", "--version", "--version=true"):
            sys.stdout.write(version_line(prog) + "\n")
            raise SystemExit(0)
    try:
        return read(options, argv)
    except FlagError as error:
        sys.stderr.write(f"{prog}: {error}\nRun '{prog} --help' for usage.\n")
        raise SystemExit(2) from error


def read(options: type[_T], argv: Sequence[str]) -> _T:
    """Read `argv` into an instance of `options`. Raises FlagError."""
    flags = _flags(options)
    set_values = _read_line(flags, argv)
    values: dict[str, Any] = {f.field: _default(f) for f in flags.values()}
    for f in flags.values():
        path = set_values.get(f.field, values[f.field]) if f.spec.config_file else None
        if path:
            values |= _read_file(flags, Path(path))
    values |= set_values
    for f in flags.values():
        _check(f, values[f.field])
    try:
        return options(**values)
    except FlagError:
        raise
    except ValueError as error:  # a rule over several flags, raised by the dataclass's __post_init__
        raise FlagError(str(error)) from error


def usage(options: type, *, prog: str, description: str = "") -> str:
    """The text of --help: all flags with type, default and help, sorted by name."""
    flags = _flags(options)
    lines = [f"Usage: {prog} [flags]", ""]
    if description:
        lines += [description, ""]
    lines.append("Flags:")
    for name in sorted(flags):
        f = flags[name]
        default = _show(f, _default(f))
        tail = f" (default {default})" if default not in ("", "false", "0", "0s") else ""
        old = f" [deprecated: {f.spec.deprecated}]" if f.spec.deprecated else ""
        lines.append(f"  --{name}{'' if f.is_bool else ' ' + f.kind}\n        {f.spec.help}{tail}{old}")
    lines += ["  --help", "        print this and exit", "  --version", "        print the version and exit"]
    return "\n".join(lines) + "\n"


def deprecated(options: object) -> dict[str, str]:
    """The deprecated flags of parsed options whose value is not the default -> their deprecation text."""
    flags = _flags(type(options))
    return {
        f.name: f.spec.deprecated
        for f in flags.values()
        if f.spec.deprecated and getattr(options, f.field) != _default(f)
    }


def unused(options: object) -> list[str]:
    """The names of flags without effect whose value is not the default."""
    flags = _flags(type(options))
    return [f.name for f in flags.values() if f.spec.unused and getattr(options, f.field) != _default(f)]


def _flags(options: type) -> dict[str, _Flag]:
    if not dataclasses.is_dataclass(options):
        raise TypeError(f"{options.__name__} is not a dataclass")
    hints = typing.get_type_hints(options, include_extras=True)
    flags: dict[str, _Flag] = {}
    for field in dataclasses.fields(options):
        spec: _Spec | None = field.metadata.get(_MARK)
        if spec is None:
            continue
        name = spec.name or _canonical(field.name)
        if name in flags:
            raise TypeError(f"two fields of {options.__name__} declare the flag --{name}")
        kind, reader, merge = _reader(hints[field.name])
        flags[name] = _Flag(field.name, name, spec, kind, reader, merge)
    return flags


def _read_line(flags: dict[str, _Flag], argv: Sequence[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    index = 0
    while index < len(argv):
        word = argv[index]
        if word == "--" and index + 1 == len(argv):
            break
        if word == "--" or word == "-" or not word.startswith("-"):
            raise FlagError(f'unexpected argument "{argv[index + 1] if word == "--" else word}"')
        body, equals, value = word.removeprefix("-").removeprefix("-").partition("=")
        if not body or body.startswith("-"):
            raise FlagError(f'bad flag syntax "{word}"')
        f = _find(flags, body)
        index += 1
        if not equals:
            if f.is_bool:
                value = "true"
            elif index < len(argv):
                value = argv[index]
                index += 1
            else:
                raise FlagError(f"flag needs an argument: --{body}")
        _store(values, f, _convert(f, value))
    return values


def _read_file(flags: dict[str, _Flag], path: Path) -> dict[str, Any]:
    import yaml  # 1 MB that most processes do not need

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FlagError(f"cannot read configuration file {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise FlagError(f"configuration file {path} is not YAML: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise FlagError(f"configuration file {path} must be a mapping of flag names to values")
    values: dict[str, Any] = {}
    for key, raw in content.items():
        try:
            f = _find(flags, _kebab(str(key)))
            for text in _texts(raw):
                _store(values, f, _convert(f, text))
        except FlagError as error:
            raise FlagError(f"configuration file {path}: {error}") from error
    return values


def _texts(raw: object) -> list[str]:
    """A YAML value as the texts that a user would type."""
    if isinstance(raw, list):
        return [text for item in raw for text in _texts(item)]
    if isinstance(raw, dict):
        return [",".join(f"{key}={_texts(value)[0]}" for key, value in raw.items())]
    if isinstance(raw, bool):
        return ["true" if raw else "false"]
    return ["" if raw is None else str(raw)]


def _store(values: dict[str, Any], f: _Flag, value: Any) -> None:
    old = values.get(f.field)
    if f.merge and old is not None:
        value = {**old, **value} if isinstance(value, dict) else [*old, *value]
    values[f.field] = value


def _find(flags: dict[str, _Flag], name: str) -> _Flag:
    f = flags.get(_canonical(name))
    if f is None:
        near = difflib.get_close_matches(_canonical(name), flags, n=1)
        raise FlagError(f"unknown flag: --{name}" + (f", did you mean --{near[0]}?" if near else ""))
    return f


def _convert(f: _Flag, text: str) -> Any:
    try:
        return f.read(text)
    except ValueError as error:
        raise FlagError(f'invalid argument "{text}" for --{f.name}: {error}') from error


def _check(f: _Flag, value: Any) -> None:
    if f.spec.minimum is not None and value < f.spec.minimum:
        least = _duration_text(f.spec.minimum) if f.kind == "duration" else f"{f.spec.minimum:g}"
        raise FlagError(f'invalid argument "{_show(f, value)}" for --{f.name}: must be at least {least}')
    if f.spec.choices and value not in f.spec.choices:
        choices = ", ".join(f.spec.choices)
        raise FlagError(f'invalid argument "{value}" for --{f.name}: must be one of {choices}')


def _default(f: _Flag) -> Any:
    default = f.spec.default
    if isinstance(default, str) and f.kind != "string":
        return f.read(default)
    return default.copy() if isinstance(default, (dict, list)) else default


def _show(f: _Flag, value: Any) -> str:
    if f.kind == "duration":
        return _duration_text(value)
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return ",".join(f"{key}={item}" for key, item in value.items())
    return ",".join(value) if isinstance(value, list) else str(value)


def _reader(hint: Any) -> tuple[str, Callable[[str], Any], bool]:
    """(type in --help, parser of one value, whether repeats accumulate) for a field's annotation."""
    if typing.get_origin(hint) is Annotated:
        if "duration" in hint.__metadata__:
            return "duration", lambda text: times.Duration(text).seconds, False
        hint = hint.__origin__
    if typing.get_origin(hint) in (typing.Union, types.UnionType):  # `str | None`: None unless the flag is set
        hint = next(arg for arg in typing.get_args(hint) if arg is not type(None))
    if hint in _SCALARS:
        return *_SCALARS[hint], False
    if typing.get_origin(hint) is list:
        return "strings", lambda text: [item for item in text.split(",") if item], True
    if typing.get_origin(hint) is dict:
        kind, item, _ = _reader(typing.get_args(hint)[1])
        return f"name={kind},…", lambda text: _read_map(text, item), True
    raise TypeError(f"no flag syntax for {hint}")


def _read_map(text: str, item: Callable[[str], Any]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        key, equals, value = part.partition("=")
        if not equals or not key:
            raise ValueError(f'"{part}" must be formatted as key=value')
        result[key.strip()] = item(value.strip())
    return result


def _read_int(text: str) -> int:
    try:
        return int(text, 0)
    except ValueError:
        raise ValueError("not an integer") from None


def _read_float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError("not a number") from None


_SCALARS: dict[Any, tuple[str, Callable[[str], Any]]] = {
    str: ("string", str),
    bool: ("bool", parse_bool),
    int: ("int", _read_int),
    float: ("float", _read_float),
}


def _duration_text(seconds: float) -> str:
    return str(times.Duration.of(nanoseconds=round(seconds * 1e9)))


def _canonical(name: str) -> str:
    return name.replace("_", "-")


def _kebab(name: str) -> str:
    """Keys of a configuration file in camel case (kubeApiQps) as flag names; kebab-case stays unchanged."""
    out: list[str] = []
    for index, char in enumerate(name):
        if char.isupper() and index and (not name[index - 1].isupper()):
            out.append("-")
        out.append(char.lower())
    return "".join(out)

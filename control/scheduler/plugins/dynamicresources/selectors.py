"""CEL expressions over a device, as device classes and claims have them (resource.k8s.io/v1).

Tenants write the expressions of claims. So their length is bounded, regular expressions run in RE2 (`regexes`), and
only the functions in CALLS are evaluated: an evaluation takes time linear in the length of the expression. The macros
that loop (`all`, `map` …) are not among them, nor are times and durations, which cel-python reads with a regular
expression that takes exponential time. Its lexer does so for backslashes in strings, so their number is bounded.

Devices of one model differ in their serial numbers only, which no expression reads. So an expression records what it
reads of a device, and its result is reused for devices that are equal in that.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache, total_ordering
from typing import TYPE_CHECKING, Any, Final

from control.scheduler.plugins.dynamicresources.regexes import RegexMeter
from koordlet.api.encoding.quantity import Quantity, QuantityError
from koordlet.api.encoding.quoting import quoted

if TYPE_CHECKING:
    from control.scheduler.plugins.dynamicresources.pools import ClaimableDevice

MAX_CLAIM_CHARS: Final = 2048
"""Of an expression in a claim; Kubernetes allows 10 KiB. Compilation takes about 16 us per character."""
MAX_CLASS_CHARS: Final = 10 << 10
COMPILED_EXPRESSIONS: Final = 1024
CHARS2_PER_STEP: Final = 200
"""An evaluation takes longer than its length grows: 50 us for 50 characters, 40 ms for 2,000."""
MAX_RESULTS: Final = 10_000
"""Remembered results of one expression."""
MAX_BACKSLASHES: Final = 16
_CONVERSIONS: Final = frozenset({"bool", "double", "dyn", "int", "string", "type", "uint"})
_TESTS: Final = frozenset({"contains", "endsWith", "has", "matches", "size", "startsWith"})
CALLS: Final = _CONVERSIONS | _TESTS | {"quantity", "semver", "compareTo", "isGreaterThan", "isLessThan"}
_CALL_SYNTAX: Final = {"ident_arg": 0, "dot_ident_arg": 0, "member_dot_arg": 1}
"""Grammar rule of a call -> position of the function's name in it."""
MAX_DIGITS: Final = 18
_SEMVER: Final = re.compile(r"(\d{1,18})\.(\d{1,18})\.(\d{1,18})(?:-([0-9A-Za-z.-]+))?(?:\+[0-9A-Za-z.-]+)?", re.ASCII)

Path = tuple[str, ...]
"""What an expression read: `(driver,)`, `(attributes, domain, name)`, `(attributes, domain)` for all names."""


class ExpressionError(Exception):
    """The expression cannot be evaluated; the text is the reason."""


class Expression:
    """A compiled expression. Raises ExpressionError."""

    def __init__(self, text: str, *, max_chars: int = MAX_CLAIM_CHARS) -> None:
        if len(text) > max_chars:
            raise ExpressionError(f"the expression has {len(text)} characters, at most {max_chars} are evaluated")
        if text.count("\\") > MAX_BACKSLASHES or "\r" in text:
            raise ExpressionError(f"carriage returns, and more than {MAX_BACKSLASHES} backslashes, are not evaluated")
        self._meter = RegexMeter()
        self._program = _compile(text, self._meter)
        self._cost = 1 + min(len(text), MAX_CLAIM_CHARS) ** 2 // CHARS2_PER_STEP
        self._results: list[tuple[tuple[Path, ...], dict[tuple[Any, ...], bool | str]]] = []
        """Per set of read paths: values -> result, or the text of the error."""

    def matches(self, device: ClaimableDevice, spend: Callable[[int], None] = lambda steps: None) -> bool:
        """Whether the device matches. Calls `spend` with the cost of an evaluation, in steps of a search, unless the
        result is remembered. Raises ExpressionError and what `spend` raises."""
        for paths, results in self._results:
            known = results.get(tuple(device.read(path) for path in paths))
            if known is not None:
                return _result(known)
        spend(self._cost)
        reads: list[Path] = []
        self._meter.steps = 0
        result = self._program(_view(device, reads.append))
        self._remember(tuple(dict.fromkeys(reads)), device, result)
        spend(self._meter.steps)
        return _result(result)

    def _remember(self, paths: tuple[Path, ...], device: ClaimableDevice, result: bool | str) -> None:
        if sum(len(results) for _, results in self._results) >= MAX_RESULTS:
            self._results.clear()
        values = tuple(device.read(path) for path in paths)
        for known, results in self._results:
            if known == paths:
                results[values] = result
                return
        self._results.append((paths, {values: result}))


@lru_cache(COMPILED_EXPRESSIONS)
def expression(text: str, max_chars: int) -> Expression | ExpressionError:
    """The compiled expression, or why it cannot be compiled; both are remembered."""
    try:
        return Expression(text, max_chars=max_chars)
    except ExpressionError as error:
        return error


def _result(known: bool | str) -> bool:
    if isinstance(known, str):
        raise ExpressionError(known)
    return known


def _compile(text: str, meter: RegexMeter) -> Callable[[Any], bool | str]:
    """A function from the view of a device to its result, or the text of an error."""
    import celpy  # only processes that see such a claim need it: 30 MB
    from celpy.celparser import CELParseError

    environment = celpy.Environment()
    try:
        tree = environment.compile(text)
    except (CELParseError, RecursionError) as error:
        raise ExpressionError(f"cannot be parsed: {quoted(str(error).split(chr(10))[0])}") from error
    for part in tree.iter_subtrees():
        at = _CALL_SYNTAX.get(str(part.data))
        if at is not None and str(part.children[at]) not in CALLS:
            raise ExpressionError(f"the function {quoted(str(part.children[at]))} is not evaluated")
    program = environment.program(tree, functions={**_FUNCTIONS, "matches": meter.matches})

    def run(view: Any) -> bool | str:
        try:
            value = program.evaluate({"device": view})
        except Exception as error:  # noqa: BLE001 - cel-python raises any class for what it does not expect
            return f"cannot be evaluated: {quoted(str(error.args[0] if error.args else error))}"
        return bool(value) if isinstance(value, celpy.celtypes.BoolType | bool) else "the result is not a boolean"

    return run


def _view(device: ClaimableDevice, note: Callable[[Path], None]) -> Any:
    """The variable `device`, which notes what is read."""
    from celpy import celtypes

    class NamesView(celtypes.MapType):
        """The attributes or capacities of one domain."""

        def __init__(self, kind: str, domain: str) -> None:
            values = device.values(kind).get(domain, {})
            super().__init__({celtypes.StringType(name): _value(value) for name, value in values.items()})
            self._kind, self._domain = kind, domain

        def __getitem__(self, name: Any) -> Any:
            note((self._kind, self._domain, str(name)))
            return super().__getitem__(name)

        def __contains__(self, name: object) -> bool:
            note((self._kind, self._domain, str(name)))
            return super().__contains__(name)

        def get(self, name: Any, default: Any = None) -> Any:
            note((self._kind, self._domain, str(name)))
            return super().get(name, default)

        def __iter__(self) -> Iterator[Any]:
            note((self._kind, self._domain))
            return super().__iter__()

        def __len__(self) -> int:
            note((self._kind, self._domain))
            return super().__len__()

        def __eq__(self, other: object) -> bool:
            note((self._kind, self._domain))
            return bool(super().__eq__(other))

        __hash__ = None  # type: ignore[assignment]

    class DomainsView(celtypes.MapType):
        """Domain -> names; a domain that the device does not have is empty."""

        def __init__(self, kind: str) -> None:
            super().__init__({celtypes.StringType(domain): NamesView(kind, domain) for domain in device.values(kind)})
            self._kind = kind

        def __getitem__(self, domain: Any) -> Any:
            return NamesView(self._kind, str(domain))

        def get(self, domain: Any, default: Any = None) -> Any:
            return self[domain]

        def __contains__(self, domain: object) -> bool:
            note((self._kind,))
            return super().__contains__(domain)

        def __iter__(self) -> Iterator[Any]:
            note((self._kind,))
            return super().__iter__()

        def __len__(self) -> int:
            note((self._kind,))
            return super().__len__()

    note(("driver",))
    return celtypes.MapType(
        {
            celtypes.StringType("driver"): celtypes.StringType(device.driver),
            celtypes.StringType("allowMultipleAllocations"): celtypes.BoolType(False),
            celtypes.StringType("attributes"): DomainsView("attributes"),
            celtypes.StringType("capacity"): DomainsView("capacity"),
        }
    )


@total_ordering
class Version:
    """A semantic version; a pre-release is lower than its release."""

    def __init__(self, text: str) -> None:
        match = _SEMVER.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not a semantic version")
        labels = match[4].split(".") if match[4] else None
        release = (labels is None, [_identifier(each) for each in labels or ()])
        self._text = text
        self._key = (*(int(match[part]) for part in (1, 2, 3)), release)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Version) and self._key == other._key

    def __lt__(self, other: Version) -> bool:
        return self._key < other._key

    def __hash__(self) -> int:
        return hash(str(self._key))

    def __str__(self) -> str:
        return self._text


def _identifier(text: str) -> tuple[bool, int, str]:
    """The sort key of a part of a pre-release: numbers are lower than words."""
    number = text.isdigit() and len(text) <= MAX_DIGITS
    return not number, int(text) if number else 0, text


def _value(value: Any) -> Any:
    from celpy import celtypes

    if isinstance(value, bool):
        return celtypes.BoolType(value)
    if isinstance(value, int):
        return celtypes.IntType(value)
    return celtypes.StringType(value) if isinstance(value, str) else value


def _quantity(text: Any) -> Quantity:
    try:
        return Quantity(str(text))
    except QuantityError as error:
        raise ValueError(str(error)) from error


def _compare(first: Any, second: Any) -> Any:
    from celpy import celtypes

    if type(first) is not type(second) or not isinstance(first, Quantity | Version):
        raise TypeError("only two quantities or two versions can be compared")
    return celtypes.IntType((first > second) - (first < second))


def _modulo(first: Any, second: Any) -> Any:
    """cel-python leaves `%` to Python, which formats strings with it: `"%999999999d" % 1`."""
    from celpy import celtypes

    if type(first) is not type(second) or not isinstance(first, celtypes.IntType | celtypes.UintType):
        raise TypeError("% needs two numbers of one type")
    return first % second


def _boolean(test: Callable[[int], bool]) -> Callable[[Any, Any], Any]:
    def function(first: Any, second: Any) -> Any:
        from celpy import celtypes

        return celtypes.BoolType(test(int(_compare(first, second))))

    return function


def _logical(operator: str) -> Callable[[Any, Any], Any]:
    """`||` or `&&` of celpy, whose text for two errors has the errors of both sides, twice: the text, and the memory
    that it takes, would double with each further operand."""

    def logical(first: Any, second: Any) -> Any:
        from celpy import celtypes

        if not isinstance(first, celtypes.BoolType) and not isinstance(second, celtypes.BoolType):
            raise TypeError(f"no operand of {operator} is a boolean")
        return (celtypes.logical_or if operator == "||" else celtypes.logical_and)(first, second)

    return logical


_FUNCTIONS: Final[dict[str, Any]] = {
    "_%_": _modulo,
    "_||_": _logical("||"),
    "_&&_": _logical("&&"),
    "quantity": _quantity,
    "semver": lambda text: Version(str(text)),
    "compareTo": _compare,
    "isGreaterThan": _boolean(lambda order: order > 0),
    "isLessThan": _boolean(lambda order: order < 0),
}

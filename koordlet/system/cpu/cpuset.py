"""Linux CPU lists (`0,2-5`) as immutable sets.

The text form is the kernel's `cpulist`. Parsing follows spec 03 §1.9 exactly: an empty text is the empty set, `A-B`
with A > B adds nothing, a range that ends above 4096 and white space are errors. A text may come from a tenant's
annotation, so its length and the number of CPUs that it names are bounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from collections.abc import Set as AbstractSet

MAX_RANGE_END = 4096
MAX_NAMED_CPUS = 4 * MAX_RANGE_END
"""CPUs that a text may name, repeats included: bounds the time of parsing."""
MAX_ITEMS = 1024
"""Items of a text: every second of 2048 CPUs."""
_MAX_ITEM_CHARS = 21
"""Of a range of two 32-bit numbers."""
_INT32_MAX = 2**31 - 1
_SINGLE_CPUS = re.compile(r"[0-9]{1,9}(?:,[0-9]{1,9})*+", re.ASCII)
"""CPU numbers without ranges, below 2^31 by their length."""
_PLAIN_LIST = re.compile(r"[0-9]{1,4}+(?:-[0-9]{1,4}+)?+(?:,[0-9]{1,4}+(?:-[0-9]{1,4}+)?+)*+", re.ASCII)
_PLAIN_ITEM = re.compile(r"([0-9]++)(?:-([0-9]++))?+", re.ASCII)


class CPUSetError(ValueError):
    """A text that is not a CPU list; the message contains the invalid item."""


class CPUSet(frozenset[int]):
    """An immutable set of CPU ids; `str()` returns the kernel's list form.

    The set operators (`|`, `&`, `-`, `^`) return a `CPUSet`; iteration is ascending.
    """

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> CPUSet:
        """`"0,2-5"` -> `{0,2,3,4,5}`; raises `CPUSetError`."""
        if text == "":
            return cls()
        if text.count(",") >= MAX_ITEMS:
            raise CPUSetError(f"cpu list has more than {MAX_ITEMS} items")
        if _SINGLE_CPUS.fullmatch(text):  # the longest lists that are accepted, without a check per item
            return cls(map(int, text.split(",")))
        cpus: set[int] = set()
        named = 0
        for low, high in _ranges(text):
            named += max(high - low + 1, 0)
            if named > MAX_NAMED_CPUS:
                raise CPUSetError(f"cpu list names more than {MAX_NAMED_CPUS} CPUs")
            cpus.update(range(low, high + 1))
        return cls(cpus)

    def __str__(self) -> str:
        parts: list[str] = []
        run: list[int] = []
        for cpu in [*sorted(self), None]:
            if cpu is not None and (not run or cpu == run[-1] + 1):
                run.append(cpu)
                continue
            if run:
                parts.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
            run = [] if cpu is None else [cpu]
        return ",".join(parts)

    def __repr__(self) -> str:
        return f"CPUSet({str(self)!r})"

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(super().__iter__()))

    def __or__(self, other: AbstractSet[object]) -> CPUSet:
        return CPUSet(self.union(other))  # type: ignore[arg-type]

    def __and__(self, other: AbstractSet[object]) -> CPUSet:
        return CPUSet(self.intersection(other))

    def __sub__(self, other: AbstractSet[object]) -> CPUSet:
        return CPUSet(self.difference(other))

    def __xor__(self, other: AbstractSet[object]) -> CPUSet:
        return CPUSet(self.symmetric_difference(other))  # type: ignore[arg-type]


def _ranges(text: str) -> list[tuple[int, int]]:
    """First and last CPU of each item. All items are checked at once; only a list that is not plain costs more."""
    if _PLAIN_LIST.fullmatch(text):
        pairs = [(int(low), int(high or low)) for low, high in _PLAIN_ITEM.findall(text)]
        if max(high for _, high in pairs) <= MAX_RANGE_END:
            return pairs
    return [_range(item) for item in text.split(",")]


def _range(item: str) -> tuple[int, int]:
    """First and last CPU of an item."""
    if len(item) > _MAX_ITEM_CHARS:
        raise CPUSetError(f"cpu list item {item[:_MAX_ITEM_CHARS]!r}…: more than {_MAX_ITEM_CHARS} characters")
    first, dash, last = item.partition("-")
    low = _number(first, item)
    high = _number(last, item) if dash else low
    if dash and high > MAX_RANGE_END:
        raise CPUSetError(f"cpu list item {item!r}: range ends above {MAX_RANGE_END}")
    return low, high


def _number(text: str, item: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise CPUSetError(f"cpu list item {item!r}: {text!r} is not a CPU number")
    number = int(text)
    if number > _INT32_MAX:
        raise CPUSetError(f"cpu list item {item!r}: {text!r} does not fit 32 bits")
    return number

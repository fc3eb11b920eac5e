"""The Prometheus text format, fast for large families.

`prometheus_client` makes an object and a dict of every sample and formats each label of each line anew; a full node's
7 MB take it half a second, in which nothing else runs. A `Table` keeps rows as they came and writes a row's labels
once, however many buckets it has. `page` gives, byte for byte, what `generate_latest` would, `packed_page` the same
gzipped.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

from koordlet.app.turns import give_way

_MEMO = 4096
"""Formatted values remembered within a page: most buckets of a family are equal."""
_PLAIN = 1_000_000
"""Whole numbers from here on are written with an exponent."""
_LINES = 1024
"""Lines that exist at once as objects of their own."""
_SLICE = 256
"""Lines between two turns of the loop where it is shared."""


class _Written(dict[str, str]):
    """One label as it is written, by value: most values of a family come again and again."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __missing__(self, value: str) -> str:
        escaped = value
        if "\\" in value or "\n" in value or '"' in value:
            escaped = value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
        text = self[value] = f'{self._name}="{escaped}"'
        return text


class Table(Metric):
    """A family whose rows are what `add_metric` of *empty*'s class takes; samples are made only if somebody asks."""

    def __init__(self, empty: Metric, labels: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        # Not Metric's own: it would make `samples` a list.
        self.name, self.documentation, self.unit, self.type = empty.name, empty.documentation, empty.unit, empty.type
        self._empty, self._labels, self._rows = empty, tuple(labels), list(rows)

    @property
    def samples(self) -> list[Sample]:  # type: ignore[override]
        if self._rows and not self._empty.samples:
            for row in self._rows:
                self._empty.add_metric(*row)  # type: ignore[attr-defined]
        return self._empty.samples

    def lines(self, text_of: Callable[[float], str]) -> Iterator[str]:
        """Lines without their ends."""
        written = [
            (at, _Written(self._labels[at])) for at in sorted(range(len(self._labels)), key=self._labels.__getitem__)
        ]
        name = f"{self.name}_total" if self.type == "counter" else self.name
        help_text = self.documentation.replace("\\", r"\\").replace("\n", r"\n")
        yield f"# HELP {name} {help_text}"
        yield f"# TYPE {name} {'untyped' if self.type == 'unknown' else self.type}"
        if self.type == "histogram":
            yield from self._histogram(written, text_of)
            return
        for values, value in self._rows:
            labels = ",".join([texts[values[at]] for at, texts in written])
            yield f"{name}{{{labels}}} {text_of(value)}" if labels else f"{name} {text_of(value)}"

    def _histogram(self, written: Sequence[tuple[int, _Written]], text_of: Callable[[float], str]) -> Iterator[str]:
        before = [one for one in written if self._labels[one[0]] < "le"]
        after = [one for one in written if self._labels[one[0]] > "le"]
        for values, buckets, total in self._rows:
            front = "".join([f"{texts[values[at]]}," for at, texts in before])
            back = "".join([f",{texts[values[at]]}" for at, texts in after])
            start = f'{self.name}_bucket{{{front}le="'
            for bound, count in buckets:
                yield f'{start}{bound}"{back}}} {text_of(count)}'
            labels = f"{front}{back[1:]}" if back else front[:-1]
            labels = f"{{{labels}}}" if labels else ""
            if float(buckets[0][0]) >= 0:
                yield f"{self.name}_count{labels} {text_of(buckets[-1][1])}"
                yield f"{self.name}_sum{labels} {text_of(total)}"


class _One:
    """A registry of one family, for those that are no tables."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        yield self._metric


def pieces(registries: Iterable[CollectorRegistry], size: int = _LINES) -> Iterator[bytes]:
    """All families of *registries* in the text format, version 0.0.4, as they are formatted, *size* lines at a time."""
    memo: dict[float, str] = {}

    def text_of(value: float) -> str:
        text = memo.get(value)
        if text is None:
            if type(value) is int and 0 <= value < _PLAIN:
                return f"{value}.0"
            text = str(floatToGoString(value))  # type: ignore[no-untyped-call]
            if len(memo) < _MEMO and value:  # 0.0 and -0.0 are one key
                memo[value] = text
        return text

    for registry in registries:
        for metric in registry.collect():
            if isinstance(metric, Table):
                lines = metric.lines(text_of)
                while some := list(islice(lines, size)):
                    yield "\n".join([*some, ""]).encode()
            else:
                yield generate_latest(_One(metric))


def page(registries: Iterable[CollectorRegistry]) -> bytes:
    """The whole page."""
    return b"".join(pieces(registries))


def packed_page(registries: Iterable[CollectorRegistry]) -> bytes:
    """The whole page, gzipped as it is written: the text of a full node never exists at once. The fastest level, for a
    node's CPU time is dearer than what a better one saves on the wire."""
    packer = zlib.compressobj(1, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    return b"".join([*map(packer.compress, pieces(registries)), packer.flush()])


async def sliced_page(registries: Iterable[CollectorRegistry], *, packed: bool) -> bytes:
    """The same page, of a process in which others wait for the loop. A family is of one moment, the page is not."""
    packer = zlib.compressobj(1, zlib.DEFLATED, 16 + zlib.MAX_WBITS) if packed else None
    made: list[bytes] = []
    for piece in pieces(registries, _SLICE):
        made.append(piece if packer is None else packer.compress(piece))
        await give_way()
    return b"".join([*made, packer.flush()] if packer is not None else made)

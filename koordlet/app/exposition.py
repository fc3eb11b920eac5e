"""The Prometheus text format, cheap for large families.

`prometheus_client` makes an object and a dict of every sample and formats each label of each line anew; a full node's
page takes it half a second, in which nothing else runs. A `MetricTable` keeps rows as they came. The text of labels that come
again in row after row and in family after family, such as a container's, is made once a page, and a histogram's lines
are one join. Where a container has many figures in one family they can be one row, and their lines stand together: that
is cheaper to write and half as dear to pack. A table's labels stand in the order in which its family names them, `le`
last, and its whole numbers are written without a fraction; apart from that a page says, line for line, what
`generate_latest` would.

Nothing is kept from one page to the next. A page is gzipped as it is written: no more of its text exists at once than
`_LINES` lines, which stay below the size that `app.heap` has mapped apart, so that the same memory serves all of them.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample

from koordlet.app.loopslice import yield_to_loop

_MEMO = 4096
"""Texts of labels remembered for a page, of one kind."""
_LINES = 512
"""Lines that are formatted and packed at a time."""
_SLICE = 256
"""Lines between two turns of the loop where it is shared."""
_PLACE = "\0"
"""Where the labels of a bucket go."""
_SIMPLE = {"counter": "counter", "gauge": "gauge", "histogram": "histogram", "summary": "summary", "unknown": "untyped"}
"""Types of which this module writes the samples, as the text format calls them."""
_APART = ("_created", "_gsum", "_gcount")
"""What the text format has no place for within a family."""


class _Texts(dict[tuple[str, ...], str]):
    """Values of some labels -> the labels as they are written, each with a comma before it; `bare`: but the first."""

    def __init__(self, names: Sequence[str], *, bare: bool) -> None:
        self._text = "".join([f',{name}="%s"' for name in names])[int(bare) :]

    def __missing__(self, values: tuple[str, ...]) -> str:
        together = "".join(values)
        plain = _escaped(together) is together
        text = self._text % (values if plain else tuple(map(_escaped, values)))
        if len(self) < _MEMO:
            self[values] = text
        return text


_Shared = dict[tuple[bool, tuple[str, ...]], _Texts]
"""Texts that families of one page share, by whether they are bare and the labels' names."""

Tails = tuple[tuple[str, ...], ...]
"""Values of a family's last labels, for each of the figures of a row."""


class MetricTable(Metric):
    """A family whose rows are (values of its labels, value), or of a histogram (values of its labels, cumulative count
    at each of *bounds*, which end in +Inf, sum). *empty* is the family without any; samples are made only if asked for.

    *fixed*: values of the family's first labels that all rows have in common, and leave out. *shared*: how many of a
    row's first labels come again in other rows and families, with the same values. *grouped*: how many of the last
    labels tell the figures of a row apart; rows are (values of the others, `Tails`, a figure for each, NaN if absent).
    """

    def __init__(
        self,
        empty: Metric,
        labels: Sequence[str],
        rows: Iterable[Sequence[Any]],
        *,
        fixed: Sequence[str] = (),
        shared: int = 0,
        grouped: int = 0,
        bounds: Sequence[str] = (),
    ) -> None:
        # Not Metric's own: it would make `samples` a list.
        self.name, self.documentation, self.unit, self.type = empty.name, empty.documentation, empty.unit, empty.type
        self._empty, self._labels, self._rows = empty, tuple(labels), list(rows)
        self._fixed, self._shared, self._grouped, self._bounds = tuple(fixed), shared, grouped, tuple(bounds)

    @property
    def samples(self) -> list[Sample]:  # type: ignore[override]
        if self._rows and not self._empty.samples:
            add: Callable[..., None] = self._empty.add_metric  # type: ignore[attr-defined]
            for values, *figures in self._rows:
                if self._grouped:
                    for tail, figure in zip(*figures, strict=True):
                        if figure == figure:
                            add([*self._fixed, *values, *tail], figure)
                    continue
                if self._bounds:
                    figures[0] = list(zip(self._bounds, figures[0], strict=True))
                add([*self._fixed, *values], *figures)
        return self._empty.samples

    def texts(self, shared: _Shared, lines: int) -> Iterator[str]:
        """The family, about so many *lines* at a time."""
        name = f"{self.name}_total" if self.type == "counter" else self.name
        yield _head(name, self.documentation, self.type)
        own, kept = len(self._fixed), self._shared
        fixed = _Texts(self._labels[:own], bare=True)[self._fixed]
        names = self._labels[own : own + kept]
        heads = shared.get((not own, names))
        if heads is None:
            heads = shared[not own, names] = _Texts(names, bare=not own)
        last = len(self._labels) - self._grouped
        tails = _Texts(self._labels[own + kept : last], bare=not own and not kept)
        write = None
        if self.type == "histogram":
            write, lines = self._histogram(), max(1, lines // (len(self._bounds) + 2))
        elif self._grouped and self._rows:
            write, lines = self._groups(name), max(1, lines // max(1, len(self._rows[0][1])))
        for begin in range(0, len(self._rows), lines):
            rows = self._rows[begin : begin + lines]
            if write is not None:
                whose = [f"{fixed}{heads[tuple(of[:kept])]}{tails[tuple(of[kept:])]}" for of, _, _ in rows]
                yield "".join(map(write, whose, rows))
            elif not self._labels:
                yield "".join([f"{name} {_number(value)}\n" for _, value in rows])
            else:
                start = f"{name}{{{fixed}"
                yield "".join(
                    [
                        f"{start}{heads[tuple(of[:kept])]}{tails[tuple(of[kept:])]}}} {_number(value)}\n"
                        for of, value in rows
                    ]
                )

    def _groups(self, name: str) -> Callable[[str, Sequence[Any]], str]:
        """What writes a row of several figures whose first labels are given."""
        names = self._labels[-self._grouped :]
        ends: dict[Tails, list[str]] = {}

        def write(labels: str, row: Sequence[Any]) -> str:
            _, tails, figures = row
            texts = ends.get(tails)
            if texts is None:
                make = _Texts(names, bare=names == self._labels)
                texts = ends[tails] = [f"{make[tail]}}} " for tail in tails]
            start, numbers = f"{name}{{{labels}", zip(texts, figures, strict=True)
            return "".join([f"{start}{text}{_number(figure)}\n" for text, figure in numbers if figure == figure])

        return write

    def _histogram(self) -> Callable[[str, Sequence[Any]], str]:
        """What writes a row whose labels are given."""
        name, summed = self.name, float(self._bounds[0]) >= 0
        buckets = "".join([f'{name}_bucket{{{_PLACE}le="{bound}"}} %d\n' for bound in self._bounds])

        def write(labels: str, row: Sequence[Any]) -> str:
            _, counts, total = row
            text = (buckets % tuple(counts)).replace(_PLACE, f"{labels}," if labels else "")
            if not summed:
                return text
            labels = f"{{{labels}}}" if labels else ""
            return f"{text}{name}_count{labels} {counts[-1]}\n{name}_sum{labels} {_number(total)}\n"

        return write


def pieces(registries: Iterable[CollectorRegistry], lines: int = _LINES) -> Iterator[bytes]:
    """All families of *registries* in the text format, version 0.0.4, as they are formatted, so many *lines* at a
    time."""
    shared: _Shared = {}
    for registry in registries:
        for metric in registry.collect():
            if isinstance(metric, MetricTable):
                for text in metric.texts(shared, lines):
                    yield text.encode()
            else:
                yield _plain(metric)


def page(registries: Iterable[CollectorRegistry]) -> bytes:
    """The whole page."""
    return b"".join(pieces(registries))


def packed_page(registries: Iterable[CollectorRegistry]) -> bytes:
    """The whole page, gzipped as it is written. The fastest level, for a node's CPU time is dearer than what a better
    one saves on the wire."""
    packer = _packer()
    return b"".join([*map(packer.compress, pieces(registries)), packer.flush()])


async def sliced_page(registries: Iterable[CollectorRegistry], *, packed: bool) -> bytes:
    """The same page, of a process in which others wait for the loop. A family is of one moment, the page is not."""
    packer = _packer() if packed else None
    made: list[bytes] = []
    for piece in pieces(registries, _SLICE):
        made.append(piece if packer is None else packer.compress(piece))
        await yield_to_loop()
    return b"".join([*made, packer.flush()] if packer is not None else made)


def _packer() -> zlib._Compress:
    return zlib.compressobj(1, zlib.DEFLATED, 16 + zlib.MAX_WBITS)


class _One:
    """A registry of one family, for those that are rare."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        yield self._metric


def _plain(metric: Metric) -> bytes:
    """A family that is no table."""
    samples = metric.samples
    if metric.type not in _SIMPLE or any(sample.timestamp is not None for sample in samples):
        return generate_latest(_One(metric))
    name = f"{metric.name}_total" if metric.type == "counter" else metric.name
    lines = [_head(name, metric.documentation, metric.type)]
    apart: dict[str, list[str]] = {metric.name + suffix: [] for suffix in _APART}
    for sample in samples:
        labels = ",".join([f'{name}="{_escaped(value)}"' for name, value in sorted(sample.labels.items())])
        labels = f"{{{labels}}}" if labels else ""
        apart.get(sample.name, lines).append(f"{sample.name}{labels} {_number(float(sample.value))}\n")
    for name, found in apart.items():
        if found:
            lines += [_head(name, metric.documentation, "gauge"), *found]
    return "".join(lines).encode()


def _head(name: str, says: str, kind: str) -> str:
    says = says.replace("\\", r"\\").replace("\n", r"\n")
    return f"# HELP {name} {says}\n# TYPE {name} {_SIMPLE[kind]}\n"


def _escaped(value: str) -> str:
    if "\\" in value or "\n" in value or '"' in value:
        return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    return value


def _number(value: float) -> str:
    if type(value) is int:
        return str(value)
    number = float(value)
    if number - number == 0:
        return repr(number)
    return "NaN" if number != number else "+Inf" if number > 0 else "-Inf"

"""The Prometheus text format, optimized for large families.

`prometheus_client` creates an object and a dict per sample and formats each label of each line; a full node's page
takes half a second, during which nothing else runs. A `MetricTable` stores plain rows. The text of labels that repeat
in many rows and families, such as a container's, is formatted once per page, and a histogram's lines are one join. A
container's values in one family can be one row whose lines are adjacent, which is faster to write and halves the time
to compress. A table's labels are in the order of the family's declaration, `le` last, and integers have no fraction;
otherwise a page is equal, line for line, to the output of `generate_latest`.

Nothing is cached between pages. A page is compressed while it is written: at most `_LINES` lines exist at a time. They
are smaller than the mmap threshold of `koordlet.app.heap`, so the same heap memory is used again for each of them.
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

_MAX_CACHED_TEXTS = 4096
"""Per page and set of label names."""
_LINES = 512
"""Lines that are formatted and compressed at a time."""
_SLICE_LINES = 256
"""Lines between two yields to the event loop."""
_PLACEHOLDER = "\0"
"""Replaced by the labels of a bucket."""
_SIMPLE = {"counter": "counter", "gauge": "gauge", "histogram": "histogram", "summary": "summary", "unknown": "untyped"}
"""Types that this module writes -> name in the text format."""
_SEPARATE_SUFFIXES = ("_created", "_gsum", "_gcount")
"""Samples that are separate families in the text format."""


class _Texts(dict[tuple[str, ...], str]):
    """Cache: label values -> label text, each label with a leading comma; `bare`: no comma before the first."""

    def __init__(self, names: Sequence[str], *, bare: bool) -> None:
        self._text = "".join([f',{name}="%s"' for name in names])[int(bare) :]

    def __missing__(self, values: tuple[str, ...]) -> str:
        together = "".join(values)
        plain = _escaped(together) is together
        text = self._text % (values if plain else tuple(map(_escaped, values)))
        if len(self) < _MAX_CACHED_TEXTS:
            self[values] = text
        return text


_Shared = dict[tuple[bool, tuple[str, ...]], _Texts]
"""(bare, label names) -> cache, shared by the families of one page."""

Tails = tuple[tuple[str, ...], ...]
"""Values of a family's last labels, one tuple per value of a row."""


class MetricTable(Metric):
    """A family whose rows are (label values, value), or for a histogram (label values, cumulative counts at `bounds`,
    which end with +Inf, sum). `empty`: the family without samples; samples are created only if they are accessed.

    `fixed`: values of the family's first labels, which are the same for all rows and not part of them. `shared`: number
    of a row's first labels whose values repeat in other rows and families. `grouped`: number of last labels that
    distinguish the values of one row; rows are (values of the other labels, `Tails`, one value each, NaN if absent).
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
        # Metric.__init__ is not called, because it would set `samples` to a list.
        self.name = empty.name
        self.documentation = empty.documentation
        self.unit = empty.unit
        self.type = empty.type
        self._empty = empty
        self._labels = tuple(labels)
        self._rows = list(rows)
        self._fixed = tuple(fixed)
        self._shared = shared
        self._grouped = grouped
        self._bounds = tuple(bounds)

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
        """The family's text, in pieces of about `lines` lines."""
        name = f"{self.name}_total" if self.type == "counter" else self.name
        yield _head(name, self.documentation, self.type)
        fixed_count = len(self._fixed)
        kept = self._shared
        fixed = _Texts(self._labels[:fixed_count], bare=True)[self._fixed]
        names = self._labels[fixed_count : fixed_count + kept]
        heads = shared.get((not fixed_count, names))
        if heads is None:
            heads = shared[not fixed_count, names] = _Texts(names, bare=not fixed_count)
        last = len(self._labels) - self._grouped
        tails = _Texts(self._labels[fixed_count + kept : last], bare=not fixed_count and not kept)
        write = None
        if self.type == "histogram":
            write = self._histogram()
            lines = max(1, lines // (len(self._bounds) + 2))
        elif self._grouped and self._rows:
            write = self._groups(name)
            lines = max(1, lines // max(1, len(self._rows[0][1])))
        for begin in range(0, len(self._rows), lines):
            rows = self._rows[begin : begin + lines]
            if write is not None:
                labels = [f"{fixed}{heads[tuple(of[:kept])]}{tails[tuple(of[kept:])]}" for of, _, _ in rows]
                yield "".join(map(write, labels, rows))
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
        """Returns a formatter (text of the first labels, row with several values) -> lines."""
        names = self._labels[-self._grouped :]
        ends: dict[Tails, tuple[str, list[str]]] = {}

        def write(labels: str, row: Sequence[Any]) -> str:
            _, tails, values = row
            known = ends.get(tails)
            if known is None:
                label_texts = _Texts(names, bare=names == self._labels)
                texts = [f"{label_texts[tail]}}} " for tail in tails]
                lines = "".join([f"{name}{{%s{text.replace('%', '%%')}%s\n" for text in texts])
                known = ends[tails] = lines, texts
            total = sum(values)
            if total - total == 0:  # all are finite, the usual case
                texts_and_values = [labels] * (2 * len(tails))
                texts_and_values[1::2] = values
                return known[0] % tuple(texts_and_values)
            start = f"{name}{{{labels}"
            pairs = zip(known[1], values, strict=True)
            return "".join([f"{start}{text}{_number(value)}\n" for text, value in pairs if value == value])

        return write

    def _histogram(self) -> Callable[[str, Sequence[Any]], str]:
        """Returns a formatter (text of the labels, row) -> lines."""
        name = self.name
        has_sum = float(self._bounds[0]) >= 0
        buckets = "".join([f'{name}_bucket{{{_PLACEHOLDER}le="{bound}"}} %d\n' for bound in self._bounds])

        def write(labels: str, row: Sequence[Any]) -> str:
            _, counts, total = row
            text = (buckets % tuple(counts)).replace(_PLACEHOLDER, f"{labels}," if labels else "")
            if not has_sum:
                return text
            labels = f"{{{labels}}}" if labels else ""
            return f"{text}{name}_count{labels} {counts[-1]}\n{name}_sum{labels} {_number(total)}\n"

        return write


def pieces(registries: Iterable[CollectorRegistry], lines: int = _LINES) -> Iterator[bytes]:
    """All families of `registries` in the text format, version 0.0.4, in pieces of about `lines` lines."""
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
    """The whole page with gzip, compressed while it is written. The level is the fastest, because a node's CPU time is
    more expensive than the network bytes that a better level saves."""
    compressor = _compressor()
    return b"".join([*map(compressor.compress, pieces(registries)), compressor.flush()])


async def sliced_page(registries: Iterable[CollectorRegistry], *, packed: bool) -> bytes:
    """The same page for a process whose loop has other work: it yields between pieces. The samples of one family are of
    one moment, those of the page are not."""
    compressor = _compressor() if packed else None
    chunks: list[bytes] = []
    for piece in pieces(registries, _SLICE_LINES):
        chunks.append(piece if compressor is None else compressor.compress(piece))
        await yield_to_loop()
    return b"".join([*chunks, compressor.flush()] if compressor is not None else chunks)


def _compressor() -> zlib._Compress:
    return zlib.compressobj(1, zlib.DEFLATED, 16 + zlib.MAX_WBITS)


class _SingleFamily:
    """A registry of one family, for families of rare types."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        yield self._metric


def _plain(metric: Metric) -> bytes:
    """A family that is not a `MetricTable`."""
    samples = metric.samples
    if metric.type not in _SIMPLE or any(sample.timestamp is not None for sample in samples):
        return generate_latest(_SingleFamily(metric))
    name = f"{metric.name}_total" if metric.type == "counter" else metric.name
    lines = [_head(name, metric.documentation, metric.type)]
    separate: dict[str, list[str]] = {metric.name + suffix: [] for suffix in _SEPARATE_SUFFIXES}
    for sample in samples:
        labels = ",".join([f'{name}="{_escaped(value)}"' for name, value in sorted(sample.labels.items())])
        labels = f"{{{labels}}}" if labels else ""
        separate.get(sample.name, lines).append(f"{sample.name}{labels} {_number(float(sample.value))}\n")
    for name, family_lines in separate.items():
        if family_lines:
            lines += [_head(name, metric.documentation, "gauge"), *family_lines]
    return "".join(lines).encode()


def _head(name: str, documentation: str, kind: str) -> str:
    text = documentation.replace("\\", r"\\").replace("\n", r"\n")
    return f"# HELP {name} {text}\n# TYPE {name} {_SIMPLE[kind]}\n"


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

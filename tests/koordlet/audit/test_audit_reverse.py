"""Reading backwards equals reading forwards and turning round, whatever the sizes."""

from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from koordlet.audit.logfile import CURRENT, AuditLogFile
from koordlet.audit.reverse import ReverseLog, reversed_lines
from tests.fakeclock import FakeClock


def forward(data: bytes) -> list[bytes]:
    lines = data.split(b"\n")
    return lines if lines[-1] else lines[:-1]


def backward(data: bytes, block: int, limit: int = 1 << 20) -> list[bytes]:
    return list(reversed_lines(lambda n, at: data[at : at + n], len(data), block=block, limit=limit))


@given(st.binary(max_size=200) | st.text("ab\n", max_size=200).map(str.encode), st.integers(1, 64))
@example(b"", 1)
@example(b"\n", 4)
@example(b"\n\n", 1)
@example(b"abcd\nefgh\n", 5)
@example(b"x" * 50, 8)
def test_reverse_iteration_is_the_lines_reversed(data: bytes, block: int) -> None:
    assert backward(data, block) == forward(data)[::-1]


@given(st.lists(st.integers(0, 40), max_size=12), st.integers(1, 16), st.integers(1, 20))
def test_a_line_over_the_limit_becomes_empty_and_costs_no_other(lengths: list[int], block: int, limit: int) -> None:
    given_lines = [bytes([97 + index % 26]) * length for index, length in enumerate(lengths)]
    data = b"".join(line + b"\n" for line in given_lines)
    expected = [line if len(line) <= limit else b"" for line in given_lines]
    assert backward(data, block, limit) == expected[::-1]


def test_reads_are_aligned_blocks() -> None:
    reads = []

    def read(count: int, offset: int) -> bytes:
        reads.append((offset, count))
        return b"x" * count

    assert len(next(reversed_lines(read, 10_000))) == 10_000
    assert reads == [(8192, 1808), (4096, 4096), (0, 4096)]


def fill(directory: Path, *, clock: FakeClock, start: int, count: int) -> AuditLogFile:
    """Two kilobytes an event: a file holds a thousand."""
    log = AuditLogFile(directory, 16, clock=clock)
    for number in range(start, start + count):
        log.append(b"%06d" % number + b"x" * 2041 + b"\n")
    log.flush()
    return log


def test_files_follow_each_other_newest_first(tmp_path: Path) -> None:
    fill(tmp_path, clock=FakeClock(), start=0, count=3000).close()
    numbers = [int(line[:6]) for line in ReverseLog(tmp_path)]
    assert numbers == list(range(3000))[::-1]


def test_rotation_meanwhile_neither_repeats_nor_loses(tmp_path: Path) -> None:
    clock = FakeClock()
    log = fill(tmp_path, clock=clock, start=0, count=3000)
    reading = ReverseLog(tmp_path)
    first = [int(next(reading)[:6]) for _ in range(500)]
    log.close()
    fill(tmp_path, clock=clock, start=3000, count=2500).close()
    rest = [int(line[:6]) for line in reading]
    assert first + rest == list(range(3000))[::-1]


def test_files_deleted_meanwhile_are_passed_over(tmp_path: Path) -> None:
    fill(tmp_path, clock=FakeClock(), start=0, count=3000).close()
    reading = ReverseLog(tmp_path)
    newest = int(next(reading)[:6])
    for path in tmp_path.iterdir():
        path.unlink()
    rest = [int(line[:6]) for line in reading]
    assert [newest, *rest] == list(range(newest - len(rest), newest + 1))[::-1], "the open file is read to its end"
    assert 0 < len(rest) < 1100


def test_an_empty_or_missing_log_has_no_lines(tmp_path: Path) -> None:
    assert list(ReverseLog(tmp_path)) == []
    (tmp_path / CURRENT).write_bytes(b"")
    assert list(ReverseLog(tmp_path)) == []
    assert list(ReverseLog(tmp_path / "missing")) == []

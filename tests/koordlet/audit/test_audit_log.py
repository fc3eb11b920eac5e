"""Writing and rotating: sizes, restarts, clocks that jump, disks that are full or gone."""

import datetime
import errno
import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.audit import LogAuditor, NullAuditor, node
from koordlet.audit.logfile import CURRENT, MAX_PENDING_BYTES, SEGMENT_BYTES, AuditLogFile, next_name, rotated_files
from tests.fakeclock import FakeClock

KIB = b"x" * 1023 + b"\n"


def write(log: AuditLogFile, kib: int) -> None:
    for _ in range(kib):
        log.append(KIB)


def lines(directory: Path) -> list[bytes]:
    """All of the log, oldest first."""
    names = [*reversed(rotated_files(directory)), CURRENT]
    return b"".join((directory / name).read_bytes() for name in names if (directory / name).exists()).splitlines()


SIZES = {"10 MB": (10, 12, 4), "16 MB": (16, 40, 7), "1 MB": (1, 12, 0), "3 MB": (3, 12, 0), "unreached": (10, 3, 1)}


@pytest.mark.parametrize(("megabytes", "mib", "expected"), SIZES.values(), ids=SIZES)
def test_rotated_files_stay_within_the_limit(tmp_path: Path, megabytes: int, mib: int, expected: int) -> None:
    log = AuditLogFile(tmp_path / "new" / "dir", megabytes, clock=FakeClock())
    write(log, mib << 10)
    log.close()
    files = list(log.directory.iterdir())
    assert len(rotated_files(log.directory)) == expected
    assert len(files) <= expected + 1
    assert sum(file.stat().st_size for file in files) <= megabytes << 20
    assert (log.written, log.dropped, log.bytes) == (mib << 10, 0, mib << 20)
    assert log.problem is None


def test_size_is_counted_over_restarts(tmp_path: Path) -> None:
    for _ in range(4):
        log = AuditLogFile(tmp_path, 10)
        write(log, 700)
        log.close()
    (name,) = rotated_files(tmp_path)
    assert SEGMENT_BYTES <= (tmp_path / name).stat().st_size <= SEGMENT_BYTES + len(KIB)
    assert len(lines(tmp_path)) == 2800


def test_a_partial_last_line_is_terminated(tmp_path: Path) -> None:
    (tmp_path / CURRENT).write_bytes(b'{"type":"node"}\n{"type":"po')
    log = AuditLogFile(tmp_path, 10)
    log.append(b'{"type":"pod"}\n')
    log.close()
    assert lines(tmp_path) == [b'{"type":"node"}', b'{"type":"po', b'{"type":"pod"}']


def test_nothing_is_written_before_a_flush_or_a_full_buffer(tmp_path: Path) -> None:
    log = AuditLogFile(tmp_path, 10)
    write(log, MAX_PENDING_BYTES // len(KIB))
    assert not (tmp_path / CURRENT).exists()
    write(log, 1)
    assert (tmp_path / CURRENT).stat().st_size == MAX_PENDING_BYTES
    log.flush()
    assert (tmp_path / CURRENT).stat().st_size == MAX_PENDING_BYTES + len(KIB)
    log.close()


def test_a_full_disk_drops_the_newest_events_and_is_reported(tmp_path: Path) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    answers = [False]
    log = AuditLogFile(tmp_path, 10, write=lambda fd, data: os.write(full if answers[0] else fd, data))
    write(log, 1)
    log.flush()
    answers[0] = True
    write(log, (MAX_PENDING_BYTES >> 10) + 5)
    assert "No space left" in str(log.problem)
    assert (log.written, log.dropped) == (1, 5)
    answers[0] = False
    log.flush()
    assert log.problem is None
    assert (log.written, log.dropped) == (1 + (MAX_PENDING_BYTES >> 10), 5)
    log.close()
    assert len(lines(tmp_path)) == log.written
    os.close(full)


def test_after_a_short_write_no_line_is_torn(tmp_path: Path) -> None:
    room = [1500]

    def short(fd: int, data: bytes) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        wrote = os.write(fd, data[: room[0]])
        room[0] -= wrote
        return wrote

    log = AuditLogFile(tmp_path, 10, write=short)
    write(log, 3)
    log.flush()
    assert (log.written, log.bytes) == (1, 1500)
    room[0] = 1 << 20
    log.close()
    assert lines(tmp_path) == [KIB.rstrip()] * 3
    assert (log.written, log.dropped, log.bytes) == (3, 0, 3 * len(KIB))


def test_a_removed_directory_is_created_again(tmp_path: Path) -> None:
    directory = tmp_path / "log"
    log = AuditLogFile(directory, 10)
    write(log, 1)
    log.flush()
    (directory / CURRENT).unlink()
    directory.rmdir()
    write(log, 2)
    log.flush()
    assert log.problem is None
    assert len(lines(directory)) == 2
    log.close()


def test_a_file_that_was_moved_away_is_not_written_any_more(tmp_path: Path) -> None:
    log = AuditLogFile(tmp_path, 10)
    write(log, 1)
    log.flush()
    (tmp_path / CURRENT).rename(tmp_path / "elsewhere")
    write(log, 1)
    log.close()
    assert (tmp_path / "elsewhere").stat().st_size == (tmp_path / CURRENT).stat().st_size == len(KIB)


def test_a_directory_that_cannot_be_made_costs_events_only(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    log = AuditLogFile(tmp_path / "file" / "log", 10)
    auditor = LogAuditor(log)
    auditor.record(0, node(), "Reason")
    assert log.problem is not None
    log.close()
    assert (log.written, log.dropped) == (0, 1)


def test_a_line_that_never_fits_is_dropped(tmp_path: Path) -> None:
    log = AuditLogFile(tmp_path, 10)
    log.append(b"x" * (MAX_PENDING_BYTES + 1) + b"\n")
    write(log, 1)
    log.close()
    assert (log.written, log.dropped) == (1, 1)


def test_a_size_that_is_not_positive_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="got 0 MB"):
        AuditLogFile(tmp_path, 0)


def test_files_keep_their_order_when_the_clock_runs_back(tmp_path: Path) -> None:
    clock = FakeClock()
    log = AuditLogFile(tmp_path, 64, clock=clock)
    for number in range(24):
        clock.jump(-3600.0 if number % 3 else 10_000.0)
        log.append(b"%d\n" % number)
        log.flush()
        write(log, 2048)
    log.close()
    numbers = [int(line) for line in lines(tmp_path) if line.isdigit()]
    assert numbers == list(range(24))


NOW = datetime.datetime(2024, 5, 6, 7, 8, 9, 123456)
NAMES = {
    "first": (None, "audit-2024-05-06-07-08-09-0.log"),
    "later": ("audit-2024-05-06-07-08-08-3.log", "audit-2024-05-06-07-08-09-0.log"),
    "same second": ("audit-2024-05-06-07-08-09-0.log", "audit-2024-05-06-07-08-09-1.log"),
    "second is full": ("audit-2024-05-06-07-08-09-8.log", "audit-2024-05-06-07-08-10-0.log"),
    "clock went back": ("audit-2031-01-01-00-00-00-0.log", "audit-2031-01-01-00-00-00-1.log"),
    "no date": ("audit-2031-99-01-00-00-00-0.log", "audit-2024-05-06-07-08-09-0.log"),
}


@pytest.mark.parametrize(("newest", "expected"), NAMES.values(), ids=NAMES)
def test_names_ascend(newest: str | None, expected: str) -> None:
    assert next_name(newest, NOW) == expected


@given(st.lists(st.datetimes(datetime.datetime(1971, 1, 1), datetime.datetime(2100, 1, 1)), max_size=30))
def test_names_ascend_for_any_clock(times: list[datetime.datetime]) -> None:
    names: list[str] = []
    for now in times:
        names.append(next_name(names[-1] if names else None, now))
        assert re.fullmatch(r"audit-\d{4}(-\d\d){5}-[0-8]\.log", names[-1])
    assert names == sorted(set(names))


@pytest.mark.parametrize(("verbose", "kept"), [(3, [0, 1, 3]), (0, [0, 1, 3, 4, 9]), (1, [0, 1])])
def test_levels_up_to_the_setting_are_kept(tmp_path: Path, verbose: int, kept: list[int]) -> None:
    log = AuditLogFile(tmp_path, 10)
    auditor = LogAuditor(log, verbose, clock=FakeClock())
    for level in (0, 1, 3, 4, 9):
        assert auditor.enabled(level) is (level in kept)
        auditor.record(level, node(), "Reason", "what", details={"level": level})
    log.close()
    assert [int(re.findall(rb'"level":(\d)', line)[0]) for line in lines(tmp_path)] == kept


def test_the_most_important_events_are_written_at_once(tmp_path: Path) -> None:
    log = AuditLogFile(tmp_path, 10)
    LogAuditor(log).record(3, node(), "Later")
    assert lines(tmp_path) == []
    LogAuditor(log).record(0, node(), "EvictPod")
    assert len(lines(tmp_path)) == 2
    log.close()


def test_without_the_gate_nothing_is_kept() -> None:
    assert not NullAuditor().enabled(0)
    NullAuditor().record(0, node(), "Reason", details={"a": 1})

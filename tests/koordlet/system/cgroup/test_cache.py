import resource
from pathlib import Path

import pytest

from koordlet.system.cgroup.cache import READ_SIZE, ReadCache, raise_fd_limit


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_an_open_descriptor_shows_the_current_content(tmp_path: Path) -> None:
    path = tmp_path / "cpu.stat"
    path.write_text("1\n")
    with ReadCache() as cache:
        assert cache.read(str(path)) == b"1\n"
        path.write_text("22\n")
        assert cache.read(str(path)) == b"22\n"
        assert (cache.opens, cache.paths()) == (1, [str(path)])


@pytest.mark.parametrize("size", [0, 1, 3071, 3072, 4096, READ_SIZE, READ_SIZE + 1, 5 * READ_SIZE + 17])
def test_content_of_any_size_is_read_completely(tmp_path: Path, size: int) -> None:
    path = tmp_path / "cgroup.procs"
    path.write_bytes(bytes(index % 251 for index in range(size)))
    with ReadCache() as cache:
        assert cache.read(str(path)) == path.read_bytes()
        assert cache.read(str(path)) == path.read_bytes()


def test_an_absent_file_is_none_until_it_exists(tmp_path: Path) -> None:
    path = tmp_path / "late"
    with ReadCache() as cache:
        assert cache.read(str(path)) is None
        assert cache.read(str(path / "below")) is None
        path.write_text("x")
        assert cache.read(str(path)) == b"x"


def test_a_replaced_file_is_opened_again(tmp_path: Path) -> None:
    path, other = tmp_path / "a", tmp_path / "b"
    path.write_text("old")
    with ReadCache(verify=True) as cache:
        assert cache.read(str(path)) == b"old"
        other.write_text("new")
        other.replace(path)
        assert cache.read(str(path)) == b"new"
        assert cache.opens == 2
        path.unlink()
        assert cache.read(str(path)) is None
        assert cache.paths() == []


def test_descriptors_are_bounded(tmp_path: Path) -> None:
    paths = []
    for index in range(5):
        paths.append(tmp_path / str(index))
        paths[-1].write_text(str(index))
    before = descriptors()
    with ReadCache(max_fds=3) as cache:
        for _ in range(2):
            assert [cache.read(str(path)) for path in paths] == [b"0", b"1", b"2", b"3", b"4"]
        assert (len(cache.paths()), cache.opens) == (3, 3 + 4)
        assert descriptors() == before + 3
    assert descriptors() == before


def test_idle_descriptors_are_closed(tmp_path: Path) -> None:
    used, idle = tmp_path / "used", tmp_path / "idle"
    for path in (used, idle):
        path.write_text("x")
    with ReadCache(idle_ticks=2) as cache:
        cache.begin_tick()
        cache.read(str(idle))
        closed = [cache.end_tick()]
        for _ in range(3):
            cache.begin_tick()
            cache.read(str(used))
            closed.append(cache.end_tick())
        assert closed == [0, 0, 0, 1]
        assert len(cache.paths()) == 1


def test_forget_closes_the_files_of_one_directory(tmp_path: Path) -> None:
    for name in ("pod1", "pod10"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "f").write_text(name)
    with ReadCache() as cache:
        for name in ("pod1", "pod10"):
            cache.read(str(tmp_path / name / "f"))
        cache.forget(str(tmp_path / "pod1"))
        assert len(cache.paths()) == 1


def test_errors_other_than_absence_are_raised(tmp_path: Path) -> None:
    with ReadCache() as cache, pytest.raises(IsADirectoryError):
        cache.read(str(tmp_path))


def test_the_descriptor_limit_is_raised_to_the_hard_limit() -> None:
    allowed = raise_fd_limit()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft == hard
    assert 0 < allowed < hard

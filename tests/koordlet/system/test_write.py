import errno
from pathlib import Path

import pytest

from koordlet.system import write


def test_the_text_is_written(tmp_path: Path) -> None:
    path = tmp_path / "cpu.shares"
    path.write_text("a longer old text")
    write.write_value(path, "1024")
    assert path.read_text() == "1024"


def test_a_missing_file_is_not_created(tmp_path: Path) -> None:
    with pytest.raises(write.TargetGone, match=r"cpu\.shares: writing '2'"):
        write.write_value(tmp_path / "cpu.shares", "2")
    assert not (tmp_path / "cpu.shares").exists()


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (errno.EBUSY, write.TargetBusy), (errno.EINVAL, write.WriteRefused), (errno.ENOENT, write.TargetGone),
        (errno.ENODEV, write.TargetGone), (errno.EACCES, write.WriteDenied), (errno.EPERM, write.WriteDenied),
        (errno.ERANGE, write.WriteRefused), (errno.EOPNOTSUPP, write.WriteUnsupported), (errno.EIO, write.WriteError),
    ],
)  # fmt: skip
def test_a_refusal_raises_the_error_of_its_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[write.WriteError]
) -> None:
    path = tmp_path / "f"
    path.write_text("")

    def refuse(fd: int, data: bytes) -> None:
        raise OSError(code, "no")

    monkeypatch.setattr(write.os, "write", refuse)  # type: ignore[attr-defined]
    with pytest.raises(write.WriteError, match=f"{path}: writing '7'") as caught:
        write.write_value(path, "7")
    assert type(caught.value) is kind
    assert (caught.value.errno, caught.value.value) == (code, "7")


def test_a_short_write_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f"
    path.write_text("")
    monkeypatch.setattr(write.os, "write", lambda fd, data: 1)  # type: ignore[attr-defined]
    with pytest.raises(write.WriteError, match="only 1 bytes"):
        write.write_value(path, "12")

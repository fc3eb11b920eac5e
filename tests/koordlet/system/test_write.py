import errno

import pytest

from koordlet.system import write


def test_writes_the_text(tmp_path):
    path = tmp_path / "cpu.shares"
    path.write_text("a longer old text")
    write.write_value(path, "1024")
    assert path.read_text() == "1024"


def test_never_creates(tmp_path):
    with pytest.raises(write.TargetGone, match=r"cpu\.shares: writing '2'"):
        write.write_value(tmp_path / "cpu.shares", "2")
    assert not (tmp_path / "cpu.shares").exists()


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (errno.EBUSY, write.Busy), (errno.EINVAL, write.Refused), (errno.ENOENT, write.TargetGone),
        (errno.ENODEV, write.TargetGone), (errno.EACCES, write.Denied), (errno.EPERM, write.Denied),
        (errno.ERANGE, write.Refused), (errno.EOPNOTSUPP, write.Unsupported), (errno.EIO, write.WriteError),
    ],
)  # fmt: skip
def test_refusals_are_typed(tmp_path, monkeypatch, code, kind):
    path = tmp_path / "f"
    path.write_text("")

    def refuse(fd, data):
        raise OSError(code, "no")

    monkeypatch.setattr(write.os, "write", refuse)
    with pytest.raises(write.WriteError, match=f"{path}: writing '7'") as caught:
        write.write_value(path, "7")
    assert type(caught.value) is kind
    assert (caught.value.errno, caught.value.value) == (code, "7")


def test_a_short_write_is_an_error(tmp_path, monkeypatch):
    path = tmp_path / "f"
    path.write_text("")
    monkeypatch.setattr(write.os, "write", lambda fd, data: 1)
    with pytest.raises(write.WriteError, match="only 1 bytes"):
        write.write_value(path, "12")

"""Who may read the pages of a binary, by its flags."""

from __future__ import annotations

import pytest

from koordlet.app.flags import FlagError, read
from koordlet.app.pageoptions import PageOptions
from koordlet.options import KoordletOptions


@pytest.mark.parametrize(
    ("mode", "addr", "authorized"),
    [
        ("auto", ":9316", True),
        ("auto", "0.0.0.0:9316", True),
        ("auto", "[::]:9316", True),
        ("auto", "10.0.0.1:9316", True),
        ("auto", "node.example:9316", True),
        ("auto", "127.0.0.1:9316", False),
        ("auto", "127.8.0.1:9316", False),
        ("auto", "[::1]:9316", False),
        ("auto", "localhost:9316", False),
        ("delegated", "127.0.0.1:9316", True),
        ("none", ":9316", False),
    ],
)
def test_callers_of_other_machines_are_authorized(mode: str, addr: str, authorized: bool) -> None:
    options = read(PageOptions, [f"--page-authorization={mode}"])
    assert options.authorizes(addr) is authorized
    assert options.authorizes_any("", addr) is authorized


def koordlet(*flags: str) -> KoordletOptions:
    options = read(KoordletOptions, list(flags))
    options.check("n1")
    return options


@pytest.mark.parametrize(
    ("flags", "addr", "pprof"),
    [
        ([], ":9316", ":9317"),
        (["--standalone"], "127.0.0.1:9316", "127.0.0.1:9317"),
        (["--standalone", "--addr=[::1]:7", "--pprof-addr=localhost:8"], "[::1]:7", "localhost:8"),
        (["--standalone", "--page-authorization=none"], ":9316", ":9317"),
        (["--standalone", "--page-authorization=none", "--addr=10.0.0.1:7"], "10.0.0.1:7", ":9317"),
    ],
)
def test_a_koordlet_without_an_api_server_is_for_its_own_host(flags: list[str], addr: str, pprof: str) -> None:
    options = koordlet(*flags)
    assert (options.addr, options.pprof_addr) == (addr, pprof)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--standalone", "--addr=0.0.0.0:9316"], "--addr=0.0.0.0:9316: with --standalone no caller is authorized"),
        (["--standalone", "--pprof-addr=10.0.0.1:1"], "--pprof-addr=10.0.0.1:1: with --standalone"),
        (["--standalone", "--page-authorization=delegated"], "needs an API server"),
        (["--tls-cert-file=/x"], "set both or neither"),
    ],
)
def test_what_cannot_be_authorized_is_refused(flags: list[str], words: str) -> None:
    with pytest.raises(FlagError, match=words.replace(".", r"\.")):
        koordlet(*flags)

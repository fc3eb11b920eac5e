"""The ends of heads and bodies, for any splitting of the stream, and the parsed parts of a request."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimeproxy.docker import http1
from runtimeproxy.docker.http1 import ChunkedBody, HttpBody, LengthBody, NotHttp1

GET = b"GET /info HTTP/1.1\r\nHost: docker\r\n\r\n"


@pytest.mark.parametrize(
    ("data", "end"),
    [
        pytest.param(GET, len(GET), id="whole"),
        pytest.param(GET + b"POST", len(GET), id="next-follows"),
        pytest.param(GET[:-1], 0, id="last-byte-missing"),
        pytest.param(b"\r\n" + GET, len(GET) + 2, id="empty-line-before"),
        pytest.param(b"\r\n\r\n\r\n", 0, id="only-empty-lines"),
        pytest.param(b"GET / HTTP/1.1\nHost: a\n\n", 24, id="bare-line-feeds"),
        pytest.param(b"GET / HTTP/1.1\nHost: a\n\r\nx", 25, id="mixed-line-ends"),
        pytest.param(b"", 0, id="nothing"),
    ],
)
def test_end_of_a_head(data: bytes, end: int) -> None:
    assert http1.split_head(data) == end


@pytest.mark.parametrize("size", [0, 1, 17, len(GET) - 1])
def test_the_search_for_a_heads_end_can_continue(size: int) -> None:
    assert http1.split_head(GET, size) == len(GET)


def test_a_head_without_end_is_refused() -> None:
    assert http1.split_head(b"a" * http1.MAX_HEAD_BYTES) == 0
    with pytest.raises(NotHttp1, match="more than"):
        http1.split_head(b"a" * (http1.MAX_HEAD_BYTES + 1))


def test_a_request_is_parsed() -> None:
    raw = (
        b"POST /v1.41/containers/create?name=x HTTP/1.1\r\nHost:docker\r\n"
        b"Connection: Upgrade, close \r\nexpect: 100-Continue\r\n\r\n"
    )
    request = http1.parse_request(raw)
    request_line = (b"POST", b"/v1.41/containers/create?name=x", b"HTTP/1.1")
    assert (request.method, request.target, request.version) == request_line
    assert request.values(b"host") == [b"docker"]
    assert request.tokens(b"connection") == {b"upgrade", b"close"}
    assert request.last and request.waits_for_continue
    assert not http1.parse_request(GET).last and not http1.parse_request(GET).waits_for_continue


@pytest.mark.parametrize(
    ("line", "last"),
    [
        pytest.param(b"GET / HTTP/1.0\r\n\r\n", True, id="1.0"),
        pytest.param(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", False, id="1.0-kept"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", False, id="1.1"),
    ],
)
def test_the_last_request_of_a_client_is_recognised(line: bytes, last: bool) -> None:
    assert http1.parse_request(line).last is last


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b"PRI * HTTP/2.0\r\n\r\n", id="http2"),
        pytest.param(b"GET /\r\n\r\n", id="no-version"),
        pytest.param(b"GET  / HTTP/1.1\r\n\r\n", id="two-blanks"),
        pytest.param(b"\x16\x03\x01\r\n\r\n", id="tls"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: a\r\n folded\r\n\r\n", id="folded"),
        pytest.param(b"GET / HTTP/1.1\r\nHost : a\r\n\r\n", id="blank-before-colon"),
        pytest.param(b"GET / HTTP/1.1\r\nHost\r\n\r\n", id="no-colon"),
    ],
)
def test_invalid_requests_are_refused(raw: bytes) -> None:
    with pytest.raises(NotHttp1):
        http1.parse_request(raw)


@pytest.mark.parametrize(
    "raw", [b"HTTP/2 200\r\n\r\n", b"HTTP/1.1 20\r\n\r\n", b"ICY 200 OK\r\n\r\n", b"HTTP/1.1\r\n\r\n"]
)
def test_invalid_responses_are_refused(raw: bytes) -> None:
    with pytest.raises(NotHttp1):
        http1.parse_response(raw)


def body_of(fields: bytes) -> HttpBody:
    return http1.request_body(http1.parse_request(b"POST / HTTP/1.1\r\n" + fields + b"\r\n"))


@pytest.mark.parametrize(
    ("fields", "kind", "done"),
    [
        pytest.param(b"", LengthBody, True, id="none"),
        pytest.param(b"Content-Length: 0\r\n", LengthBody, True, id="zero"),
        pytest.param(b"Content-Length: 5\r\n", LengthBody, False, id="length"),
        pytest.param(b"Content-Length: 5\r\ncontent-length: 5\r\n", LengthBody, False, id="length-twice"),
        pytest.param(b"Transfer-Encoding: Chunked\r\n", ChunkedBody, False, id="chunked"),
        pytest.param(b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", ChunkedBody, False, id="chunked-wins"),
    ],
)
def test_framing(fields: bytes, kind: type[HttpBody], done: bool) -> None:
    body = body_of(fields)
    assert type(body) is kind and body.done is done


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param(b"Content-Length: 5\r\nContent-Length: 6\r\n", id="two-lengths"),
        pytest.param(b"Content-Length: -1\r\n", id="negative"),
        pytest.param(b"Content-Length: 5, 5\r\n", id="list"),
        pytest.param(b"Content-Length:\r\n", id="empty"),
        pytest.param(b"Transfer-Encoding: gzip, chunked\r\n", id="gzip"),
        pytest.param(b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", id="twice"),
    ],
)
def test_framing_that_is_not_guessed(fields: bytes) -> None:
    with pytest.raises(NotHttp1):
        body_of(fields)


@pytest.mark.parametrize(
    ("head", "method", "length"),
    [
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", b"GET", 5, id="length"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", b"HEAD", 0, id="head-has-no-body"),
        pytest.param(b"HTTP/1.1 204 No Content\r\n\r\n", b"POST", 0, id="no-content"),
        pytest.param(b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", b"POST", 0, id="not-modified"),
        pytest.param(b"HTTP/1.1 100 Continue\r\n\r\n", b"POST", 0, id="interim"),
        pytest.param(b"HTTP/1.1 101 UPGRADED\r\nContent-Length: 5\r\n\r\n", b"POST", None, id="upgrade"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/vnd.docker.raw-stream\r\n\r\n", b"POST", None, id="raw"
        ),
        pytest.param(b"HTTP/1.0 200 OK\r\n\r\n", None, None, id="until-the-end"),
    ],
)
def test_bodies_of_answers(head: bytes, method: bytes | None, length: int | None) -> None:
    body = http1.response_body(http1.parse_response(head), method)
    if length is None:
        assert body is None
    else:
        assert body is not None and body.take(b"x" * 10) == length and body.done


pieces = st.lists(st.binary(min_size=1, max_size=40), max_size=6)


@st.composite
def chunked(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """A chunked body and its payload."""
    raw = b""
    payload = draw(pieces)
    for piece in payload:
        size = draw(st.sampled_from([b"%x", b"%X", b"00%x", b"%x;name=value", b"%x "])) % len(piece)
        raw += size + b"\r\n" + piece + b"\r\n"
    trailer = draw(st.sampled_from([b"", b"Docker-Sum: 1\r\n"]))
    return raw + b"0\r\n" + trailer + b"\r\n", b"".join(payload)


def cut(data: bytes, draw: st.DrawFn) -> list[bytes]:
    """The same bytes in pieces."""
    places = sorted(draw(st.lists(st.integers(0, len(data)), max_size=12)))
    return [data[low:high] for low, high in zip([0, *places], [*places, len(data)], strict=True)]


@given(st.data())
def test_a_chunked_body_ends_correctly_for_any_splitting(data: st.DataObject) -> None:
    raw, payload = data.draw(chunked())
    rest = data.draw(st.binary(max_size=20))
    received = bytearray()
    body = ChunkedBody(received.extend)
    taken = 0
    for piece in cut(raw + rest, data.draw):  # type: ignore[arg-type]
        taken += body.take(piece)
    assert body.done and taken == len(raw) and bytes(received) == payload


@given(st.data())
def test_a_body_with_a_length_ends_correctly_for_any_splitting(data: st.DataObject) -> None:
    payload, rest = data.draw(st.binary(max_size=60)), data.draw(st.binary(max_size=20))
    received = bytearray()
    body = LengthBody(len(payload), received.extend)
    taken = sum(body.take(piece) for piece in cut(payload + rest, data.draw))  # type: ignore[arg-type, misc]
    assert body.done and taken == len(payload) and bytes(received) == payload


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b"5\r\nabcdefgh\r\n", id="longer-than-said"),
        pytest.param(b"five\r\n", id="no-number"),
        pytest.param(b"\r\n", id="empty-size"),
        pytest.param(b"-1\r\n", id="negative"),
        pytest.param(b"1" * 17 + b"\r\n", id="beyond-64-bits"),
        pytest.param(b"1;" + b"x" * http1.MAX_LINE_BYTES, id="endless-line"),
    ],
)
def test_damaged_chunks(raw: bytes) -> None:
    with pytest.raises(NotHttp1):
        ChunkedBody().take(raw)


def test_another_body_keeps_the_other_fields_as_they_came() -> None:
    raw = (
        b"POST /containers/create HTTP/1.1\r\nHost: docker\r\nX-Odd:  two  blanks \r\n"
        b"transfer-encoding: chunked\r\nTrailer: Sum\r\nUser-Agent: kubelet\r\n\r\n"
    )
    expected = (
        b"POST /containers/create HTTP/1.1\r\nHost: docker\r\nX-Odd:  two  blanks \r\n"
        b"User-Agent: kubelet\r\nContent-Length: 2\r\n\r\n{}"
    )
    assert http1.with_body(http1.parse_request(raw), b"{}") == expected


@given(st.binary(max_size=200))
def test_bytes_of_any_kind_are_read_or_refused(data: bytes) -> None:
    for parse in (http1.parse_request, http1.parse_response):
        try:
            assert parse(data + b"\r\n\r\n").raw == data + b"\r\n\r\n"
        except NotHttp1:
            continue


def test_an_error_has_dockerds_format() -> None:
    answer = http1.error_response('no "pod"', method=b"POST", last=False)
    end = http1.split_head(answer)
    head = http1.parse_response(answer[:end])
    assert head.status == 500 and head.values(b"content-type") == [b"application/json"]
    assert answer[end:] == b'{"message":"no \\"pod\\""}\n'
    assert head.values(b"content-length") == [b"%d" % len(answer[end:])]
    assert b"close" in http1.parse_response(http1.error_response("x", method=b"HEAD", last=True)).tokens(b"connection")


def test_empty_lines_before_a_head_are_bounded() -> None:
    """Each read scans them again."""
    data = bytearray()
    with pytest.raises(NotHttp1, match="8192 bytes of empty lines"):
        for _ in range(8000):
            data += b"\r\n"
            http1.split_head(data, len(data) - 2)

"""Whatever is held, rewritten, credited and cut: the runtime's windows are kept to, and every byte arrives once."""

from __future__ import annotations

from collections import Counter, defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from koordlet.app.http2 import frames as h2
from koordlet.app.http2.frames import Splitter
from koordlet.app.http2.windows import Chunk, FlowWindow, Sender
from runtimeproxy.http2.heldstream import chunk_of


@given(st.lists(st.tuples(st.integers(0, 500), st.booleans(), st.integers(1, 500)), max_size=30))
def test_the_clients_window_is_the_real_one_and_the_debt(steps: list[tuple[int, bool, int]]) -> None:
    """Owed bytes were credited by us when they came; the others the client has counted itself."""
    window, client = FlowWindow(1000), 1000
    for size, held, more in steps:
        if held:
            window.pending += size
        client -= size
        credit = window.pending if more % 3 == 0 else 0  # some of the time
        window.pending -= credit
        client += credit
        window.sent(size, held)
        client += window.credited(more)
        assert client == window.room + window.debt - window.pending
        assert min(window.debt, window.pending) >= 0


class Runtime:
    """A receiver that counts: fails on a byte too many."""

    def __init__(self) -> None:
        self.splitter = Splitter()
        self.connection = 65535
        self.initial = 65535
        self.used: Counter[int] = Counter()
        self.given: Counter[int] = Counter()
        self.bodies: dict[int, bytes] = defaultdict(bytes)
        self.ended: set[int] = set()
        self.unread = 0

    def write(self, data: bytes | memoryview) -> None:
        buffer, frames = self.splitter.feed(bytes(data))
        for frame in frames:
            assert frame.kind == h2.DATA
            assert frame.stream not in self.ended
            assert frame.length <= h2.LEAST_MAX_FRAME
            self.connection -= frame.length
            self.used[frame.stream] += frame.length
            if frame.length:
                assert self.connection >= 0
                assert self.used[frame.stream] <= self.initial + self.given[frame.stream]
            start, end = h2.payload(buffer, frame)
            self.bodies[frame.stream] += buffer[start:end]
            if frame.flags & h2.END_STREAM:
                self.ended.add(frame.stream)


class Flow(RuleBasedStateMachine):
    """Streams 1 and 3 are followed (their DATA may be held or rewritten), 5 and 7 are not."""

    def __init__(self) -> None:
        super().__init__()
        self.runtime = Runtime()
        self.client = dict.fromkeys((0, 1, 3, 5, 7), 65535)
        self.sender = Sender(self.runtime.write, self.repay)
        self.sent: dict[int, bytes] = defaultdict(bytes)
        self.over: set[int] = set()
        self.serial = 0
        for stream in (1, 3):
            self.sender.follow(stream)

    def repay(self, stream: int, size: int) -> None:
        self.client[0] += size
        self.client[stream] += size

    @rule(
        stream=st.sampled_from([1, 3, 5, 7]),
        size=st.integers(0, 16000),
        padding=st.integers(-1, 255),
        held=st.booleans(),
        end=st.booleans(),
        own=st.booleans(),
    )
    def data(self, stream: int, size: int, padding: int, held: bool, end: bool, own: bool) -> None:
        if stream in self.over:
            return
        held = held and stream in (1, 3)
        flow = size + (padding + 1 if padding >= 0 else 0)
        own = own and held
        if not own:
            if flow > min(self.client[0], self.client[stream]):
                return
            self.client[0] -= flow
            self.client[stream] -= flow
            if held:
                self.sender.hold(stream, flow)
        self.serial += 1
        body = bytes([self.serial % 256]) * size
        flags = (h2.END_STREAM if end else 0) | (h2.PADDED if padding >= 0 else 0)
        frame = h2.head(flow, h2.DATA, flags, stream)
        frame += bytes([padding]) + body + bytes(padding) if padding >= 0 else body
        if own:
            chunk = Chunk(memoryview(body), size, end, held)
        else:
            chunk = chunk_of(frame, Splitter().feed(frame)[1][0], held=held)
        self.sent[stream] += body
        if end:
            self.over.add(stream)
        self.sender.put(stream, chunk)

    @rule(more=st.integers(1, 40000))
    def credit_connection(self, more: int) -> None:
        self.runtime.connection += more
        self.client[0] += self.sender.credit(0, more)

    @rule(stream=st.sampled_from([1, 3, 5, 7]), more=st.integers(1, 40000))
    def credit_stream(self, stream: int, more: int) -> None:
        self.runtime.given[stream] += more
        self.client[stream] += self.sender.credit(stream, more)

    @rule(stream=st.sampled_from([0, 1, 3]), share=st.integers(0, 4))
    def credit_of_our_own(self, stream: int, share: int) -> None:
        window = self.sender.window(stream) if stream else self.sender.connection
        size = window.pending * share // 4
        window.pending -= size
        self.client[stream] += size

    @rule(size=st.integers(0, 100_000))
    def initial(self, size: int) -> None:
        """The client has agreed: it counts so from now on, too. What it sent before may arrive after that."""
        if size < self.runtime.initial and (self.sender.waits(5) or self.sender.waits(7)):
            return
        for stream in (1, 3, 5, 7):
            self.client[stream] += size - self.runtime.initial
        self.runtime.initial = size
        self.sender.set_initial(size)

    @invariant()
    def in_order(self) -> None:
        for stream, body in self.runtime.bodies.items():
            assert self.sent[stream].startswith(body)

    @invariant()
    def client_and_runtime_agree(self) -> None:
        """The client's view: the real window and what we owe, less what is pending and what waits as it came."""
        flows = self.sender._flows
        waiting = {
            stream: sum(chunk.size for chunk in flow.waiting if not chunk.held) for stream, flow in flows.items()
        }
        windows = {0: self.sender.connection, 1: self.sender.window(1), 3: self.sender.window(3)}
        for stream, window in windows.items():
            late = waiting.get(stream, 0) if stream else sum(waiting.values())
            assert self.client[stream] == window.room + window.debt - window.pending - late
            assert min(window.debt, window.pending) >= 0
        for stream in (5, 7):
            room = self.runtime.initial + self.runtime.given[stream] - self.runtime.used[stream]
            if stream not in self.over:
                assert self.client[stream] == room - waiting.get(stream, 0)

    @invariant()
    def counted(self) -> None:
        waiting = {stream for stream in (1, 3, 5, 7) if self.sender.waits(stream)}
        assert (self.sender.blocked > 0) == bool(waiting)

    def teardown(self) -> None:
        """With all the credit it needs, everything arrives."""
        for stream in (0, 1, 3, 5, 7):
            more = (1 << 31) - 1
            if stream == 0:
                self.runtime.connection += more
            else:
                self.runtime.given[stream] += more
            self.sender.credit(stream, more)
        assert self.sender.blocked == 0
        for stream in (1, 3, 5, 7):
            assert self.runtime.bodies[stream] == self.sent[stream]
        assert self.runtime.ended == self.over


TestFlow = Flow.TestCase
TestFlow.settings = settings(max_examples=60, stateful_step_count=30)


def test_streams_take_turns() -> None:
    written: list[bytes] = []
    sender = Sender(lambda data: written.append(bytes(data)), lambda stream, size: None)
    sender.connection.room = 0
    for stream in (1, 3):
        sender.follow(stream)
        sender.put(stream, Chunk(memoryview(bytes(40_000)), 40_000, True, True))
    sender.credit(0, 1 << 20)
    heads = [piece[5:9] for piece in written if len(piece) == h2.HEAD_BYTES]
    assert heads == [b"\0\0\0\x01", b"\0\0\0\x03"] * 3


def test_forgotten() -> None:
    """What will never be sent is no debt; the client gets credit back for what it had counted."""
    sender = Sender(lambda data: None, lambda stream, size: None)
    sender.connection.room = 0
    sender.follow(1)
    sender.put(1, Chunk(memoryview(b"abc"), 3, False, True))
    sender.put(1, Chunk(memoryview(b"de"), 2, True, False))
    assert sender.blocked == 5
    assert sender.forget(1) == 2
    assert sender.blocked == 0
    assert sender.credit(0, 7) == 7

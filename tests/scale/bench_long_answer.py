"""What one pod with the most containers costs koordlet with each answer of the kubelet over TLS, and what of that only
the receipt costs.

Run: `python tests/scale/bench_long_answer.py [--answers 64]`. A kubelet in a process of its own sends 24,000 waiting
containers, unchanged. koordlet reads them as in a round (`KubeletClient`, uvloop, its settings of the heap). Beside it,
in turns: a TLS socket whose bytes are dropped, and aiohttp's client whose parts are dropped. CPU time of the process,
median of the answers. koordlet reads pods every 10 s; the budget is 1 ms per second.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import socket
import ssl
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import aiohttp
import uvloop

from koordlet.app.heap import bound_heap
from koordlet.statesinformer.pods.kubelet import KubeletClient
from koordlet.statesinformer.pods.kubelettls import KubeletVerification
from tests.certificates import self_signed_files
from tests.scale.bench_hostile_pod import MAX_CONTAINERS, answer
from tests.scale.figures import Figure, report

BUDGET_MS_PER_S = 1.0
PERIOD_S = 10.0
"""Between two reads of the kubelet's pods."""
ALLOWED = 3
"""Answers until the pod has no allowance for being decoded or compared; from then on it is compared once in 32."""
HOST = "127.0.0.1"
END = b"\r\n0\r\n\r\n"
RECEIVED_BYTES = 64 << 10
_NO_FILES = KubeletVerification("", Path("/nonexistent"))


def serve(folder: str, body: bytes, port: Connection) -> None:
    """A kubelet: the body as one chunk, like Go."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*self_signed_files(Path(folder), HOST))
    whole = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n" % len(body) + body + END

    def serve_one(connection: socket.socket) -> None:
        with suppress(OSError), context.wrap_socket(connection, server_side=True) as client:
            while client.recv(RECEIVED_BYTES):
                client.sendall(whole)

    with socket.create_server((HOST, 0)) as listener:
        port.send(listener.getsockname()[1])
        while True:
            threading.Thread(target=serve_one, args=(listener.accept()[0],), daemon=True).start()


async def receive_only(client: ssl.SSLSocket) -> None:
    """By a blocking socket: nothing but TLS."""
    buffer, last = bytearray(RECEIVED_BYTES), b""
    client.sendall(b"GET /pods/ HTTP/1.1\r\n\r\n")
    while last != END:
        length = client.recv_into(buffer)
        last = (last + buffer[max(0, length - len(END)) : length])[-len(END) :]


async def receive_with_aiohttp(session: aiohttp.ClientSession, url: str) -> None:
    async with session.get(f"{url}/pods/") as answer:
        async for _ in answer.content.iter_any():
            pass


async def measure(port: int, answers: int) -> list[Figure]:
    async def no_headers() -> dict[str, str]:
        return {}

    url = f"https://{HOST}:{port}"
    kubelet = KubeletClient(lambda: url, no_headers, tls=_NO_FILES, timeout=60.0)
    with _NO_FILES().wrap_socket(socket.create_connection((HOST, port))) as client:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=_NO_FILES())) as session:
            readers: dict[str, Callable[[], Awaitable[object]]] = {
                "koordlet": kubelet.pods,
                "tls_only": lambda: receive_only(client),
                "aiohttp": lambda: receive_with_aiohttp(session, url),
            }
            costs: dict[str, list[float]] = {name: [] for name in readers}
            for _ in range(ALLOWED + answers):
                for name, read in readers.items():
                    begun = time.process_time()
                    await read()
                    costs[name].append(1000 * (time.process_time() - begun))
    await kubelet.close()
    figures = [Figure(f"long_answer_{name}", statistics.median(each), "ms") for name, each in costs.items()]
    mean = statistics.fmean(costs["koordlet"][ALLOWED:])  # some answers are compared with the last one
    return [*figures, Figure("long_answer_koordlet_per_second", mean / PERIOD_S, "ms", BUDGET_MS_PER_S)]


def run(answers: int) -> list[Figure]:
    bound_heap()
    receiver, sender = multiprocessing.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as folder:
        arguments = (folder, answer({}, MAX_CONTAINERS), sender)
        server = multiprocessing.get_context("fork").Process(target=serve, args=arguments, daemon=True)
        server.start()
        try:
            port = receiver.recv()
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                return runner.run(measure(port, answers))
        finally:
            server.kill()
            server.join()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--answers", type=int, default=64)
    return report("long-answer", run(parser.parse_args().answers))


if __name__ == "__main__":
    sys.exit(main())

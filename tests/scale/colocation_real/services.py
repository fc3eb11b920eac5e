"""The services: Debian's PostgreSQL, Redis, memcached and nginx on the loopback interface, their data in a temporary
directory, and for each a client with a constant rate.

| service | request | client | latencies from |
| --- | --- | --- | --- |
| PostgreSQL | pgbench's TPC-B transaction: five statements and a commit | `pgbench --rate` | its transaction log |
| Redis | MGET of 50 values of 1 KiB | `rateclient.py` | its own clock |
| memcached | get of 50 values of 1 KiB | `rateclient.py` | its own clock |
| nginx | a file of 64 KiB | `rateclient.py` | its own clock |

Debian's clients of the last three have no constant rate (redis-benchmark, memcslap, wrk, ab), or no percentiles with
one (httperf).
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.ports import free_port
from tests.scale.colocation.client import WARM_SECONDS
from tests.scale.colocation_real import outputs

VALUES, VALUE_BYTES, PAGE_BYTES = 50, 1 << 10, 64 << 10
CONNECTIONS = 16
SCALE = 8
"""pgbench's: 100,000 accounts or 15 MiB each."""
TRANSACTION_CLIENTS = 8
ACCOUNT = "postgres"
"""PostgreSQL refuses to run as root."""
LOG = "transactions"
PACKAGES = "scripts/apt/colocation.txt"


class NotInstalled(Exception):
    """A program is missing; the message has its name and the list of packages."""


def find(program: str, *folders: Path) -> str:
    """Path of a program. Raises NotInstalled."""
    path = shutil.which(program, path=os.pathsep.join([*map(str, folders), os.environ["PATH"], "/usr/sbin"]))
    if path is None:
        raise NotInstalled(f"{program} is not installed ({PACKAGES})")
    return path


def postgres_folder() -> Path:
    """The newest version's programs. Raises NotInstalled."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    if not folders:
        raise NotInstalled(f"postgresql is not installed ({PACKAGES})")
    return folders[-1]


@dataclass
class Service:
    """One service. `place` is its directory, `port` its TCP port."""

    name: str
    rate: float
    """Requests per second."""
    place: Path = Path()
    port: int = field(default_factory=free_port)

    def prepare(self) -> list[list[str]]:
        """Commands to run before the start, in the service's cgroup."""
        return []

    def command(self) -> list[str]:
        raise NotImplementedError

    def fill(self) -> list[list[str]]:
        """Write the data that the requests read; commands to run for that."""
        return []

    def client(self, seconds: float) -> list[str]:
        arguments = (str(self.port), str(self.rate), str(seconds), str(CONNECTIONS), self.request().hex())
        return [sys.executable, "-m", "tests.scale.colocation_real.rateclient", *arguments]

    def request(self) -> bytes:
        raise NotImplementedError

    def latencies(self, text: str) -> list[float]:
        """Seconds, from what the client printed."""
        return outputs.client_latencies(text)

    def answers(self) -> bool:
        """Whether it accepts connections."""
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=5).close()
        except OSError:
            return False
        return True


class Postgres(Service):
    """Commits wait for the disk, reads for the page cache: shared buffers hold a quarter of the data."""

    def _as_account(self, command: Sequence[str]) -> list[str]:
        return ["setpriv", f"--reuid={ACCOUNT}", f"--regid={ACCOUNT}", "--init-groups", *command]

    def prepare(self) -> list[list[str]]:
        shutil.chown(self.place, ACCOUNT, ACCOUNT)
        initdb = [find("initdb", postgres_folder()), "-D", str(self.place / "data"), "--auth=trust", "--no-sync"]
        return [self._as_account(initdb)]

    def command(self) -> list[str]:
        settings = {
            "port": self.port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "shared_buffers": "32MB",
            "max_connections": 50,
        }
        options = [text for name, value in settings.items() for text in ("-c", f"{name}={value}")]
        server = find("postgres", postgres_folder())
        return self._as_account([server, "-D", str(self.place / "data"), *options])

    def _pgbench(self, *options: str) -> list[str]:
        return [
            find("pgbench", postgres_folder()),
            "-h",
            "127.0.0.1",
            "-p",
            str(self.port),
            "-U",
            ACCOUNT,
            *options,
            ACCOUNT,
        ]

    def fill(self) -> list[list[str]]:
        return [self._pgbench("--initialize", "--quiet", f"--scale={SCALE}")]

    def client(self, seconds: float) -> list[str]:
        for log in self.place.glob(f"{LOG}.*"):
            log.unlink()
        length = (f"--time={round(seconds + WARM_SECONDS)}", f"--rate={self.rate}", "--random-seed=7")
        clients = (f"--client={TRANSACTION_CLIENTS}", "--jobs=1", "--no-vacuum")
        return self._pgbench(*length, *clients, "--log", f"--log-prefix={self.place / LOG}")

    def latencies(self, text: str) -> list[float]:
        logs = [path.read_text(encoding="utf-8") for path in self.place.glob(f"{LOG}.*")]
        if not logs:
            raise outputs.OutputError("pgbench", text)
        return outputs.pgbench_latencies("".join(logs), WARM_SECONDS)


class Redis(Service):
    """In memory, without persistence."""

    def command(self) -> list[str]:
        options = ("--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", str(self.place))
        return [find("redis-server"), "--port", str(self.port), *options]

    def fill(self) -> list[list[str]]:
        pairs = [word for key in _keys() for word in (key, b"x" * VALUE_BYTES)]
        _converse(self.port, _redis(b"MSET", *pairs), b"+OK")
        return []

    def request(self) -> bytes:
        return _redis(b"MGET", *_keys())


class Memcached(Service):
    """In memory."""

    def command(self) -> list[str]:
        return [
            find("memcached"),
            "-l",
            "127.0.0.1",
            "-p",
            str(self.port),
            "-U",
            "0",
            "-u",
            "root",
            "-m",
            "64",
            "-t",
            "2",
        ]

    def fill(self) -> list[list[str]]:
        for key in _keys():
            _converse(self.port, b"set %s 0 0 %d\r\n%s\r\n" % (key, VALUE_BYTES, b"x" * VALUE_BYTES), b"STORED")
        return []

    def request(self) -> bytes:
        return b"get %s\r\n" % b" ".join(_keys())


class Nginx(Service):
    """A static file with sendfile, from the page cache."""

    def prepare(self) -> list[list[str]]:
        (self.place / "page").write_bytes(os.urandom(PAGE_BYTES))
        (self.place / "nginx.conf").write_text(
            "daemon off; user root; worker_processes 1; pid nginx.pid; error_log error.log;\n"
            "events { worker_connections 256; }\n"
            "http { access_log off; sendfile on; tcp_nopush on; keepalive_requests 1000000;\n"
            + "".join(f"{part}_temp_path {part}; " for part in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
            + f"\nserver {{ listen 127.0.0.1:{self.port}; root {self.place}; }} }}\n",
            encoding="utf-8",
        )
        return []

    def command(self) -> list[str]:
        return [find("nginx"), "-p", f"{self.place}/", "-c", str(self.place / "nginx.conf"), "-e", "stderr"]

    def request(self) -> bytes:
        return b"GET /page HTTP/1.1\r\nHost: localhost\r\n\r\n"


SERVICES = {"postgresql": Postgres, "redis": Redis, "memcached": Memcached, "nginx": Nginx}
RATES = {"postgresql": 100.0, "redis": 300.0, "memcached": 300.0, "nginx": 300.0}


def make(names: Iterable[str], scratch: Path) -> list[Service]:
    """These services, each with an own directory that other accounts can enter."""
    services: list[Service] = []
    for name in names:
        place = scratch / name
        place.mkdir(mode=0o755)
        services.append(SERVICES[name](name, RATES[name], place))
    return services


def _keys() -> list[bytes]:
    return [b"key:%d" % number for number in range(VALUES)]


def _redis(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


def _converse(port: int, request: bytes, expected: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(request)
        response = connection.recv(1 << 12)
        if not response.startswith(expected):
            raise outputs.OutputError(f"port {port}", response.decode(errors="replace"))

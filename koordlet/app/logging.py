"""Structured logs: a constant message and key=value fields.

    log = get_logger(__name__)
    log.info("Evicting pod", pod="default/web-0", reason="memory above threshold", err=error)

Text lines have klog's structured format, as other Kubernetes components:
`I0102 15:04:05.000000    1234 evict.py:41] "Evicting pod" pod="default/web-0"`. With `json=True` a line is one JSON
object. Both are written to standard error. An exception as a field is written with its chain of causes; `log.exception`
adds the traceback. A binary calls `setup` once; libraries only call `get_logger`.

Fields may contain text from outside: names, annotations, answers of other processes. They are cut to
`MAX_FIELD_CHARS`, and characters that a terminal would interpret are escaped. `once` keeps no text, only digests of its
keys; it forgets the least recently used ones, and old ones, and it limits the lines per minute, so that no sender of
ever new keys can fill memory or disk, or keep another warning from being logged. The handler limits all other lines
by the place that logs them (`koordlet.app.lograte`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import sys
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TextIO

from koordlet.api.encoding.quoting import bounded
from koordlet.app.flags import deprecated, flag
from koordlet.app.lograte import LimitedStreamHandler

_FIELDS = "koord_fields"
_MESSAGE = "koord_message"
_LETTER = {logging.DEBUG: "I", logging.INFO: "I", logging.WARNING: "W", logging.ERROR: "E", logging.CRITICAL: "F"}
DEBUG_VERBOSITY = 4
"""klog's convention: -v=4 and above are for debugging."""
MAX_FIELD_CHARS = 1000
"""Of one field: an error with its causes. Foreign texts within errors are shorter (`koordlet.api.encoding.quoting`)."""
ONCE_KEYS = 4096
"""Keys that a logger stores, at 100 bytes each."""
ONCE_EXPIRES_S = 6 * 3600.0
"""After this time a message is logged again if its cause persists."""
ONCE_PER_MINUTE = 120
"""Lines of `once` by one logger. Further messages are logged in a later minute if they occur again."""


@dataclasses.dataclass
class LoggingOptions:
    """Flags of all binaries, as a base class. klog's other flags are accepted and have no effect."""

    v: int = flag(0, "verbosity; 4 and above log debug messages")
    logging_format: str = flag("text", "text or json", choices=("text", "json"))
    logtostderr: bool = flag(True, "no effect", deprecated="logs always go to standard error")
    alsologtostderr: bool = flag(False, "no effect", deprecated="see logtostderr")
    stderrthreshold: str = flag("INFO", "no effect", deprecated="see logtostderr")
    vmodule: str = flag("", "no effect", deprecated="use -v")
    log_dir: str = flag("", "no effect", deprecated="see logtostderr")
    log_file: str = flag("", "no effect", deprecated="see logtostderr")
    log_file_max_size: int = flag(1800, "no effect", deprecated="see logtostderr")
    one_output: bool = flag(False, "no effect", deprecated="see logtostderr")
    add_dir_header: bool = flag(False, "no effect", deprecated="lines have a fixed format")
    skip_headers: bool = flag(False, "no effect", deprecated="lines have a fixed format")
    skip_log_headers: bool = flag(False, "no effect", deprecated="see logtostderr")
    log_backtrace_at: str = flag(":0", "no effect", deprecated="errors are logged with their cause")


class Logger:
    """A wrapper of a standard-library logger with fields as keyword arguments."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._once = OnceKeys()

    def debug(self, message: str, **fields: Any) -> None:
        self._log(logging.DEBUG, message, fields)

    def info(self, message: str, **fields: Any) -> None:
        self._log(logging.INFO, message, fields)

    def warning(self, message: str, **fields: Any) -> None:
        self._log(logging.WARNING, message, fields)

    def error(self, message: str, **fields: Any) -> None:
        self._log(logging.ERROR, message, fields)

    def exception(self, message: str, **fields: Any) -> None:
        """An error with the traceback of the exception being handled."""
        self._log(logging.ERROR, message, fields, exc_info=True)

    def once(self, key: str, message: str, **fields: Any) -> None:
        """Log a warning once per `key` and process: for features that stay degraded. See the module for its bounds."""
        if self._once.is_new(key):
            self._log(logging.WARNING, message, fields)

    def _log(self, level: int, message: str, fields: dict[str, Any], exc_info: bool = False) -> None:
        if self._logger.isEnabledFor(level):
            extra = {_FIELDS: fields, _MESSAGE: message}
            self._logger.log(
                level, "%s%s", message, _Fields(fields), extra=extra, exc_info=exc_info or None, stacklevel=3
            )


class OnceKeys:
    """Which keys were logged, within the bounds of the module's docstring."""

    def __init__(
        self,
        *,
        keys: int = ONCE_KEYS,
        expires: float = ONCE_EXPIRES_S,
        per_minute: int = ONCE_PER_MINUTE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_keys = keys
        self._expires = expires
        self._per_minute = per_minute
        self._clock = clock
        self._logged_at: OrderedDict[bytes, float] = OrderedDict()
        self._minute = (0, 0)
        """Number of the minute, and the lines in it."""

    def is_new(self, key: str) -> bool:
        """Whether a message with this key is to be logged now; it then counts as logged."""
        digest = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=12).digest()
        now = self._clock()
        logged_at = self._logged_at.get(digest)
        if logged_at is not None:
            self._logged_at.move_to_end(digest)
            if now - logged_at < self._expires:
                return False
        minute = int(now // 60)
        lines = self._minute[1] if self._minute[0] == minute else 0
        if lines >= self._per_minute:
            return False
        self._minute = minute, lines + 1
        self._logged_at[digest] = now
        self._logged_at.move_to_end(digest)
        if len(self._logged_at) > self._max_keys:
            self._logged_at.popitem(last=False)
        return True

    def __len__(self) -> int:
        return len(self._logged_at)


class _Fields(dict[str, Any]):
    """The fields of a record as ` key=value…`, so that other handlers show them, too."""

    def __str__(self) -> str:
        return "".join(f" {key}={_text(value)}" for key, value in self.items())


_loggers: dict[str, Logger] = {}


def get_logger(name: str) -> Logger:
    """The logger of a module; the same object for the same name, so that `once` applies to the process."""
    logger = _loggers.get(name)
    if logger is None:
        logger = _loggers[name] = Logger(logging.getLogger(name))
    return logger


def begin(options: LoggingOptions) -> None:
    """Set up logging according to the flags, and log the set flags that have no effect."""
    setup(options.v, json=options.logging_format == "json")
    for name, reason in deprecated(options).items():
        get_logger(__name__).warning("Flag without effect", flag=f"--{name}", reason=reason)


def setup(verbosity: int = 0, *, json: bool = False, stream: TextIO | None = None) -> logging.Handler:
    """Write the process's logs to `stream` (standard error): INFO and above, from verbosity 4 also DEBUG."""
    handler = LimitedStreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if json else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.DEBUG if verbosity >= DEBUG_VERBOSITY else logging.INFO)
    for chatty in ("asyncio", "aiohttp.access"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    logging.captureWarnings(True)
    return handler


def describe(error: BaseException) -> str:
    """`KubeError: cannot list pods: ConnectionRefusedError: …`: an exception with its chain of causes."""
    parts: list[str] = []
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        text = str(current)
        parts.append(f"{type(current).__name__}: {text}" if text else type(current).__name__)
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return "; caused by ".join(parts)


class TextFormatter(logging.Formatter):
    """klog's structured text; values are quoted unless they are numbers or bools."""

    def format(self, record: logging.LogRecord) -> str:
        at = time.localtime(record.created)
        head = (
            f"{_LETTER.get(record.levelno, 'I')}{at.tm_mon:02d}{at.tm_mday:02d} "
            f"{at.tm_hour:02d}:{at.tm_min:02d}:{at.tm_sec:02d}.{int(record.created % 1 * 1e6):06d} "
            f"{record.process or 0:>7} {record.filename}:{record.lineno}]"
        )
        fields = _Fields(getattr(record, _FIELDS, {}))
        line = f"{head} {_quote(_message(record))}{fields}"
        if record.exc_info and record.exc_info[1] is not None:
            line += "\n" + self.formatException(record.exc_info)
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object per line: ts (seconds), level, logger, caller, msg, then the fields; a field with one of these
    five names gets a leading `_`."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "ts": round(record.created, 6),
            "level": record.levelname.lower(),
            "logger": record.name,
            "caller": f"{record.filename}:{record.lineno}",
            "msg": _message(record),
        }
        for key, value in getattr(record, _FIELDS, {}).items():
            line[f"_{key}" if key in line else key] = _plain(value)
        if record.exc_info and record.exc_info[1] is not None:
            line["stacktrace"] = self.formatException(record.exc_info)
        return _escaped(json.dumps(line, ensure_ascii=False, default=str))


def _message(record: logging.LogRecord) -> str:
    message = getattr(record, _MESSAGE, None)
    return record.getMessage() if message is None else str(message)


def _plain(value: Any) -> Any:
    value = describe(value) if isinstance(value, BaseException) else value
    return bounded(value, MAX_FIELD_CHARS) if isinstance(value, str) else value


def _text(value: Any) -> str:
    value = _plain(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return str(value)
    return _quote(value if isinstance(value, str) else bounded(str(value), MAX_FIELD_CHARS))


def _quote(text: str) -> str:
    return _escaped(json.dumps(text, ensure_ascii=False))


def _escaped(text: str) -> str:
    """JSON with the characters escaped that JSON allows and a terminal interprets, such as text-direction marks."""
    return text if text.isprintable() else "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text)

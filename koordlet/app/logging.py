"""Structured logs: a message that never changes and key=value facts beside it.

    log = get_logger(__name__)
    log.info("Evicting pod", pod="default/web-0", reason="memory above threshold", err=error)

Text lines follow klog's structured form, which people who read Kubernetes logs know how to grep:
`I0102 15:04:05.000000    1234 evict.py:41] "Evicting pod" pod="default/web-0"`. With `json=True` a line is
one JSON object. Both go to standard error. An exception given as a field is written with its chain of causes;
`log.exception` adds the traceback. `setup` is called once by a binary; libraries only call `get_logger`.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import sys
import time
from typing import Any, TextIO

from koordlet.app.flags import deprecated, flag

_FIELDS = "koord_fields"
_MESSAGE = "koord_message"
_LETTER = {logging.DEBUG: "I", logging.INFO: "I", logging.WARNING: "W", logging.ERROR: "E", logging.CRITICAL: "F"}
DEBUG_VERBOSITY = 4
"""klog convention: from -v=4 on one wants debugging detail."""
_ONCE_LIMIT = 4096


@dataclasses.dataclass
class LoggingOptions:
    """Flags that every binary takes; inherit from it. klog's remaining flags are accepted and have no effect."""

    v: int = flag("v", 0, "verbosity; from 4 on debugging detail is logged")
    logging_format: str = flag("logging-format", "text", "text or json", choices=("text", "json"))
    logtostderr: bool = flag("logtostderr", True, "no effect", deprecated="logs always go to standard error")
    alsologtostderr: bool = flag("alsologtostderr", False, "no effect", deprecated="see logtostderr")
    stderrthreshold: str = flag("stderrthreshold", "INFO", "no effect", deprecated="see logtostderr")
    vmodule: str = flag("vmodule", "", "no effect", deprecated="use -v")
    log_dir: str = flag("log-dir", "", "no effect", deprecated="see logtostderr")
    log_file: str = flag("log-file", "", "no effect", deprecated="see logtostderr")
    log_file_max_size: int = flag("log-file-max-size", 1800, "no effect", deprecated="see logtostderr")
    one_output: bool = flag("one-output", False, "no effect", deprecated="see logtostderr")
    add_dir_header: bool = flag("add-dir-header", False, "no effect", deprecated="lines have one form")
    skip_headers: bool = flag("skip-headers", False, "no effect", deprecated="lines have one form")
    skip_log_headers: bool = flag("skip-log-headers", False, "no effect", deprecated="see logtostderr")
    log_backtrace_at: str = flag("log-backtrace-at", ":0", "no effect", deprecated="errors come with their cause")


class Logger:
    """A thin face on a stdlib logger that takes facts as keyword arguments; `bind` fixes some of them."""

    def __init__(self, logger: logging.Logger, fields: dict[str, Any] | None = None) -> None:
        self._logger = logger
        self._fields = fields or {}
        self._said: set[str] = set()

    def bind(self, **fields: Any) -> Logger:
        """A logger that adds `fields` to every record."""
        return Logger(self._logger, {**self._fields, **fields})

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
        """A warning said once per `key` and process: for features that stay degraded."""
        if key not in self._said and len(self._said) < _ONCE_LIMIT:
            self._said.add(key)
            self._log(logging.WARNING, message, fields)

    def enabled(self, level: int) -> bool:
        return self._logger.isEnabledFor(level)

    def _log(self, level: int, message: str, fields: dict[str, Any], exc_info: bool = False) -> None:
        if self._logger.isEnabledFor(level):
            merged = {**self._fields, **fields}
            extra = {_FIELDS: merged, _MESSAGE: message}
            self._logger.log(
                level, "%s%s", message, _Facts(merged), extra=extra, exc_info=exc_info or None, stacklevel=3
            )


class _Facts(dict[str, Any]):
    """The facts of a record as ` key=value…`, so that handlers other than ours show them too."""

    def __str__(self) -> str:
        return "".join(f" {key}={_text(value)}" for key, value in self.items())


_loggers: dict[str, Logger] = {}


def get_logger(name: str) -> Logger:
    """The logger of a module; the same object for the same name, so that `once` holds for the process."""
    logger = _loggers.get(name)
    if logger is None:
        logger = _loggers[name] = Logger(logging.getLogger(name))
    return logger


def begin(options: LoggingOptions) -> None:
    """Log as a command line says, and name the flags on it that have no effect."""
    setup(options.v, json=options.logging_format == "json")
    for name, reason in deprecated(options).items():
        get_logger(__name__).warning("flag without effect", flag=f"--{name}", reason=reason)


def setup(verbosity: int = 0, *, json: bool = False, stream: TextIO | None = None) -> logging.Handler:
    """Send the process's logs to `stream` (standard error): INFO and above, DEBUG from verbosity 4 on."""
    handler = logging.StreamHandler(stream or sys.stderr)
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
        facts = _Facts(getattr(record, _FIELDS, {}))
        line = f"{head} {_quote(_message(record))}{facts}"
        if record.exc_info and record.exc_info[1] is not None:
            line += "\n" + self.formatException(record.exc_info)
        return line


class JsonFormatter(logging.Formatter):
    """One object a line: ts (seconds), level, logger, caller, msg, then the facts; a fact never hides those five."""

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
        return json.dumps(line, ensure_ascii=False, default=str)


def _message(record: logging.LogRecord) -> str:
    message = getattr(record, _MESSAGE, None)
    return record.getMessage() if message is None else str(message)


def _plain(value: Any) -> Any:
    return describe(value) if isinstance(value, BaseException) else value


def _text(value: Any) -> str:
    value = _plain(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return str(value)
    return _quote(value if isinstance(value, str) else str(value))


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)

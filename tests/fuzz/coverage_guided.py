"""The parsers of tenant input with Atheris: inputs that reach new lines are kept and changed further.

    build/fuzz/venv/bin/python -m tests.fuzz.coverage_guided --seconds=10 [NAME ...]     10 s per parser
    build/fuzz/venv/bin/python -m tests.fuzz.coverage_guided --inputs=10000 [NAME ...]   10,000 inputs per parser,
                                                                                        from the same seed

Each parser has a process of its own, because Atheris ends it. It is forked: loading and instrumenting the parsers takes
two seconds of CPU time. Inputs stay in build/fuzz/corpus. A parser that raises another error than its own, or needs
more than TIMEOUT_S for an input, has failed; the input is in the output and in build/fuzz.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path

import atheris

PACKAGES = ["control", "koordlet", "runtimeproxy"]
with redirect_stderr(StringIO()), atheris.instrument_imports(include=PACKAGES):  # it lists every module
    from tests.fuzz.parsers import PARSERS, Parser

ROOT = Path(__file__).resolve().parents[2]
PLACE = ROOT / "build/fuzz"
TIMEOUT_S = 10
LONGEST_INPUT = 4096
BROKEN = Parser(int, (), ("x",), ("9",))
"""Raises ValueError, which must be found."""


def run(parser: Parser, data: bytes) -> None:
    """One input, as text with lone surrogates."""
    text = atheris.FuzzedDataProvider(data).ConsumeUnicode(LONGEST_INPUT)
    try:
        parser.parse(text)
    except parser.errors:
        return


def fuzz(name: str, parser: Parser, limit: str) -> None:
    """Does not return: libFuzzer ends the process."""
    corpus = PLACE / "corpus" / re.sub(r"\W+", "-", name)
    corpus.mkdir(parents=True, exist_ok=True)
    for number, text in enumerate((*parser.corpus, *(part * 50 for part in parser.repeated))):
        # a first byte of 1 makes ConsumeUnicode take one byte per character
        (corpus / f"seed-{number}").write_bytes(b"\x01" + text.encode("latin-1", errors="replace"))
    limits = [*limit.split(), f"-timeout={TIMEOUT_S}", f"-max_len={LONGEST_INPUT}", "-rss_limit_mb=2048"]
    arguments = [sys.argv[0], *limits, f"-artifact_prefix={PLACE}/{corpus.name}-", "-print_final_stats=1", str(corpus)]
    atheris.Setup(arguments, lambda data: run(parser, data))
    atheris.Fuzz()


def fuzz_apart(name: str, parser: Parser, limit: str) -> tuple[int, str]:
    """In a child process: (exit status, output)."""
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        child = os.fork()
        if child == 0:
            for stream in (sys.stdout, sys.stderr):
                os.dup2(output.fileno(), stream.fileno())
            fuzz(name, parser, limit)
        _, status = os.waitpid(child, 0)
        output.seek(0)
        return os.waitstatus_to_exitcode(status), output.read()


def main() -> int:
    parser = argparse.ArgumentParser()
    limit = parser.add_mutually_exclusive_group(required=True)
    limit.add_argument("--seconds", dest="limit", type="-max_total_time={}".format)
    limit.add_argument("--inputs", dest="limit", type="-runs={} -seed=1".format)
    parser.add_argument("names", nargs="*", metavar="NAME")
    options = parser.parse_args()
    status, output = fuzz_apart("broken", BROKEN, options.limit)
    assert status and "ValueError" in output, f"a parser that raises was not found: {output[-4000:]}"
    failed = 0
    for name in options.names or PARSERS:
        status, output = fuzz_apart(name, PARSERS[name], options.limit)
        counts = re.findall(r"stat::number_of_executed_units: (\d+)", output)
        print(f"{name}: {counts[-1] if counts else '?'} inputs, {'FAILED' if status else 'ok'}", flush=True)
        if status:
            failed = 1
            print(output[-4000:], flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())

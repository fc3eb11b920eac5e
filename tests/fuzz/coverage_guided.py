"""The parsers of tenant input with Atheris: inputs that reach new lines are kept and changed further.

    build/fuzz/venv/bin/python -m tests.fuzz.coverage_guided SECONDS        every parser, so long each
    build/fuzz/venv/bin/python -m tests.fuzz.coverage_guided SECONDS NAME   one parser

Part of `make fuzz`; each parser is a process of its own, because Atheris ends it. Inputs stay in build/fuzz/corpus. A
parser that raises another error than its own, or needs more than TIMEOUT_S, ends the run with a file of the input.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["control", "koordlet"]):
    from tests.fuzz.parsers import PARSERS, Parser

ROOT = Path(__file__).resolve().parents[2]
PLACE = ROOT / "build/fuzz"
TIMEOUT_S = 10
LONGEST_INPUT = 4096


def run(parser: Parser, data: bytes) -> None:
    """One input, as text with lone surrogates."""
    text = atheris.FuzzedDataProvider(data).ConsumeUnicode(LONGEST_INPUT)
    try:
        parser.parse(text)
    except parser.errors:
        return


def fuzz(name: str, seconds: int) -> None:
    """Does not return: libFuzzer ends the process."""
    parser = PARSERS[name]
    corpus = PLACE / "corpus" / re.sub(r"\W+", "-", name)
    corpus.mkdir(parents=True, exist_ok=True)
    for number, text in enumerate((*parser.corpus, *(part * 50 for part in parser.repeated))):
        # a first byte of 1 makes ConsumeUnicode take one byte per character
        (corpus / f"seed-{number}").write_bytes(b"\x01" + text.encode("latin-1", errors="replace"))
    limits = [f"-max_total_time={seconds}", f"-timeout={TIMEOUT_S}", f"-max_len={LONGEST_INPUT}", "-rss_limit_mb=2048"]
    arguments = [sys.argv[0], *limits, f"-artifact_prefix={PLACE}/{corpus.name}-", "-print_final_stats=1", str(corpus)]
    atheris.Setup(arguments, lambda data: run(parser, data))
    atheris.Fuzz()


def main(argv: list[str]) -> int:
    seconds, *names = argv
    if names:
        fuzz(names[0], int(seconds))
    failed = []
    for name in PARSERS:
        command = [sys.executable, "-m", "tests.fuzz.coverage_guided", seconds, name]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        counts = re.findall(r"stat::number_of_executed_units: (\d+)", done.stderr)
        print(
            f"{name}: {counts[-1] if counts else '?'} inputs, {'ok' if done.returncode == 0 else 'FAILED'}", flush=True
        )
        if done.returncode:
            failed.append(name)
            print(done.stderr[-4000:], file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

#!/usr/bin/env python3
"""`make bench`: every benchmark in tests/scale, sequentially.

    scripts/bench.py [NAME ...]     only benchmarks whose name contains one of the words

Each prints `name value unit budget ok|over|unclear` lines and writes them to build/bench/<name>.json. Exit status 1 if
a budget is exceeded or unclear (the value is closer to it than two equal measurements of that run are to each other),
or a benchmark failed.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    words = sys.argv[1:]
    available = sorted((ROOT / "tests/scale").glob("bench_*.py"))
    chosen = [path for path in available if not words or any(word in path.stem for word in words)]
    if not chosen:
        print(f"no benchmark matches {words}; there are: {', '.join(p.stem.removeprefix('bench_') for p in available)}")
        return 2
    failed = []
    for path in chosen:
        print(f"# {path.stem.removeprefix('bench_')}", flush=True)
        began = time.monotonic()
        if subprocess.run([sys.executable, str(path)], cwd=ROOT, check=False).returncode:
            failed.append(path.stem.removeprefix("bench_"))
        print(f"# took {time.monotonic() - began:.0f} s", flush=True)
    if failed:
        print(f"# over budget or failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

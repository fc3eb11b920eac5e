#!/usr/bin/env bash
# Every test; then once more, aloud, what failed and measures this machine. Arguments go to pytest.
# A test that drives the kernel, a runtime or a cluster shares its CPUs with strangers: failing once may be theirs, failing
# twice in a row is a finding. Pure tests get no second chance, nor does the guest, which has its own, nor more than MANY.
set -uo pipefail
cd "$(dirname "$0")/.."
MANY=8
MEASURING="(kernel or runtime or kubectl or e2e) and not guest"
pytest=(build/venv/bin/python -m pytest ${CI:+-p tests.no_skips})
"${pytest[@]}" "$@" && exit 0
status=$?
[ $status = 1 ] || exit $status
again=(--last-failed --last-failed-no-failures=none)
pure=$("${pytest[@]}" "${again[@]}" -m "not ($MEASURING)" --collect-only -q "$@" | grep -c "::")
failed=$("${pytest[@]}" "${again[@]}" --collect-only -q "$@" | grep -c "::")
if [ "$pure" != 0 ] || [ "$failed" -gt $MANY ]; then
  echo "run_tests: $failed failed, $pure of them pure or in the guest: no second chance"
  exit 1
fi
echo "run_tests: second chance for $failed tests that measure this machine; the first failures are above"
"${pytest[@]}" "${again[@]}" "$@"

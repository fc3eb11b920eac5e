#!/usr/bin/env bash
# Every check and every test; then once more, aloud, what failed and is not all our own. Arguments go to pytest.
# The guest, one emulated machine, is busy for a quarter of an hour. Beside it runs, giving way to it, what measures
# nothing: lint, pure tests, tests of runtimes and stock tools. What measures this machine runs alone, when all that has
# ended (tests/stages.py tells which is which).
# A test that drives the kernel, a runtime or a cluster shares its CPUs with strangers: failing once may be theirs, failing
# twice in a row is a finding. Pure tests get no second chance, nor does the guest, which has its own, nor failures in more
# than MANY files (what all tests of a file share may fail once, too).
set -uo pipefail
cd "$(dirname "$0")/.."
MANY=5
PASSED=0 FAILED=1 NONE=5 # pytest's statuses; NONE: arguments select no test of that stage
logs=build/tests
guest=""

say() { echo "run_tests: $*, $SECONDS s"; }
fine() { [ "$1" = $PASSED ] || [ "$1" = $NONE ]; }
stage() {
  ${gently-} build/venv/bin/python -m pytest -p tests.stages ${CI:+-p tests.no_skips} \
    --stage="$1" -o cache_dir="$logs/cache-$1" "${@:2}"
}
end_guest() {
  [ -z "$guest" ] || { kill -TERM -- "-$guest" && wait "$guest"; } 2>/dev/null
}
trap end_guest EXIT
trap 'exit 130' INT TERM

mkdir -p $logs
set -m # a process group of its own, which ends as a whole
stage guest -s "$@" </dev/null >$logs/guest.log 2>&1 &
guest=$!
set +m
say "the guest boots and writes $logs/guest.log; lint"
gently="nice -n 10"
$gently make --no-print-directory lint || { say "lint failed"; exit 1; }
say "pure tests"
stage pure "$@"
pure=$?
say "tests of runtimes and tools"
stage tools "$@"
tools=$?
gently=""
say "waiting for the guest"
wait "$guest"
booted=$?
guest=""
cat $logs/guest.log
say "tests that measure this machine"
stage measuring "$@"
measuring=$?
say "ended with pure $pure, tools $tools, guest $booted, measuring $measuring"

[ "$pure $tools $booted $measuring" != "$NONE $NONE $NONE $NONE" ] || exit $NONE
for status in $measuring $tools $booted $pure; do
  fine $status || [ $status = $FAILED ] || exit $status # interrupted, or pytest itself failed
done
again=(--last-failed --last-failed-no-failures=none)
files=0 repeat=()
for one in tools measuring; do
  fine "${!one}" && continue
  repeat+=("$one")
  files=$((files + $(stage "$one" "${again[@]}" --collect-only -q "$@" | sed -n 's/::.*//p' | sort -u | wc -l)))
done
if ! fine $pure || ! fine $booted || [ $files -gt $MANY ]; then
  say "tests of $files files failed, or tests that are pure or in the guest did: no second chance"
  exit 1
fi
for one in ${repeat[@]+"${repeat[@]}"}; do
  say "second chance for tests of $files files, those of stage $one now; the first failures are above"
  stage "$one" "${again[@]}" "$@" || exit $?
done

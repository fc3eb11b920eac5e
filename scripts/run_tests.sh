#!/usr/bin/env bash
# Every check and every test; then once more, aloud, what failed and is not all our own. Arguments go to pytest.
# The guest, one emulated machine, is busy for a quarter of an hour. Beside it runs, giving way to it, what measures
# nothing: lint, pure tests, tests of runtimes and stock tools. What measures this machine runs alone, when all that has
# ended (tests/stages.py tells which is which).
# A test that drives the kernel, a runtime or a cluster shares its CPUs with strangers: failing once may be theirs, failing
# twice in a row is a finding. The guest gets no second chance, it has its own, nor do failures in more than MANY files
# (what all tests of a file share may fail once, too). A pure test has no such excuse: at most FEW may have failed by
# accident, each then has to pass TIMES times in a row and is told at the end. Properties do not get away so: hypothesis
# tries again what failed, from its database, or in CI because it tries the same every time.
# A test that hangs is ended by pytest (pyproject.toml); all of it ends after LIMIT seconds, whatever hangs.
set -uo pipefail
cd "$(dirname "$0")/.."
MANY=5 FEW=3 TIMES=5 LIMIT=${KOORD_TEST_LIMIT:-2400}
PASSED=0 FAILED=1 NONE=5 # pytest's statuses; NONE: arguments select no test of that stage
logs=build/tests
guest=""

say() { echo "run_tests: $*, $SECONDS s"; }
fine() { [ "$1" = $PASSED ] || [ "$1" = $NONE ]; }
limited() {
  local left=$((LIMIT - SECONDS)) # timeout takes 0 for no limit; INT lets fixtures end what they began
  timeout --foreground -s INT -k 30 $((left > 0 ? left : 1)) ${gently-} "$@"
}
stage() {
  limited build/venv/bin/python -m pytest -p tests.stages ${CI:+-p tests.no_skips} \
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
limited make --no-print-directory lint || { say "lint failed"; exit 1; }
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
[ $SECONDS -lt "$LIMIT" ] || say "the limit of $LIMIT s is over: something hung, or all of it was slow"
for status in $measuring $tools $booted $pure; do
  fine $status || [ $status = $FAILED ] || exit $status # interrupted, or pytest itself failed
done
again=(--last-failed --last-failed-no-failures=none)
failed() { stage "$1" "${again[@]}" --collect-only -q "${@:2}" | grep ::; }
files=0 repeat=() accidents=()
for one in tools measuring; do
  fine "${!one}" && continue
  repeat+=("$one")
  files=$((files + $(failed "$one" "$@" | sed 's/::.*//' | sort -u | wc -l)))
done
fine $pure || mapfile -t accidents < <(failed pure "$@")
known=${#accidents[@]}
if [ $known -gt $FEW ] || ! { fine $pure || [ $known -gt 0 ]; } || ! fine $booted || [ $files -gt $MANY ]; then
  say "$known pure tests failed, tests of $files other files, or tests in the guest: no second chance"
  exit 1
fi
for one in ${accidents[@]+"${accidents[@]}"}; do
  for ((i = 1; i <= TIMES; i++)); do
    stage pure "$one" || { say "$one failed twice"; exit 1; }
  done
done
for one in ${repeat[@]+"${repeat[@]}"}; do
  say "second chance for tests of $files files, those of stage $one now; the first failures are above"
  stage "$one" "${again[@]}" "$@" || exit $?
done
for one in ${accidents[@]+"${accidents[@]}"}; do
  say "$one failed once, then passed $TIMES times: mend it"
done

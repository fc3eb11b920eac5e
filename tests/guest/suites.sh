#!/bin/sh
# Inside the guest: every kernel suite that must hold on cgroup v2 and kernel 6.1 as on this machine. One JUnit file a
# suite in $GUEST_OUT. Called by tests/guest/test_guest.py through scripts/guest.py.
status=0
suite() {
  name=$1
  shift
  echo "guest: suite $name"
  python -m pytest -p no:cacheprovider -m kernel --junit-xml="$GUEST_OUT/$name.xml" "$@" || status=1
}
echo "guest: $(uname -r), $(stat -fc %T /sys/fs/cgroup)"
suite probes tests/koordlet/probes
KOORD_TEST_PROBES=bcc suite bcc tests/koordlet/probes/test_sched_latency_kernel.py
suite system tests/koordlet/system
exit $status

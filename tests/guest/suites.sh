#!/bin/sh
# Inside the guest: what must hold on cgroup v2 and kernel 6.1 as on this machine. One JUnit file a suite in $GUEST_OUT.
# Called by tests/guest/test_guest.py through scripts/guest.py. One pytest a suite: starting Python takes half a minute
# here, so files are named and nothing else is collected. What fails gets a second chance, said aloud: an emulated CPU that
# stalls for a moment is no finding, a test that fails twice in a row is.
status=0
suite() {
  name=$1
  shift
  echo "guest: suite $name, $(cut -d. -f1 /proc/uptime) s after boot"
  cache="cache_dir=$GUEST_OUT/cache-$name"
  python -m pytest -o "$cache" -m kernel --durations=10 --junit-xml="$GUEST_OUT/$name.xml" "$@" && return
  echo "guest: suite $name failed; once more what failed"
  python -m pytest -o "$cache" -m kernel --lf --lfnf=none --junit-xml="$GUEST_OUT/$name.xml" "$@" || status=1
}
echo "guest: $(uname -r), $(stat -fc %T /sys/fs/cgroup)"
suite kernel \
  tests/koordlet/probes/test_sched_latency_kernel.py \
  tests/koordlet/probes/test_probe_lifecycle_kernel.py \
  tests/koordlet/probes/test_mem_stall_kernel.py \
  tests/koordlet/probes/guest_mem_stall.py \
  tests/koordlet/probes/test_cgroup_stats_kernel.py \
  tests/koordlet/probes/test_block_io_kernel.py \
  tests/koordlet/probes/test_net_stall_kernel.py \
  tests/koordlet/system/test_kernel_cgroups.py \
  tests/koordlet/system/test_host.py \
  tests/koordlet/system/cgroup/test_discover.py \
  tests/koordlet/statesinformer/test_pleg.py \
  tests/koordlet/process/test_koordlet_figures.py
KOORD_TEST_PROBES=bcc suite bcc tests/koordlet/probes/test_sched_latency_kernel.py
echo "guest: done $(cut -d. -f1 /proc/uptime) s after boot"
exit $status

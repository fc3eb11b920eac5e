#!/bin/sh
# Runs inside the guest: the kernel tests that must also pass on cgroup v2 and kernel 6.1. tests/guest/test_guest.py calls
# it through scripts/guest.py with the names of the suites to run. Each suite writes NAME.xml (JUnit) and NAME.end
# (pytest's exit status; 124 after a time-out) to $GUEST_OUT. Each suite is one pytest process that names its files,
# because starting Python takes half a minute here. A suite that hangs is interrupted after LIMIT seconds with a
# traceback, and the next suite begins.
T=tests/koordlet
status=0
wanted=" $* "
suite() {
  name=$1 limit=$2
  shift 2
  case $wanted in *" $name "*) ;; *) return ;; esac
  echo "guest: suite $name, $(cut -d. -f1 /proc/uptime) s after boot"
  pytest="timeout --signal=INT --kill-after=60 $limit python -m pytest -m kernel --durations=10"
  pytest="$pytest -o cache_dir=$GUEST_OUT/cache-$name --junit-xml=$GUEST_OUT/$name.xml"
  $pytest "$@"
  end=$?
  [ $end != 124 ] || echo "guest: suite $name exceeded its limit of $limit s; the traceback above shows where it was"
  echo $end >"$GUEST_OUT/$name.end"
  [ $end = 0 ] || status=1
}
echo "guest: $(uname -r), $(stat -fc %T /sys/fs/cgroup)"
# Of the loader what depends on the kernel's programs and links; the rest of that file is the same everywhere.
lifecycle=$T/probes/test_probe_lifecycle_kernel.py
suite sched 650 \
  $T/probes/test_sched_latency_kernel.py \
  $lifecycle::test_a_killed_loader_loses_no_count \
  $lifecycle::test_a_loader_killed_half_way_is_finished_by_the_next \
  $lifecycle::test_full_tables_report_what_they_lose
suite stalls 720 \
  $T/probes/guest_mem_stall.py \
  $T/probes/guest_swapin.py \
  $T/probes/test_mem_stall_kernel.py \
  $T/probes/test_block_io_kernel.py \
  $T/probes/test_net_stall_kernel.py \
  $T/probes/guest_node_stalls.py # the last: it empties the page cache
modprobe -a loop dm_mod # this machine has no device-mapper: the guest alone shows volumes
# One naming driver: on cgroup v2 that is nearly always systemd's, and names are the same on both.
suite cgroups 650 -k "not cgroupfs" \
  $T/probes/test_cgroup_stats_kernel.py \
  $T/system/test_kernel_cgroups.py \
  $T/system/test_host.py \
  $T/system/cgroup/test_tree.py \
  $T/system/test_storage.py \
  $T/statesinformer/test_pleg.py \
  $T/runtimehooks/test_cpu_sets_kernel.py \
  $T/resourceexecutor/test_block_settings_kernel.py \
  $T/qosmanager/guest_memory.py \
  $T/process/test_koordlet_figures.py
# Every file of every group, with all features on and a reserved CPU, and after a stop.
every=$T/process/test_every_setting.py
suite settings 450 "$every::test_every_file_of_every_group_has_the_value_of_the_table[reserved-cpu]" \
  $every::test_a_stop_leaves_what_the_kubelet_had_set
# Compiling takes minutes here; then the tests that hold the other variant to the kernel's own figures.
latency=$T/probes/test_sched_latency_kernel.py
KOORD_TEST_PROBES=bcc suite bcc 450 \
  $latency::test_noisy_neighbour_is_named_and_the_wait_is_the_kernels \
  $latency::test_all_waiting_is_charged_to_a_culprit \
  $latency::test_quota_throttling_is_not_contention \
  $latency::test_a_sleepers_waits_are_the_kernels_and_idle_cpus_are_culprits \
  $latency::test_waiting_survives_a_move_to_another_cpu
# By hand only: koordlet under its AppArmor profile.
case $wanted in *" apparmor "*) apparmor_parser -r -K -I tests/guest deploy/koordlet-apparmor/koordlet ;; esac
KOORD_TEST_APPARMOR=koordlet suite apparmor 900 \
  $T/process/guest_apparmor.py \
  "$every::test_every_file_of_every_group_has_the_value_of_the_table[reserved-cpu]" \
  $every::test_a_stop_leaves_what_the_kubelet_had_set
echo "guest: done $(cut -d. -f1 /proc/uptime) s after boot"
exit $status

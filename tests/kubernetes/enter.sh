#!/bin/bash
# Runs a command in mount, network and process namespaces of its own, for a real cluster on this machine: enter.sh FOLDER COMMAND...
# The command sees this machine's files; what it writes to /etc and /var stays in FOLDER, /run is empty. The network is
# loopback and one bridge. When the command or this script ends, by whatever means, all processes and mounts are gone.
set -euo pipefail
if [ -z "${KOORD_ENTERED:-}" ]; then
  KOORD_ENTERED=1 exec unshare --mount --net --pid --fork --kill-child --mount-proc "$0" "$@"
fi
folder=$(realpath "$1")
shift
mount --make-rprivate /
for name in etc var; do
  mkdir -p "$folder/$name" "$folder/.$name-work"
  mount -t overlay overlay -o "lowerdir=/$name,upperdir=$folder/$name,workdir=$folder/.$name-work" "/$name"
done
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/netns /run/lock
for name in containerd kubelet; do # containerd's overlays need a file system that is not an overlay itself
  mkdir -p "$folder/$name" "/var/lib/$name"
  mount --bind "$folder/$name" "/var/lib/$name"
done
mkdir -p /etc/runtime/hookserver.d /etc/cni/net.d /var/lib/cni /var/run/koordlet
mount --make-rshared / # koordlet's DaemonSet propagates mounts to the node
ip link set lo up
ip link add name node0 type bridge # an address that is not on loopback, for the API server to advertise
ip address add 10.88.0.1/24 dev node0
ip link set node0 up
ip route add default via 10.88.0.254 dev node0
echo 1 >/proc/sys/net/ipv4/ip_forward
if [ -t 0 ]; then # a module that may open a shell: it stays in the terminal's foreground
  trap : INT
  "$@"
  exit
fi
set -m # without job control, the child would ignore INT
"$@" & # bash stays process 1 and reaps the orphans of container shims
child=$!
trap 'kill -INT $child' INT TERM
status=0
while kill -0 $child 2>/dev/null; do # a signal ends `wait`
  status=0
  wait $child || status=$?
done
exit $status

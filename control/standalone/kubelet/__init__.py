"""A stand-in for the kubelet: runs the pods of this machine as containers, or as plain processes in the same cgroups.

It makes a machine a Node of the API server: the Node object, its lease, pods with statuses, probes, restarts and
graceful deletion, and the kubelet's HTTPS endpoints. `pods` runs one pod each, `runtimes` starts containers, `cgroups`
has the kubelet's cgroup layout, `node` the Node object, `server` the endpoints; `agent` composes them.
"""

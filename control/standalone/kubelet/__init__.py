"""A stand-in for the kubelet: one machine's pods as plain processes in the kubelet's cgroup layout.

It exists so that a machine without a container runtime can be a real Node of a real API server: the Node
object, its lease, pods with statuses, probes, restarts and graceful deletion, and the kubelet's HTTPS
endpoints. Everything pure (naming, values, status, back-off, admission) is apart from everything that
touches the kernel (`cgroups`, `launcher`, `process_runtime`) or the API (`api`, `nodestatus`,
`statusmanager`); `agent` wires them.
"""

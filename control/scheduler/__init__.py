"""koord-scheduler: schedules pods like kube-scheduler with Koordinator's plugins, on columns of nodes (spec 05)."""

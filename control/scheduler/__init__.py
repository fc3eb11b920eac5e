"""koord-scheduler: decides what kube-scheduler with Koordinator's plugins would decide, on columns (spec 05)."""

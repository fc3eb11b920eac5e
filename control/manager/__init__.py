"""koord-manager: turns NodeMetrics into schedulable capacity. Controllers run on the leader, webhooks on every
replica."""

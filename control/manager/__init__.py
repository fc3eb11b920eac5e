"""koord-manager: NodeMetric becomes schedulable capacity. Controllers on the leader, webhooks on every replica."""

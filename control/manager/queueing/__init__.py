"""Job queueing (gate JobQueueing, spec 05 §14): whole jobs wait for their ElasticQuota before their pods exist."""

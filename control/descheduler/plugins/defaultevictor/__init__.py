"""DefaultEvictor: which pods may be evicted, and their eviction by the Eviction API (spec 07 §4.3)."""

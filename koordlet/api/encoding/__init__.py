"""JSON, schemas and CRDs from struct types; quantities, times, merges."""

"""JSON encoding, schemas and CRDs of struct types; quantities, times, merging. Pure, except for `crdgen`."""

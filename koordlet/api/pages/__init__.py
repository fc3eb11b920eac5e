"""JSON documents that koordlet, manager and scheduler serve to koordctl."""

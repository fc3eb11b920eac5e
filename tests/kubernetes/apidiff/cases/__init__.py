"""The tables of requests: one module per subject, each with a namespace of its own."""

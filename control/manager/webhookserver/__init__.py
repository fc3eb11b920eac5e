"""The admission webhook server: wire format, JSON patches, certificates. The admission rules are in `webhooks`."""

"""The admission webhook server: the wire contract, patches, certificates. What is admitted is decided in `webhooks`."""

"""Who may set the pod labels and annotations that root code acts on: a table, and the webhook rule made from it."""

"""Plugins of Kubernetes' descheduler, with its names and arguments (spec 07 §10). `table` lists them."""

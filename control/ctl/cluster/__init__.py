"""Reaches koordlet and the scheduler of an installed cluster with nothing but a kubeconfig."""

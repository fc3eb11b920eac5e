"""Parts that the processes of the control plane share: strict configuration files, informers, pages, health metrics."""

"""The cluster as the descheduler sees it: nodes with their pods and loads, maintained by informers."""

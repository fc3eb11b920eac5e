"""PCI functions, RDMA NICs and local storage from sysfs."""

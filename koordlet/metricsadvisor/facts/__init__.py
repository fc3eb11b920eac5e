"""Facts about the node that change rarely: capacity, CPU and NUMA layout, disks, devices."""

"""Node facts that change rarely: capacity, CPU, disks, devices."""

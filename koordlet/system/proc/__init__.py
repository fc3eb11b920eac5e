"""Files of /proc: CPU and memory figures, PSI, sysctls."""

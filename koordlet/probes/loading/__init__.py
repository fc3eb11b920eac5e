"""Loading BPF objects: libbpf, bcc, pinning, mapped arrays."""

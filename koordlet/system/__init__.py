"""The only code that knows kernel files: their paths, formats and units. See docs/system.md.

`roots` and `host` say where the files are and which features the kernel has. The sub-packages hold one module per
kernel interface: `cgroup`, `cpu`, `proc`, `devices`, `network`; `resctrl`, `mounts`, `inotify` and `kernel` stand
alone. `write` is the only function that writes; only the resource executor may use it.
"""

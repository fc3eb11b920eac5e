"""The only code that knows kernel files: where they are, how they are spelt, in which units.

Roots and host facts come first (``roots``, ``host``); then one module a kernel surface (``cgroup``, ``procfs``,
``psi``, ``cputopology``, ``resctrl``, ``perf``, ``coresched``, ``sysctl``, ``kidled``), naming and ownership of
cgroups (``naming``, ``owners``), and the one write primitive (``write``), which the resource executor alone may use.
See docs/system.md.
"""

"""Diagrams of boxes and arrows. Data."""

from __future__ import annotations

from scripts.diagrams.drawing import Arrow, Box, flow


def overview() -> str:
    boxes = {
        "koordlet": Box(110, 50, "koordlet\non each node", "ours"),
        "manager": Box(460, 50, "koord-manager", "ours"),
        "scheduler": Box(810, 50, "koord-scheduler", "ours"),
        "containers": Box(110, 180, "containers\nof services, of batch", "batch", width=170),
        "kubelet": Box(810, 180, "kubelet", "plain"),
    }
    arrows = (
        Arrow("koordlet", "manager", "1 NodeMetric: what is used", ((186, 38), (384, 38))),
        Arrow("manager", "scheduler", "2 Node: batch and mid resources"),
        Arrow("scheduler", "kubelet", "3 places pods", shift=(48, 4)),
        Arrow("kubelet", "containers", "starts containers"),
        Arrow("manager", "koordlet", "NodeSLO: policy", ((384, 64), (186, 64)), shift=(0, 15)),
        Arrow("koordlet", "containers", "4 measures, suppresses,\nprotects, evicts", shift=(78, 8)),
    )
    return flow(920, 230, "What each component does", boxes, arrows)


def observe() -> str:
    boxes = {
        "kernel": Box(95, 50, "kernel files, cgroups"),
        "system": Box(290, 50, "koordlet.system", "ours"),
        "bpf": Box(95, 120, "BPF programs in bpf/"),
        "probes": Box(290, 120, "koordlet.probes", "ours"),
        "kubelet": Box(95, 190, "kubelet /pods"),
        "states": Box(290, 190, "koordlet.statesinformer", "ours", width=170),
        "api": Box(95, 260, "API server:\nNode, NodeSLO"),
        "advisor": Box(490, 120, "koordlet.metricsadvisor", "ours", width=170),
        "cache": Box(680, 50, "koordlet.metriccache", "ours", width=160),
        "prediction": Box(870, 120, "koordlet.prediction", "ours"),
        "reporter": Box(870, 50, "NodeMetric reporter", "ours"),
        "nodemetric": Box(1050, 50, "NodeMetric", "object", width=120),
        "interference": Box(680, 190, "koordlet.interference", "ours"),
        "metrics": Box(870, 230, "/metrics, /top", "ours"),
        "tools": Box(1050, 230, "Prometheus,\nkoordctl", width=120),
    }
    arrows = (
        Arrow("kernel", "system"),
        Arrow("bpf", "probes"),
        Arrow("kubelet", "states"),
        Arrow("api", "states", "", ((290, 260),)),
        Arrow("system", "advisor"),
        Arrow("probes", "advisor"),
        Arrow("states", "advisor", "pods and\ntheir cgroups", shift=(38, 14)),
        Arrow("advisor", "cache"),
        Arrow("cache", "reporter"),
        Arrow("cache", "prediction"),
        Arrow("prediction", "reporter"),
        Arrow("reporter", "nodemetric"),
        Arrow("advisor", "interference"),
        Arrow("advisor", "metrics", "", ((490, 230),)),
        Arrow("interference", "metrics"),
        Arrow("metrics", "tools"),
    )
    return flow(1130, 300, "How koordlet observes", boxes, arrows)


def enforce() -> str:
    boxes = {
        "nodeslo": Box(80, 50, "NodeSLO", "object", width=120),
        "pods": Box(80, 110, "pods", "object", width=120),
        "figures": Box(80, 170, "metric cache", "ours", width=120),
        "verdicts": Box(80, 230, "interference\nverdicts", "ours", width=120),
        "view": Box(270, 140, "node view\nfrozen", "ours", width=120),
        "strategies": Box(470, 80, "strategies of\nqosmanager, pure", "ours", width=160),
        "hooks": Box(470, 200, "runtimehooks\npure", "ours", width=160),
        "proxy": Box(270, 270, "koord-runtime-proxy\nor NRI", width=170),
        "executor": Box(700, 140, "resourceexecutor\nthe only writer", "ours", width=150),
        "api": Box(700, 40, "API server", width=150),
        "kernel": Box(930, 80, "cgroups, resctrl,\ntc, sysctl", width=150),
        "ledger": Box(930, 140, "ledger", "object"),
        "audit": Box(930, 200, "audit log", "object"),
    }
    arrows = (
        *(Arrow(name, "view") for name in ("nodeslo", "pods", "figures", "verdicts")),
        Arrow("view", "strategies"),
        Arrow("view", "hooks"),
        Arrow("proxy", "hooks", "announced pod", shift=(58, 14)),
        Arrow("strategies", "executor", "settings", shift=(14, -8)),
        Arrow("hooks", "executor", "settings", shift=(14, 18)),
        Arrow("strategies", "api", "evictions", shift=(-4, -8)),
        *(Arrow("executor", name) for name in ("kernel", "ledger", "audit")),
    )
    return flow(1030, 310, "How koordlet decides and enforces", boxes, arrows)


def control_plane() -> str:
    boxes = {
        "config": Box(110, 50, "slo-controller-config", "object", width=170),
        "user": Box(110, 120, "kubectl"),
        "manager": Box(350, 85, "koord-manager", "ours"),
        "nodemetric": Box(350, 200, "NodeMetric", "object", width=120),
        "node": Box(590, 50, "Node", "object", width=120),
        "nodeslo": Box(590, 270, "NodeSLO", "object", width=120),
        "scheduler": Box(800, 120, "koord-scheduler", "ours"),
        "kubelet": Box(1000, 120, "kubelet", width=120),
        "proxy": Box(1000, 200, "koord-runtime-proxy", "ours"),
        "runtime": Box(1000, 280, "containerd or dockerd", width=160),
        "koordlet": Box(800, 270, "koordlet", "ours", width=120),
        "devices": Box(800, 340, "koord-device-daemon", "ours", width=160),
    }
    arrows = (
        Arrow("config", "manager"),
        Arrow("user", "manager", "admission\nwebhooks", shift=(8, 30)),
        Arrow("nodemetric", "manager"),
        Arrow("manager", "node", "batch and mid\nresources", shift=(-8, -8)),
        Arrow("manager", "nodeslo", "", ((470, 85), (470, 270))),
        Arrow("node", "scheduler"),
        Arrow("nodemetric", "scheduler"),
        Arrow("scheduler", "kubelet", "binding"),
        Arrow("kubelet", "proxy", "CRI", shift=(16, 4)),
        Arrow("proxy", "runtime"),
        Arrow("proxy", "koordlet", "hooks", shift=(-18, 0)),
        Arrow("devices", "koordlet", "device files", shift=(40, 4)),
        Arrow("koordlet", "nodemetric", "", ((800, 215), (412, 215))),
        Arrow("nodeslo", "koordlet"),
    )
    return flow(1090, 375, "The control plane", boxes, arrows)

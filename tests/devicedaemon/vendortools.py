"""Output of vendors' tools, and a stand-in for them that accepts known commands only."""

from __future__ import annotations

from pathlib import Path

from devicedaemon.vendors.node import HostNode, ToolError
from tests.koordlet.roots import roots_under

NPU_MODEL = """\
\tNPU ID                         Chip ID                        Chip Logic ID                  Chip Name
\t0                              0                              0                              Ascend 910B3
\t0                              1                              -                              Mcu
"""
NPU_LIST = """\
\tTotal Count                    : 2

\tNPU ID                         : 0
\tProduct Name                   : IT21HMDB
\tChip Count                     : 1

\tNPU ID                         : 4
\tProduct Name                   : IT21HMDB
\tChip Count                     : 1
"""
NPU_MEMORY = """\
\tNPU ID                         : 0
\tDDR Capacity(MB)               : 0
\tDDR Clock Speed(MHz)           : 0
\tHBM Capacity(MB)               : 65536
\tHBM Clock Speed(MHz)           : 1600
"""
NPU_BOARD = """\
\tNPU ID                         : 0
\tProduct Name                   : IT21HMDB
\tChip Fault                     : {faults}
\tPCIe Bus Info                  : {bus}
\tSlot ID                        : 0
"""
NPU_COMMON = """\
\tNPU ID                         : 0
\tChip ID                        : 0
\tAicore Count                   : 20
\tAicore Usage Rate(%)           : 3
"""
NPU_CPUS = """\
\tAI CPU number                  : 7
\tcontrol CPU number             : 1
\tdata CPU number                : 0
"""
NPU_TOPO = """\
           NPU0       NPU4       CPU Affinity
NPU0       X          HCCS       0-23
NPU4       HCCS       X          24-47

Legend:
  X    = Self
  HCCS = Connection traversing HCCS.
"""
XPU_LIST = "".join(
    " ".join(
        [f"0000:0{n}:00.0", str(n), *(f"w{place}" for place in range(2, 18)), "32768", "w19", "w20", "R300", "w22\n"]
    )
    for n in range(2)
)
XPU_DEVICE = "0000:{n}A:00.0 {n} R300\n"
MLU_LIST = """\
Card 0 MLU370-X8 [0000:1a:00.0] UUID : MLU-aaaa
Card 1 MLU370-X8 [0000:1b:00.0] UUID : MLU-bbbb
"""
MLU_INFO = """\
Card 0
    Physical Memory Usage          :
        Total                      : 24576 MiB
        Used                       : 0 MiB
    Virtual Memory Usage           :
        Total                      : 1000000 MiB
"""
MLU_CARD = """\
Card {n}
    UUID                           : MLU-{letter}
    Domain ID                      : 0000
    Bus num                        : 1{letter}
    Device                         : 00
    Function                       : 0
    NUMA node id                   : 1
    Device                         : {state}
"""
MX_HARDWARE = """\
GPU#0  MXC500  0000:0A:00.0
    Model Name                     : MXC500
    Memory Capacity                : 64GB
GPU#1  MXC500  0000:0B:00.0
    Model Name                     : MXC500
    Memory Capacity                : 64GB
"""
MX_LIST = """\
SGPU#1 MXC500 0000:0a:00.0 virtual of (GPU-wrong)
GPU#10 MXC500 0000:1b:00.0 Available none (GPU-ten)
GPU#0 MXC500 0000:0a:00.0 Available none (GPU-zero)
GPU#1 MXC500 0000:0b:00.0 Available none (GPU-one)
"""
MX_DEVICE = "GPU#{n}  MXC500  0000:0{letter}:00.0\n    Model Name  : MXC500\n"
MX_ECC = """\
SRAM Correctable                   : 5
SRAM Uncorrectable                 : {sram}
DRAM Uncorrectable                 : {dram}
Double Bit ECC                     : 0
"""
IX_LIST = "GPU 0: Iluvatar BI-V150 (UUID: GPU-ix0)\nGPU 1: Iluvatar BI-V150\n"

Texts = dict[str, str | int]
"""Command -> its output; a number: its exit status, without output."""


def huawei(**faults: int) -> Texts:
    """Two cards, 0 and 4."""
    return {
        "npu-smi info -m": NPU_MODEL,
        "npu-smi info -l": NPU_LIST,
        "npu-smi info -t memory -i 0": NPU_MEMORY,
        "npu-smi info -t memory -i 4": NPU_MEMORY,
        "npu-smi info -t common -i 0": NPU_COMMON,
        "npu-smi info -t board -i 0": NPU_BOARD.format(bus="0000:C1:00.0", faults=faults.get("first", 0)),
        "npu-smi info -t board -i 4": NPU_BOARD.format(bus="0000:C2:00.0", faults=0),
        "npu-smi info -t topo -i 0": NPU_TOPO,
        "npu-smi info -t topo -i 4": NPU_TOPO,
    }


def kunlun() -> Texts:
    return {
        "xpu_smi -m": XPU_LIST,
        "xpu_smi -m -d /dev/xpu0": XPU_DEVICE.format(n=0),
        "xpu_smi -m -d /dev/xpu1": XPU_DEVICE.format(n=1),
    }


def cambricon(second: str = "Good") -> Texts:
    return {
        "cnmon -l": MLU_LIST,
        "cnmon info": MLU_INFO,
        "cnmon info -c 0": MLU_CARD.format(n=0, letter="a", state="Good"),
        "cnmon info -c 1": MLU_CARD.format(n=1, letter="b", state=second),
    }


def metax() -> Texts:
    return {
        "mx-smi --show-hwinfo": MX_HARDWARE,
        "mx-smi --list": MX_LIST,
        "mx-smi --show-hwinfo -i 0": MX_DEVICE.format(n=0, letter="A"),
        "mx-smi --show-hwinfo -i 1": MX_DEVICE.format(n=1, letter="B"),
        "mx-smi --count-ecc -i 0": MX_ECC.format(sram=0, dram=0),
        "mx-smi --count-ecc -i 1": MX_ECC.format(sram=2, dram=1),
    }


def iluvatar() -> Texts:
    query = "ixsmi --query-gpu={} --format=csv,noheader --id={}".format
    return {
        "ixsmi --list-gpus": IX_LIST,
        query("gpu_name", 0): "Iluvatar BI-V150\n",
        query("memory.total", 0): "32768 MiB\n",
        query("pci.bus_id", 0): "00000000:4A:00.0\n",
        query("pci.bus_id", 1): 6,
    }


class Scripted:
    """A `Tools`; commands that are not in `texts` must not be run."""

    def __init__(self, texts: Texts) -> None:
        self.texts, self.ran = texts, list[str]()

    async def run(self, *command: str) -> str:
        text = " ".join(command)
        assert text in self.texts, f"{text} was run"
        self.ran.append(text)
        output = self.texts[text]
        if isinstance(output, int):
            raise ToolError(f"{text}: exit status {output}", "Command or option is not found\n" if output == 8 else "")
        return output


def pci_function(sys: Path, address: str, vendor: str, product: str = "0x0001", node: int = 0) -> None:
    """In a test's sysfs, behind root complex pci0000:c0."""
    real = sys / "devices/pci0000:c0/0000:c0:01.0" / address
    real.mkdir(parents=True)
    for name, text in (("vendor", vendor), ("device", product), ("numa_node", str(node))):
        (real / name).write_text(f"{text}\n")
    link = sys / "bus/pci/devices" / address
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(real)


def node(tmp_path: Path, texts: Texts, davinci: tuple[int, ...] = ()) -> HostNode:
    dev = tmp_path / "dev"
    dev.mkdir(parents=True, exist_ok=True)
    for number in davinci:
        (dev / f"davinci{number}").touch()
    (dev / "davinci_manager").touch()
    return HostNode(Scripted(texts), roots_under(tmp_path), dev)

"""One device's limits, weight and cost model in a cgroup, as settings named by their v1 file (spec 03 §2.4, §3.6).

    setting                              value                          v1                            v2
    blkio.throttle.read_bps_device ...   bytes or operations per second the file                      one key of io.max
    blkio.cost.weight                    1..100                         the file (vendor)             io.weight
    blkio.bfq.weight_device              1..1000                        the file                      io.bfq.weight
    blkio.cost.qos, blkio.cost.model     "enable=1 ctrl=user ..."       the file (vendor, root only)  io.cost.*

0 means no limit (`max` in io.max), 100 is the weight of a device without a line. Values that the kernel shows are
converted to the form in which they are written, so that they can be compared; `ctrl=auto` replaces all numbers after
it.
"""

from __future__ import annotations

import os

from koordlet.resourceexecutor.settings import Setting, Value
from koordlet.resourceexecutor.stores import SettingStore, read_now
from koordlet.system.cgroup import codecs
from koordlet.system.cgroup.readers import CgroupFS
from koordlet.system.cgroup.validators import BlkioLine
from koordlet.system.errors import InvalidValue, ResourceUnsupported
from koordlet.system.write import write_value

THROTTLES = {
    "blkio.throttle.read_iops_device": "riops",
    "blkio.throttle.read_bps_device": "rbps",
    "blkio.throttle.write_iops_device": "wiops",
    "blkio.throttle.write_bps_device": "wbps",
}
"""File -> key of io.max, in the order of writing."""
WEIGHT = "blkio.cost.weight"
BFQ_WEIGHT = "blkio.bfq.weight_device"
QOS = "blkio.cost.qos"
MODEL = "blkio.cost.model"
V2_FILES = {
    **dict.fromkeys(THROTTLES, "io.max"), WEIGHT: "io.weight", BFQ_WEIGHT: "io.bfq.weight", QOS: "io.cost.qos",
    MODEL: "io.cost.model",
}  # fmt: skip
UNSET = {WEIGHT: "100", BFQ_WEIGHT: "100", QOS: "enable=0 ctrl=auto", MODEL: "ctrl=auto"}
VALID = {
    **dict.fromkeys(THROTTLES, BlkioLine(2, 0)), WEIGHT: BlkioLine(2, 1, 100), BFQ_WEIGHT: BlkioLine(2, 1, 1000),
    QOS: BlkioLine(7, 0), MODEL: BlkioLine(8, 0),
}  # fmt: skip
_DEFAULTS = frozenset({"min=1", "max=10000", "model=linear"})
"""Fields that the kernel adds to a cost line."""


class BlockStore(SettingStore):
    """Limits and weights of block devices."""

    resources = tuple(V2_FILES)

    def __init__(self, files: CgroupFS) -> None:
        self._files = files

    def path(self, setting: Setting) -> str:
        """Path of the file with the device's line."""
        name = V2_FILES[setting.resource] if self._files.version == 2 else setting.resource
        return os.path.join(self._files.hierarchy("blkio"), setting.cgroup_dir or "", name)  # noqa: PTH118 - hot

    def check(self, setting: Setting, value: Value) -> Value:
        """Raises ResourceUnsupported without the blkio controller."""
        major, colon, minor = setting.device.partition(":")
        if not (colon and major.isdecimal() and minor.isdecimal()):
            raise InvalidValue(setting.label, value, f"{setting.device!r} is not a device number")
        if setting.resource in (QOS, MODEL) and setting.cgroup_dir:
            raise InvalidValue(setting.label, value, "only the root has a cost model")
        VALID[setting.resource].check(setting.resource, codecs.format_blkio(setting.device, value))
        if self._files.version == 1 and "blkio" not in self._files.mounts.v1:
            raise ResourceUnsupported(setting.label, "the blkio controller is not mounted")
        return str(value)

    def supports(self, resource: str, cgroup_dir: str) -> bool:
        """Whether the kernel has the file in that directory."""
        return os.path.exists(self.path(Setting(resource, cgroup_dir)))  # noqa: PTH110 - hot

    def devices(self, resource: str, cgroup_dir: str) -> list[str]:
        """Devices with a line in that directory's file."""
        return list(codecs.parse_blkio(read_now(self.path(Setting(resource, cgroup_dir))) or ""))

    def read(self, setting: Setting) -> Value | None:
        """The device's value, or the default if the file has no line for it."""
        text = read_now(self.path(setting))
        if text is None:
            return None
        line = codecs.parse_blkio(text).get(setting.device)
        if line is None:
            return UNSET.get(setting.resource, "0")
        if setting.resource in (QOS, MODEL):
            return _canonical(line)
        if self._files.version == 2 and setting.resource in THROTTLES:
            fields = dict(field.partition("=")[::2] for field in line.split())
            value = fields.get(THROTTLES[setting.resource], "max")
            return "0" if value == "max" else value
        return line.strip()

    def write(self, setting: Setting, value: Value) -> None:
        """One line. Raises WriteError."""
        text = str(value)
        if self._files.version == 2 and setting.resource in THROTTLES:
            text = f"{THROTTLES[setting.resource]}={'max' if text == '0' else text}"
        elif self._files.version == 2 and text == UNSET.get(setting.resource) and setting.resource == WEIGHT:
            text = "default"  # removes the line of the device
        line = codecs.format_blkio(setting.device, text)
        write_value(self.path(setting), line, below=self._files.hierarchy("blkio"))

    def gone(self, setting: Setting) -> bool:
        """Whether the cgroup does not exist."""
        return bool(setting.cgroup_dir) and not os.path.isdir(os.path.dirname(self.path(setting)))  # noqa: PTH112, PTH120


def _canonical(line: str) -> str:
    fields = [field.removesuffix(".00") for field in line.split()]
    if "ctrl=auto" in fields:
        return " ".join(field for field in fields if field.startswith(("enable=", "ctrl=")))
    return " ".join(field for field in fields if field not in _DEFAULTS)

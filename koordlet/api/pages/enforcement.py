"""koordlet's page `/enforcement`: every kernel setting that koordlet manages, its owner and its problems.

`koordctl status` prints it.
"""

from typing import Annotated

import msgspec

from koordlet.api.encoding.base import Struct
from koordlet.api.encoding.fields import doc, written
from koordlet.api.pages.interference import ThrottledPodReport


class SettingState(Struct):
    """One setting."""

    setting: Annotated[str, doc("Cgroup directory and file, or a file of the node.")] = written(str)
    value: Annotated[int | str, doc("Desired value, in cgroup v1 terms; -1 is unlimited.")] = written(str)
    owner: Annotated[str, doc("The strategy whose value is used.")] = written(str)
    overruled: Annotated[list[str], doc("Strategies that requested another value.")] = []
    was: Annotated[int | str | None, doc("Original value; absent if it was never changed.")] = None
    problem: Annotated[str, doc("Why it does not have the desired value; empty if it does.")] = ""


class RuleState(Struct):
    """The precedence of strategies that request the same setting."""

    resources: Annotated[list[str], doc("Files that the rule applies to.")] = []
    owners: Annotated[list[str], doc("Strategies; the first takes precedence.")] = []
    why: Annotated[str, doc("The reason.")] = ""


class Equivalent(Struct):
    """The implementation of a field of NodeSLO on this kernel."""

    field: str = ""
    kernel: Annotated[str, doc("vendor, stock or none.")] = ""
    means: Annotated[str, doc("The file or its equivalent; for `none` the reason.")] = ""


class Enforcement(Struct):
    """The page."""

    strategies: Annotated[dict[str, str], doc("Strategy -> description of its last decision.")] = {}
    rules: list[RuleState] = []
    settings: list[SettingState] = []
    stuck: Annotated[dict[str, str], doc("Settings that could not be restored -> reason.")] = {}
    held_back: Annotated[
        list[ThrottledPodReport], doc("Best-effort pods that are throttled because they delay latency-sensitive pods.")
    ] = []
    node_slo: Annotated[dict[str, str], doc("Fields of NodeSLO that are not applied -> reason.")] = msgspec.field(
        default_factory=dict, name="nodeSLO"
    )
    equivalents: Annotated[list[Equivalent], doc("Implementations of NodeSLO fields on this kernel.")] = []

"""What koordlet's `/enforcement` answers: every kernel setting that it holds, who wants it, what is in the way. Ours.

`koordctl status` prints it.
"""

from typing import Annotated

import msgspec

from koordlet.api.encoding.base import Struct
from koordlet.api.encoding.fields import doc, written
from koordlet.api.pages.interference import HeldBack


class SettingState(Struct):
    """One setting."""

    setting: Annotated[str, doc("Cgroup directory and file, or a file of the node.")] = written(str)
    value: Annotated[int | str, doc("What it shall hold, in cgroup v1 terms; -1 is unlimited.")] = written(str)
    owner: Annotated[str, doc("The strategy whose word counts.")] = written(str)
    overruled: Annotated[list[str], doc("Strategies that wanted something else.")] = msgspec.field(default_factory=list)
    was: Annotated[int | str | None, doc("What it held before; absent while it was not touched.")] = None
    problem: Annotated[str, doc("Why it does not hold what it shall; empty when it does.")] = ""


class RuleState(Struct):
    """Who wins where several strategies want one setting."""

    resources: Annotated[list[str], doc("Files the rule is about.")] = msgspec.field(default_factory=list)
    owners: Annotated[list[str], doc("Strategies, the first wins.")] = msgspec.field(default_factory=list)
    why: Annotated[str, doc("The reason.")] = ""


class Equivalent(Struct):
    """What a field of NodeSLO means on this kernel."""

    field: str = ""
    kernel: Annotated[str, doc("vendor, stock or none.")] = ""
    means: Annotated[str, doc("The file, or what stands for it; for none why there is nothing.")] = ""


class Enforcement(Struct):
    """The whole page."""

    strategies: Annotated[dict[str, str], doc("Strategy -> what it says of its last decision.")] = msgspec.field(
        default_factory=dict
    )
    rules: list[RuleState] = msgspec.field(default_factory=list)
    settings: list[SettingState] = msgspec.field(default_factory=list)
    stuck: Annotated[dict[str, str], doc("Settings that could not be given back -> why.")] = msgspec.field(
        default_factory=dict
    )
    held_back: Annotated[list[HeldBack], doc("Best-effort pods that are held back because they hurt services.")] = (
        msgspec.field(default_factory=list)
    )
    node_slo: Annotated[dict[str, str], doc("Fields of NodeSLO that are not in force -> why.")] = msgspec.field(
        default_factory=dict, name="nodeSLO"
    )
    equivalents: Annotated[list[Equivalent], doc("What fields of NodeSLO mean on this kernel.")] = msgspec.field(
        default_factory=list
    )

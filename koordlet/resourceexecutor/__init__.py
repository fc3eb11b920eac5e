"""The only writer of kernel settings (spec 03 §2): merge, order over the tree, diff, write, audit, restore.

Strategies and hooks never write. Each is an owner that declares the whole set of settings it wants
(`Executor.declare`). A setting that it no longer declares is restored to the kubelet's value. A pass (`Executor.apply`)

    declarations of all owners --merge--> one desired setting each --diff--> changes --order--> writes

is pure except for reading and writing files. `ledger` keeps on disk what each setting held before koordlet's first
write, so that it is restored when a feature is switched off, at an orderly stop, and at the start after kill -9.

Beside settings there are actions (`actions.Actor`): writes that are done once and leave nothing to restore.
"""

from koordlet.resourceexecutor.executor import Executor, PassResult
from koordlet.resourceexecutor.merge import OwnerRule
from koordlet.resourceexecutor.settings import Action, DesiredSetting, Setting, Value

__all__ = ["Action", "DesiredSetting", "Executor", "OwnerRule", "PassResult", "Setting", "Value"]

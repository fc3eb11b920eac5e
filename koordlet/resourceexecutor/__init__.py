"""The single writer of kernel settings (spec 03 §2): merge, order over the tree, diff, write, audit, put back.

Strategies and hooks never write. Each is an `owner` that declares the whole set of settings it wants
(`Executor.declare`); what it no longer declares is put back to what the kubelet had set. A pass (`Executor.apply`)

    declarations of all owners --merge--> one wish per setting --diff--> changes --order--> writes

is pure but for reading and writing files. `ledger.py` remembers on disk what was there before the first write, so
that a switched-off feature, an orderly stop and a start after kill -9 all lead back to it.

Beside settings there are actions (`Executor.act`): writes that are done once and leave nothing to put back.
"""

from koordlet.resourceexecutor.executor import Executor, PassResult
from koordlet.resourceexecutor.merge import OwnerRule
from koordlet.resourceexecutor.settings import Action, Setting, Update, Value

__all__ = ["Action", "Executor", "OwnerRule", "PassResult", "Setting", "Update", "Value"]

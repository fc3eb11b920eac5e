"""ElasticQuotas in the manager: their topology, what is admitted of them and under them, and quota profiles.

`topology` is the picture that all share, `treechecks` and `selfchecks` the rules of a tree (pure), `resolve` which
quota a pod is under, `evaluation` the synchronous count of pods against quotas, `profile` the controller of
ElasticQuotaProfiles (spec 04 §7, §12.4, §16, §17).
"""

from control.manager.quota.topology import QuotaTopology, shared

__all__ = ["QuotaTopology", "shared"]

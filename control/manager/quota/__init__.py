"""ElasticQuotas in the manager: topology, webhooks, admission of pods against quotas, and quota profiles.

`topology` holds the shared tree of quotas. `treechecks` and `selfchecks` are the validation rules (pure). `resolve`
finds the quota of a pod. `evaluation` counts pods against quotas synchronously. `profile` is the controller of
ElasticQuotaProfiles (spec 04 §7, §12.4, §16, §17).
"""

from control.manager.quota.topology import QuotaTopology, shared

__all__ = ["QuotaTopology", "shared"]

"""ElasticQuota: pods are admitted against what their quota may use at the moment (spec 06 §5)."""

from control.scheduler.plugins.elasticquota.plugin import ElasticQuotaPlugin

__all__ = ["ElasticQuotaPlugin"]

"""ElasticQuotas with their figures, for `koordctl quota` (spec 06 §7).

koord-scheduler serves them as JSON under /apis/v1/plugins/ElasticQuota/quotas, by name.
"""

from koordlet.api.encoding.base import Struct

PageAmounts = dict[str, str]


class QuotaPage(Struct):
    """One quota. Amounts are as Kubernetes writes them."""

    name: str
    parent_name: str = ""
    tree: str = ""
    allow_lent_resource: bool = True
    max: PageAmounts = {}
    min: PageAmounts = {}
    auto_scale_min: PageAmounts = {}
    used: PageAmounts = {}
    request: PageAmounts = {}
    runtime: PageAmounts = {}
    guaranteed: PageAmounts = {}

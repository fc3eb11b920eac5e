"""ElasticQuotas with their figures, for `koordctl quota` (spec 06 §7).

koord-scheduler serves them as JSON under /apis/v1/plugins/ElasticQuota/quotas, by name.
"""

import msgspec

from koordlet.api.encoding.base import Struct

PageAmounts = dict[str, str]


class QuotaPage(Struct):
    """One quota. Amounts are as Kubernetes writes them."""

    name: str
    parent_name: str = ""
    tree: str = ""
    allow_lent_resource: bool = True
    max: PageAmounts = msgspec.field(default_factory=dict)
    min: PageAmounts = msgspec.field(default_factory=dict)
    auto_scale_min: PageAmounts = msgspec.field(default_factory=dict)
    used: PageAmounts = msgspec.field(default_factory=dict)
    request: PageAmounts = msgspec.field(default_factory=dict)
    runtime: PageAmounts = msgspec.field(default_factory=dict)
    guaranteed: PageAmounts = msgspec.field(default_factory=dict)

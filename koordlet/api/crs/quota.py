"""ElasticQuota (scheduling.sigs.k8s.io/v1alpha1) and ElasticQuotaProfile (quota.koordinator.sh/v1alpha1).

Both are namespaced and have no status subresource. The other properties of a quota are labels and annotations (spec 01
§3.9, §5.7).
"""

from typing import Annotated

import msgspec

from koordlet.api.core.pod import ResourceList
from koordlet.api.encoding.base import Struct
from koordlet.api.encoding.fields import doc
from koordlet.api.meta import ApiObject, LabelSelector


class ElasticQuotaSpec(Struct):
    """`spec` of an ElasticQuota."""

    min: Annotated[ResourceList, doc("Guaranteed resources.")] = {}
    max: Annotated[ResourceList, doc("Upper bound, borrowed resources included.")] = {}


class ElasticQuotaStatus(Struct):
    """`status` of an ElasticQuota."""

    used: Annotated[ResourceList, doc("Resources in use.")] = {}


class ElasticQuota(ApiObject, api_version="scheduling.sigs.k8s.io/v1alpha1"):
    """Guaranteed and maximum resources of a tenant."""

    spec: Annotated[ElasticQuotaSpec, doc("Guarantee and upper bound.")] = msgspec.field(
        default_factory=ElasticQuotaSpec
    )
    status: Annotated[ElasticQuotaStatus, doc("Usage.")] = msgspec.field(default_factory=ElasticQuotaStatus)


class ElasticQuotaProfileSpec(Struct):
    """`spec` of an ElasticQuotaProfile."""

    quota_name: Annotated[str, doc("ElasticQuota of the same namespace that is kept up to date.")]
    quota_labels: Annotated[dict[str, str], doc("Labels copied onto the quota.")] = {}
    resource_ratio: Annotated[str | None, doc("Factor on the totals, above 0 and up to 1; anything else is 1.")] = None
    node_selector: Annotated[LabelSelector, doc("Nodes whose allocatable resources are summed.")]


class ElasticQuotaProfileStatus(Struct):
    """Empty."""


class ElasticQuotaProfile(ApiObject, api_version="quota.koordinator.sh/v1alpha1"):
    """A quota kept equal to the resources of some nodes."""

    spec: Annotated[ElasticQuotaProfileSpec, doc("Selected nodes, and the quota.")]
    status: Annotated[ElasticQuotaProfileStatus, doc("Empty.")] = msgspec.field(
        default_factory=ElasticQuotaProfileStatus
    )

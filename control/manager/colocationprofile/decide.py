"""Which pending pods a profile is for, and what it makes of them: pure (spec 04 §8).

Other than in the webhook a profile without pod selector is for no pod, and scheduler, PriorityClass and resources are
not touched: a pod's priority can't change any more, and its requests neither.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

from control.manager.webhooks.objects import Json
from control.manager.webhooks.podschema import POD
from control.manager.webhooks.profiles import patched, write_class, write_metadata
from koordlet.api import names
from koordlet.api.core import Pod
from koordlet.api.crs.config import ClusterColocationProfile
from koordlet.kube import merge_diff


def managed(profile: ClusterColocationProfile, *, by_default: bool) -> bool:
    """Whether the controller follows this profile at all."""
    return by_default or profile.metadata.labels.get(names.LABEL_CONTROLLER_MANAGED) == names.TRUE


def wanted(profile: ClusterColocationProfile, pod: Pod, namespace: Mapping[str, str] | None) -> bool:
    """Whether a pod waits for a node and is one of the profile's. Raises SelectorError.

    `namespace` are the labels of its namespace; None when there is no such namespace.
    """
    spec = profile.spec
    if pod.spec.node_name or pod.status.phase not in ("", "Pending") or pod.metadata.deletion_timestamp is not None:
        return False
    if spec.selector is None or not spec.selector.matches(pod.metadata.labels):
        return False
    if spec.namespace_selector is None or spec.namespace_selector.is_empty():
        return True
    return namespace is not None and spec.namespace_selector.matches(namespace)


def change(profile: ClusterColocationProfile, pod: Json) -> Json:
    """The JSON merge patch that applies a profile to a pod; {} when nothing changes. Raises MutationError.

    A pod is compared as the API server gives it, so that fields we do not know are neither lost nor written.
    """
    after = copy.deepcopy(pod)
    write_metadata(after, profile.spec)
    write_class(after, profile.spec)
    after = patched(after, profile, POD)
    return merge_diff(pod, after)

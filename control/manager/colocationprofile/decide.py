"""Which pending pods a profile selects, and the patch that applies it (spec 04 §8). Pure.

Two differences to the webhook: a profile without pod selector selects no pod, and the scheduler name, PriorityClass and
resources are not changed, because an existing pod's priority and requests are immutable.
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
    """Whether the controller applies this profile to existing pods."""
    return by_default or profile.metadata.labels.get(names.LABEL_CONTROLLER_MANAGED) == names.TRUE


def selects(profile: ClusterColocationProfile, pod: Pod, namespace_labels: Mapping[str, str] | None) -> bool:
    """Whether a pod is pending, has no node and matches the profile's selectors. Raises SelectorError.

    `namespace_labels` is None when the pod's namespace does not exist.
    """
    spec = profile.spec
    if pod.spec.node_name or pod.status.phase not in ("", "Pending") or pod.metadata.deletion_timestamp is not None:
        return False
    if spec.selector is None or not spec.selector.matches(pod.metadata.labels):
        return False
    if spec.namespace_selector is None or spec.namespace_selector.is_empty():
        return True
    return namespace_labels is not None and spec.namespace_selector.matches(namespace_labels)


def profile_patch(profile: ClusterColocationProfile, pod: Json) -> Json:
    """The JSON merge patch that applies a profile to a pod; {} when nothing changes. Raises MutationError.

    `pod` is the JSON that the API server returned, so that fields without a counterpart in `Pod` are neither lost nor
    written.
    """
    after = copy.deepcopy(pod)
    write_metadata(after, profile.spec)
    write_class(after, profile.spec)
    after = patched(after, profile, POD)
    return merge_diff(pod, after)

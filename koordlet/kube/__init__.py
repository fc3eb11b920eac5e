"""API access of all components: typed client, informers, work queues, events, leader election; one loop, no threads.

`koordlet.kube` exports the public names.
"""

from koordlet.kube.client import Client, Listing
from koordlet.kube.config import ClientConfig
from koordlet.kube.errors import (
    ApiError,
    BadRequest,
    ConfigError,
    Conflict,
    ConnectionFailed,
    Forbidden,
    Gone,
    Invalid,
    KubeError,
    NotFound,
    ServerError,
    TooManyRequests,
    Unauthorized,
)
from koordlet.kube.events import EventRecorder
from koordlet.kube.informer import Informer, InformerSettings, ObjectInformer
from koordlet.kube.leader import LeaderElector, LeadershipLost
from koordlet.kube.patch import PatchKind, merge_diff, pointer
from koordlet.kube.workqueue import QueueClosed, WorkQueue

__all__ = [
    "ApiError",
    "BadRequest",
    "Client",
    "ClientConfig",
    "ConfigError",
    "Conflict",
    "ConnectionFailed",
    "EventRecorder",
    "Forbidden",
    "Gone",
    "Informer",
    "InformerSettings",
    "Invalid",
    "KubeError",
    "LeaderElector",
    "LeadershipLost",
    "Listing",
    "NotFound",
    "ObjectInformer",
    "PatchKind",
    "QueueClosed",
    "ServerError",
    "TooManyRequests",
    "Unauthorized",
    "WorkQueue",
    "merge_diff",
    "pointer",
]

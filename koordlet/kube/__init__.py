"""API access for every component: typed client, informers, work queues, events, leader election; one loop, no threads.

`koordlet.kube` names what components need; the modules below hold one idea each.
"""

from koordlet.kube.client import Client, Listing
from koordlet.kube.config import Config
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
from koordlet.kube.informer import Informer, ObjectInformer
from koordlet.kube.leader import LeaderElector, LeadershipLost
from koordlet.kube.patch import PatchKind, merge_diff, pointer
from koordlet.kube.workqueue import QueueClosed, WorkQueue

__all__ = [
    "ApiError",
    "BadRequest",
    "Client",
    "Config",
    "ConfigError",
    "Conflict",
    "ConnectionFailed",
    "EventRecorder",
    "Forbidden",
    "Gone",
    "Informer",
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

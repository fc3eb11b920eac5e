"""`cpu-normalization-config` and `resource-amplification-config`, and the resulting ratios of a node. Pure.

Normalization makes CPU models comparable: each model has a ratio to a base model. Amplification multiplies a node's
allocatable; cpu also by the normalization ratio (spec 01 §6.5.7, §6.5.8). Used by the manager.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

from koordlet.api.encoding.base import Frozen
from koordlet.api.encoding.fields import doc
from koordlet.api.meta import LabelSelector

RATIO_MINIMUM: Final = 1.0
RATIO_MAXIMUM: Final = 5.0


class RatioError(ValueError):
    """A node's ratio cannot be computed, so the node is not changed. The message is the reason."""


class ModelRatios(Frozen):
    """Ratios of one CPU model by enabled features."""

    base_ratio: Annotated[float | None, doc("Ratio without hyper-threading and turbo.")] = None
    hyper_thread_enabled_ratio: Annotated[float | None, doc("Ratio with hyper-threading.")] = None
    turbo_enabled_ratio: Annotated[float | None, doc("Ratio with turbo.")] = None
    hyper_thread_turbo_enabled_ratio: Annotated[float | None, doc("Ratio with both.")] = None


class CPUNormalizationStrategy(Frozen):
    """Whether and how the cpu of a node is normalized."""

    enable: Annotated[bool | None, doc("Whether cpu is normalized, default false.")] = None
    default_ratio: Annotated[float | None, doc("Ratio of models that are not listed.")] = None
    ratio_model: Annotated[dict[str, ModelRatios], doc("Ratios by CPU model.")] = {}


class NodeCPUNormalizationConfig(CPUNormalizationStrategy):
    """An entry of `nodeConfigs`."""

    name: str = ""
    node_selector: LabelSelector | None = None


class CPUNormalizationConfig(CPUNormalizationStrategy):
    """The whole document of key `cpu-normalization-config`."""

    node_configs: list[NodeCPUNormalizationConfig] = []


class ResourceAmplificationStrategy(Frozen):
    """Whether and by how much a node's resources are amplified."""

    enable: Annotated[bool | None, doc("Whether resources are amplified, default false.")] = None
    resource_amplification_ratio: Annotated[dict[str, float], doc("Ratios by resource name.")] = {}


class NodeResourceAmplificationConfig(ResourceAmplificationStrategy):
    """An entry of `nodeConfigs`."""

    name: str = ""
    node_selector: LabelSelector | None = None


class ResourceAmplificationConfig(ResourceAmplificationStrategy):
    """The whole document of key `resource-amplification-config`."""

    node_configs: list[NodeResourceAmplificationConfig] = []


DEFAULT_NORMALIZATION: Final = CPUNormalizationStrategy(enable=False)
DEFAULT_AMPLIFICATION: Final = ResourceAmplificationStrategy(enable=False)


def normalization_ratio(strategy: CPUNormalizationStrategy, model: str, *, hyper_thread: bool, turbo: bool) -> float:
    """The ratio of a CPU under an enabled strategy. Raises RatioError.

    If the model has no ratio for the enabled features, the default ratio is used.
    """
    ratios = strategy.ratio_model.get(model, ModelRatios())
    match hyper_thread, turbo:
        case True, True:
            ratio = ratios.hyper_thread_turbo_enabled_ratio
        case True, False:
            ratio = ratios.hyper_thread_enabled_ratio
        case False, True:
            ratio = ratios.turbo_enabled_ratio
        case _:
            ratio = ratios.base_ratio
    if ratio is None:
        ratio = strategy.default_ratio
    if ratio is None:
        raise RatioError(f"no ratio for CPU model {model!r} (hyper-threading {hyper_thread}, turbo {turbo})")
    if not RATIO_MINIMUM <= ratio <= RATIO_MAXIMUM:
        raise RatioError(f"ratio {ratio:g} of CPU model {model!r} is not within 1 and 5")
    return ratio


def amplification_ratios(strategy: ResourceAmplificationStrategy, normalization: float | None) -> dict[str, float]:
    """The ratios for a node's annotation; empty: the annotation is removed. Raises RatioError.

    `normalization` is the current ratio of the node; None, 0 and negative values mean none.
    """
    ratios: dict[str, float] = dict(strategy.resource_amplification_ratio) if strategy.enable else {}
    cpu = _positive_or_one(ratios.get("cpu")) * _positive_or_one(normalization)
    if cpu > 1:
        ratios["cpu"] = cpu
    _refuse_below_one(ratios)
    return ratios


def _positive_or_one(ratio: float | None) -> float:
    return ratio if ratio is not None and ratio > 0 else 1.0


def _refuse_below_one(ratios: Mapping[str, float]) -> None:
    for resource, ratio in sorted(ratios.items()):
        if ratio < 1:
            raise RatioError(f"amplification ratio {ratio:g} of {resource} is below 1")

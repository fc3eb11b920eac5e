"""CPU normalization and resource amplification: annotations of the Node (spec 04 §6.6, §6.7). Pure.

`koordlet.api.sloconfig.normalization` computes the ratios. This module collects their inputs for one node. On an error
the annotation stays unchanged.
"""

from __future__ import annotations

from koordlet.api import names
from koordlet.api.annotations import node as on_node
from koordlet.api.annotations.topology import CPU_BASIC_INFO
from koordlet.api.core import Node
from koordlet.api.crs.topology import NodeResourceTopology
from koordlet.api.encoding.wire import WireError, format_ratio
from koordlet.api.sloconfig import normalization
from koordlet.api.sloconfig.normalization import (
    CPUNormalizationStrategy,
    RatioError,
    ResourceAmplificationStrategy,
)

OFF = "1.00"


def normalization_text(
    strategy: CPUNormalizationStrategy | None, node: Node, topology: NodeResourceTopology | None
) -> str:
    """The value of the ratio annotation. Raises RatioError when it cannot be computed."""
    if strategy is None:
        raise RatioError("there is no valid cpu-normalization-config")
    try:
        labelled = on_node.normalization_enabled(node.metadata.labels)
        if not (strategy.enable if labelled is None else labelled):
            return OFF
        info = CPU_BASIC_INFO.get(topology.metadata.annotations) if topology is not None else None
    except WireError as error:
        raise RatioError(str(error)) from error
    if info is None:
        raise RatioError("the NodeResourceTopology does not contain the node's CPU model")
    ratio = normalization.normalization_ratio(
        strategy, info.cpu_model, hyper_thread=info.hyper_thread_enabled, turbo=info.turbo_enabled
    )
    return format_ratio(ratio)


def normalization_differs(node: Node, text: str) -> bool:
    """Whether the annotation must be written: it is missing, malformed or differs by more than 0.01."""
    try:
        old = on_node.normalization_ratio(node.metadata.annotations)
    except WireError:
        return True
    new = float(text)
    return old is None or not new - on_node.RATIO_DIFFERENCE <= old <= new + on_node.RATIO_DIFFERENCE


def amplification_text(strategy: ResourceAmplificationStrategy | None, node: Node, ratio: str | None) -> str | None:
    """The value of the amplification annotation, None for none. Raises RatioError.

    `ratio` is the normalization ratio of this pass; without one, the ratio in the Node's annotation is used.
    """
    if strategy is None:
        raise RatioError("there is no valid resource-amplification-config")
    cpu_ratio = float(ratio) if ratio is not None else None
    if cpu_ratio is None:
        try:
            cpu_ratio = on_node.normalization_ratio(node.metadata.annotations)
        except WireError as error:
            raise RatioError(str(error)) from error
    ratios = normalization.amplification_ratios(strategy, cpu_ratio)
    return on_node.amplification_text(ratios) if ratios else None


def amplification_differs(node: Node, text: str | None) -> bool:
    return node.metadata.annotations.get(names.ANNOTATION_RESOURCE_AMPLIFICATION_RATIO) != text

"""The ways that are compared: what breaks the symmetry, or keeps it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from escnn.nn import R2Conv

from benchmarks.accuracy.layers import AnnealedR2Conv
from escnn_relaxed import RelaxedR2Conv


@dataclass(frozen=True)
class Way:
    """A way to build and train a network."""

    layer: Callable[..., Any] = R2Conv
    # "pooled", "free" or "soft", and "by flag". Of forecasts, the last layer: one of the group, one without, or a soft
    # one.
    head: str = "pooled"
    # After each layer a bias for each channel.
    has_free_biases: bool = False
    # A learned constant field that is appended to the input: "vector" or "scalar".
    constant: str | None = None
    # A learned constant vector before each layer, of digits.
    has_vectors: bool = False
    # All soft layers have one set of coefficients, of digits.
    is_shared: bool = False
    # Each image of a batch is moved by an element that is drawn.
    is_turned: bool = False
    # The evidence says how soft layers are.
    has_evidence: bool = False
    # The loss has a penalty on how much the output changes as the input turns.
    has_penalty: bool = False
    # A network that is trained on the poses of the training images turns an image back first.
    is_canonical: bool = False
    # The way whose choices it has; its hidden layers have as many parameters as make the network's those of ``soft``.
    equal: str | None = None
    # With a flag: the gate on the softness for each image, "flag" or "learned".
    gate: str | None = None
    # With a flag: this network where it is 1, and a strict one where it is 0.
    is_apart: bool = False


WAYS: dict[str, Way] = {
    "strict": Way(),
    "free head": Way(head="free"),
    "free biases": Way(has_free_biases=True),
    "soft head": Way(head="soft"),
    "turned copies": Way(head="free", is_turned=True),
    "reference vector": Way(constant="vector"),
    "constant scalar": Way(constant="scalar"),
    "annealed": Way(AnnealedR2Conv),
    "penalty": Way(RelaxedR2Conv, has_penalty=True),
    "canonical": Way(head="free", is_canonical=True),
    "soft": Way(RelaxedR2Conv),
    "soft, evidence": Way(RelaxedR2Conv, has_evidence=True),
    "soft, free head": Way(RelaxedR2Conv, "free"),
}
EQUAL_WAYS: dict[str, Way] = {
    f"{name}, equal parameters": replace(WAYS[name], equal=name) for name in ("strict", "free head")
}
# Of the task with a flag, beside "strict", "free head" and "soft".
FLAG_WAYS: dict[str, Way] = {
    "free head by flag": Way(head="by flag"),
    "network for each flag": Way(RelaxedR2Conv, is_apart=True),
    "soft, gate is the flag": Way(RelaxedR2Conv, gate="flag"),
    "soft, gate and head by flag": Way(RelaxedR2Conv, "by flag", gate="flag"),
    "soft, learned gate": Way(RelaxedR2Conv, gate="learned"),
}
# Of the study of the reference vector, beside "strict", "soft" and "reference vector".
VECTOR_WAYS: dict[str, Way] = {
    "vector in each layer": Way(has_vectors=True),
    "soft, shared": Way(RelaxedR2Conv, is_shared=True),
}
ALL_WAYS = {**WAYS, **EQUAL_WAYS, **FLAG_WAYS, **VECTOR_WAYS}

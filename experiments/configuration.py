"""The configuration of a run, with the overrides of the command line."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from escnn_relaxed.baselines import LAYERS
from escnn_relaxed.checks import check_bool, check_choice, check_integer, check_number

from .kernel_options import read_kernel

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["PRECISIONS", "TASK_NAMES", "Configuration", "changes", "override"]

TASK_NAMES = ("cifar10", "cifar100", "mnist6-180", "digits")
PRECISIONS = ("32-true", "bf16-mixed", "16-mixed")
SHARING = ("none", "axes", "layers")


@dataclass(frozen=True)
class Configuration:
    """All that determines a run but its seed. Defaults are the published settings of CIFAR.

    Attributes:
        rotations: number of rotations N; 1 for T(2).
        layer: way to relax, a key of :data:`~escnn_relaxed.baselines.LAYERS`.
        relax: starting ω′ of each subgroup, the same in all layers; ``"default"`` as of the layer, None for strict.
        learn_relaxation: whether ω′ is learned.
        share_relaxation: what learns one ω′ together: ``"axes"``, x and y in each layer, as in the paper; ``"layers"``,
            all layers, and x and y; or ``"none"``.
        penalty_weight: λ of :func:`~escnn_relaxed.learning.frequency_penalty`.
        kernel: options in place of the paper's, or ``"default"`` (kernel_options.py).
        fields: numbers of fields of the two blocks.
        lifting_kernel_size: of the lifting convolution.
        task: name of the data.
        augment: whether training images are flipped and shifted at random.
        images: number of training images, None for all; validation images are never among them.
        evaluation_images: number of validation and of test images, None for all.
        epochs: passes over the training images.
        warmup_epochs: of these with a learning rate that rises linearly; a cosine to 0 follows.
        batch_size: images of a step, over all devices.
        learning_rate: of Adam, after the warm-up.
        weight_decay: of Adam; none on ω′.
        validate_every: epochs from one validation to the next.
        precision: ``"32-true"``, ``"bf16-mixed"`` or ``"16-mixed"``, as Lightning calls them.

    Raises:
        TypeError: for a value of the wrong type.
        ValueError: for a value that has no meaning.

    Example:
        >>> Configuration(rotations=4, relax={"rotation": 1.0}).epochs
        300
    """

    rotations: int
    layer: str = "relaxed"
    relax: Mapping[str, float] | str | None = None
    learn_relaxation: bool = False
    share_relaxation: str = "axes"
    penalty_weight: float = 0.0
    kernel: Mapping[str, Any] | str = field(default_factory=dict)
    fields: tuple[int, int] = (32, 64)
    lifting_kernel_size: int = 7
    task: str = "cifar10"
    augment: bool = False
    images: int | None = None
    evaluation_images: int | None = None
    epochs: int = 300
    warmup_epochs: int = 5
    batch_size: int = 64
    learning_rate: float = 1e-3
    weight_decay: float = 1e-4
    validate_every: int = 1
    precision: str = "32-true"

    def __post_init__(self) -> None:
        object.__setattr__(self, "fields", _checked_fields(self.fields))
        if isinstance(self.relax, Mapping):
            # 1 and 1.0 are one configuration with one digest.
            numbers = {name: float(value) if type(value) is int else value for name, value in self.relax.items()}
            object.__setattr__(self, "relax", numbers)
        for name in ("rotations", "epochs", "batch_size", "validate_every", "lifting_kernel_size"):
            check_integer(name, getattr(self, name), 1)
        if check_integer("warmup_epochs", self.warmup_epochs, 0) >= self.epochs:
            raise ValueError(f"warmup_epochs must be below epochs={self.epochs}, got {self.warmup_epochs}")
        for name in ("images", "evaluation_images"):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name), 1)
        check_choice("layer", self.layer, tuple(LAYERS))
        check_choice("task", self.task, TASK_NAMES)
        check_choice("precision", self.precision, PRECISIONS)
        check_choice("share_relaxation", self.share_relaxation, SHARING)
        read_kernel(self.kernel)
        for name in ("learn_relaxation", "augment"):
            check_bool(name, getattr(self, name))
        for name in ("penalty_weight", "learning_rate", "weight_decay"):
            if not 0 <= check_number(name, getattr(self, name)) < math.inf:
                raise ValueError(f"{name} must be finite and >= 0, got {getattr(self, name)}")
        if self.penalty_weight > 0 and self.layer != "relaxed":
            raise ValueError(f"penalty_weight weighs ω′, which layer={self.layer!r} does not have: it must be 0")

    def digest(self) -> str:
        """Eight characters that tell configurations apart."""
        text = json.dumps(dataclasses.asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:8]


def override(configuration: Configuration, assignments: Sequence[str]) -> Configuration:
    """A configuration with some of its values replaced.

    Args:
        configuration: to start from.
        assignments: each ``key=value``, the value as in TOML. ``relax.rotation=0.5`` sets one entry and leaves the
            others; ``relax={rotation=0.5}`` replaces all of them.

    Raises:
        ValueError: for text that is not of this form, an unknown key, or a value that has no meaning.
        TypeError: for a value of the wrong type.

    Example:
        >>> override(Configuration(rotations=4), ["epochs=30", "relax.rotation=0.5"]).relax
        {'rotation': 0.5}
    """
    settings = dataclasses.asdict(configuration)
    for assignment in assignments:
        try:
            change = tomllib.loads(assignment)
        except tomllib.TOMLDecodeError as error:
            raise ValueError(
                f"a setting must be key=value, the value as in TOML; got {assignment!r}: {error}"
            ) from error
        is_of_an_entry = "." in assignment.partition("=")[0]
        settings = _merged(settings, change) if is_of_an_entry else {**settings, **change}
    return _configuration(settings)


def changes(before: Configuration, after: Configuration) -> list[str]:
    """The settings that differ, in words.

    Example:
        >>> soft = Configuration(rotations=4, relax={"rotation": 1.0})
        >>> changes(soft, override(soft, ["relax.translation=0.5"]))
        ["relax: {'rotation': 1.0} → {'rotation': 1.0, 'translation': 0.5}"]
    """
    values = [(entry.name, getattr(before, entry.name), getattr(after, entry.name)) for entry in fields(Configuration)]
    return [f"{name}: {old} → {new}" for name, old, new in values if old != new]


def _merged(settings: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with the entries of a change in place of their own, at each depth."""
    merged = dict(settings)
    for key, value in change.items():
        before = merged.get(key)
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            merged[key] = _merged(before, value)
        else:
            merged[key] = value
    return merged


def _configuration(settings: Mapping[str, Any]) -> Configuration:
    known = [entry.name for entry in fields(Configuration)]
    for key in settings:
        if key not in known:
            raise ValueError(f"a setting must be one of {', '.join(known)}; got {key!r}")
    return Configuration(**settings)


def _checked_fields(value: Any) -> tuple[int, int]:
    if not isinstance(value, Sequence) or len(value) != 2:
        raise TypeError(f"fields must be two integers, for the two blocks, as [8, 16]; got {value!r}")
    return check_integer("fields", value[0], 1), check_integer("fields", value[1], 1)

"""The rows of the paper's tables, and our own: the name, the title and the configuration of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .configuration import Configuration
from .kernel_options import DEFAULT_KERNEL
from .published import published_numbers

__all__ = ["ROWS", "Row", "find_row"]

# λ of the rows that learn ω′.
PENALTY_WEIGHTS = (0.001, 0.01, 0.1, 0.5, 1.0, 5.0)


@dataclass(frozen=True)
class Row:
    """A row of the paper's tables.

    Attributes:
        name: what it is called on the command line.
        title: what it is called in tables.
        configuration: what is run.
        published: what the paper says: ``task`` or ``task-augmented`` → [mean, standard error] of the test accuracy in
            %; ``parameters`` → their number on CIFAR-10; ``seconds`` → [train, inference] of a batch.
    """

    name: str
    title: str
    configuration: Configuration
    published: Mapping[str, Any] = field(default_factory=dict)


def _row(name: str, title: str, **settings: Any) -> Row:
    return Row(name, title, Configuration(**settings), published_numbers(name))


def _learned_rows(name: str, title: str, **settings: Any) -> Iterator[Row]:
    """Yield a row for each λ; ω′ starts at that of the soft row."""
    for weight in PENALTY_WEIGHTS:
        own = {"learn_relaxation": True, "penalty_weight": weight, **settings}
        yield _row(f"{name}-learned-{weight:g}", f"{title}, ω′ learned, λ = {weight:g}", **own)


def _translation_rows() -> Iterator[Row]:
    strict: dict[str, Any] = {"rotations": 1}
    soft = {**strict, "relax": {"translation": 0.25}}
    yield _row("t2-strict", "T(2), strict", **strict)
    yield _row("t2-soft", "T(2), soft", **soft)
    yield from _learned_rows("t2", "T(2)", **soft)
    # Not the paper's kernel but the one that layers have by default.
    yield _row("t2-strict-tied", "T(2), strict, default kernel", **strict, kernel=DEFAULT_KERNEL)
    yield _row("t2-soft-tied", "T(2), soft, default kernel", **soft, kernel=DEFAULT_KERNEL)


def _rotation_rows(rotations: int) -> Iterator[Row]:
    """Yield published rows, whose lifting kernels seem to have had one tap, and corrected ones, with 7×7 taps."""
    name, title = f"se2-{rotations}", f"SE(2), {rotations} rotations"
    strict: dict[str, Any] = {"rotations": rotations}
    partial = {**strict, "layer": "partial", "relax": "default"}
    soft = {**strict, "relax": {"rotation": 1.0}}
    yield _row(f"{name}-strict", f"{title}, strict as published", **strict, lifting_kernel_size=1)
    # The soft network with ω′ = 0: nothing else differs.
    yield _row(f"{name}-strict-corrected", f"{title}, strict, corrected", **strict, relax={"rotation": 0.0})
    yield _row(f"{name}-partial", f"{title}, partial as published", **partial, lifting_kernel_size=1)
    yield _row(f"{name}-partial-corrected", f"{title}, partial, corrected", **partial)
    yield _row(f"{name}-soft", f"{title}, soft in SO(2)", **soft)
    yield from _learned_rows(name, title, **soft)


def _trial_rows() -> Iterator[Row]:
    """Yield rows of seconds on scikit-learn's digits, of which the paper has none."""
    common: dict[str, Any] = {"task": "digits", "rotations": 2, "warmup_epochs": 1, "augment": True}
    yield _row(
        "digits-soft",
        "scikit-learn's digits, soft: a trial",
        **common,
        relax={"rotation": 1.0},
        fields=(2, 2),
        epochs=3,
        images=512,
        learning_rate=0.01,
    )
    yield _row(
        "smoke",
        "Everything at once, in seconds",
        **common,
        relax={"translation": 0.25, "rotation": 1.0},
        learn_relaxation=True,
        share_relaxation="layers",
        penalty_weight=0.1,
        kernel={"net": "fourier", "features": 4, "hidden_size": 4, "sampling": "random"},
        fields=(1, 1),
        epochs=2,
        images=32,
        evaluation_images=16,
        batch_size=16,
    )


def _toy_rows() -> Iterator[Row]:
    """Yield the rows of the toy problem, MNIST6-180."""
    common: dict[str, Any] = {"task": "mnist6-180", "rotations": 8, "fields": (4, 8), "epochs": 4, "warmup_epochs": 1}
    common |= {"learning_rate": 0.01, "weight_decay": 0.0}
    yield _row("mnist6-180-strict", "MNIST6-180, strict", **common, relax={"rotation": 0.0})
    yield _row("mnist6-180-partial", "MNIST6-180, partial", **common, layer="partial", relax="default")
    yield _row("mnist6-180-soft", "MNIST6-180, soft", **common, relax={"rotation": 1.0})


def _all_rows() -> Iterator[Row]:
    yield from _translation_rows()
    for rotations in (4, 8, 16):
        yield from _rotation_rows(rotations)
    yield from _trial_rows()
    yield from _toy_rows()


# By name, in the order of the paper's tables.
ROWS: Mapping[str, Row] = {row.name: row for row in _all_rows()}


def find_row(name: str) -> Row:
    """The row of a name.

    Raises:
        ValueError: for an unknown name.

    Example:
        >>> find_row("t2-soft").title
        'T(2), soft'
    """
    if name not in ROWS:
        raise ValueError(f"row must be one of {', '.join(ROWS)}; got {name!r}")
    return ROWS[name]

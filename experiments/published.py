"""The numbers in the tables of the paper, as data: rows.py gives each to its row."""

from __future__ import annotations

from typing import Any

__all__ = ["ACCURACIES", "published_numbers"]

# What the columns of the accuracies are, as a task or as ``task-augmented``.
ACCURACIES = ("cifar10", "cifar10-augmented", "cifar100", "cifar100-augmented")

# Name of a row → mean and standard error of the test accuracy in %, a pair for each column.
_CIFAR = {
    "t2-strict": ((81.8, 0.48), (85.87, 0.22), (46.2, 0.09), (53.97, 0.33)),
    "t2-soft": ((81.82, 0.18), (87.74, 0.13), (46.84, 0.19), (58.12, 0.31)),
    "t2-learned-0.001": ((79.99, 0.22), (87.04, 0.17), (46.21, 0.2), (55.46, 0.11)),
    "t2-learned-0.01": ((82.04, 0.16), (87.28, 0.17), (46.45, 0.15), (56.32, 0.35)),
    "t2-learned-0.1": ((82.1, 0.07), (87.33, 0.18), (46.55, 0.07), (56.4, 0.08)),
    "t2-learned-0.5": ((82.2, 0.17), (87.58, 0.06), (46.92, 0.12), (56.32, 0.12)),
    "t2-learned-1": ((81.89, 0.21), (87.25, 0.06), (46.82, 0.1), (56.8, 0.09)),
    "t2-learned-5": ((81.6, 0.13), (87.35, 0.11), (47.0, 0.07), (57.02, 0.24)),
    "se2-4-strict": ((81.39, 0.26), (85.76, 0.21), (44.0, 0.18), (49.81, 0.56)),
    "se2-4-partial": ((83.04, 0.25), (84.26, 0.55), (46.69, 1.02), (52.67, 0.4)),
    "se2-4-soft": ((83.21, 0.03), (87.02, 0.22), (49.47, 0.41), (54.48, 0.27)),
    "se2-4-learned-0.001": ((81.19, 0.16), (83.51, 0.23), (46.67, 0.37), (51.51, 0.4)),
    "se2-4-learned-0.01": ((80.44, 0.02), (83.54, 0.26), (46.85, 0.33), (51.96, 0.16)),
    "se2-4-learned-0.1": ((83.7, 0.16), (86.29, 0.35), (49.14, 0.42), (55.7, 1.18)),
    "se2-4-learned-0.5": ((82.68, 0.03), (85.94, 0.42), (51.46, 0.44), (55.37, 0.3)),
    "se2-4-learned-1": ((82.66, 0.53), (85.18, 0.47), (51.34, 0.44), (55.97, 0.93)),
    "se2-4-learned-5": ((82.47, 0.55), (85.71, 0.16), (52.19, 0.15), (56.34, 0.78)),
    "se2-8-strict": ((82.16, 0.26), (87.48, 0.06), (46.43, 0.14), (54.07, 0.19)),
    "se2-8-partial": ((84.82, 0.2), (87.37, 0.61), (51.04, 0.61), (58.22, 0.25)),
    "se2-8-soft": ((86.39, 0.15), (88.38, 0.34), (54.68, 0.49), (60.83, 0.43)),
    "se2-8-learned-0.001": ((83.54, 0.09), (86.99, 0.39), (50.14, 0.16), (56.29, 0.27)),
    "se2-8-learned-0.01": ((83.27, 0.23), (87.1, 0.06), (50.56, 0.48), (56.48, 0.5)),
    "se2-8-learned-0.1": ((86.36, 0.09), (89.26, 0.1), (54.41, 0.39), (60.94, 0.28)),
    "se2-8-learned-0.5": ((86.06, 0.1), (88.64, 0.37), (57.11, 0.23), (60.67, 0.29)),
    "se2-8-learned-1": ((85.71, 0.34), (88.9, 0.06), (56.28, 0.11), (60.95, 0.65)),
    "se2-8-learned-5": ((85.91, 0.19), (88.51, 0.12), (56.25, 0.26), (60.45, 0.18)),
    "se2-16-strict": ((83.33, 0.13), (87.15, 0.02), (47.68, 0.15), (54.2, 0.21)),
    "se2-16-partial": ((85.92, 0.32), (89.48, 0.41), (50.58, 0.49), (59.63, 0.27)),
    "se2-16-soft": ((86.29, 0.29), (89.65, 0.22), (54.5, 0.26), (60.27, 0.31)),
    "se2-16-learned-0.001": ((83.39, 0.12), (87.87, 0.27), (49.24, 0.55), (57.22, 0.18)),
    "se2-16-learned-0.01": ((83.59, 0.09), (87.96, 0.19), (49.63, 0.48), (57.87, 0.25)),
    "se2-16-learned-0.1": ((85.81, 0.16), (89.69, 0.18), (55.11, 0.15), (62.22, 0.23)),
    "se2-16-learned-0.5": ((85.85, 0.19), (89.35, 0.18), (55.89, 0.22), (61.87, 0.15)),
    "se2-16-learned-1": ((85.74, 0.24), (89.47, 0.1), (55.21, 0.13), (61.08, 0.23)),
    "se2-16-learned-5": ((85.95, 0.19), (89.3, 0.22), (56.12, 0.18), (60.87, 0.18)),
}
# Name of a row → mean accuracy in %, without an error.
_MNIST6_180 = {"mnist6-180-strict": 50.0, "mnist6-180-partial": 100.0, "mnist6-180-soft": 100.0}
# Rows of the first table → parameters on CIFAR-10; seconds of a batch in training and in inference.
_COSTS = {
    "t2-strict": (451_898, (3.5, 0.2)),
    "t2-soft": (452_282, (20.9, 1.0)),
    "se2-4-strict": (451_898, (12.0, 0.6)),
    "se2-4-partial": (469_615, (12.1, 0.6)),
    "se2-4-soft": (469_802, (12.2, 0.6)),
    "se2-8-strict": (451_898, (29.1, 1.3)),
    "se2-8-partial": (469_615, (29.9, 1.4)),
    "se2-8-soft": (469_802, (29.4, 1.4)),
    "se2-16-strict": (451_898, (85.8, 3.7)),
    "se2-16-partial": (469_615, (86.9, 3.8)),
    "se2-16-soft": (469_802, (86.4, 3.7)),
}


def published_numbers(name: str) -> dict[str, Any]:
    """Return what the paper says of a row, in the form of ``Row.published``; empty where it has no such row.

    Example:
        >>> published_numbers("t2-strict")["cifar10"]
        [81.8, 0.48]
    """
    published: dict[str, Any] = {}
    if name in _CIFAR:
        published |= {column: list(pair) for column, pair in zip(ACCURACIES, _CIFAR[name], strict=True)}
    if name in _MNIST6_180:
        published["mnist6-180"] = [_MNIST6_180[name]]
    if name in _COSTS:
        parameters, seconds = _COSTS[name]
        published |= {"parameters": parameters, "seconds": list(seconds)}
    return published

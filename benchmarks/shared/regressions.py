"""How soft by the evidence in a regression: the three lines of the loop, what is read off a network, a table of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.shared.markdown import table
from benchmarks.shared.training import FIRST_EPOCH, UPDATE
from escnn_relaxed import SoftnessEvidence
from escnn_relaxed.network.relaxed_layers import named_relaxed_layers

__all__ = ["Learner", "Pairs", "softness_table"]

# Inputs and targets.
Pairs = tuple[Tensor, Tensor]


class _InUnits(nn.Module):
    """The prediction of a network in the units of its loss."""

    def __init__(self, network: nn.Module, unit: Tensor | float) -> None:
        super().__init__()
        self.network = network
        self.unit = unit

    def forward(self, state: Tensor) -> Tensor:
        """Return what the network predicts, over the unit."""
        predicted: Tensor = self.network(state) / self.unit
        return predicted


class Learner:
    """The evidence of a network whose loss is the mean square of its error in some units.

    Args:
        network: to be trained.
        unit: of the error, a number or one for each channel.
        known: training data.
    """

    def __init__(self, network: nn.Module, unit: Tensor | float, known: Pairs) -> None:
        self.evidence = SoftnessEvidence(_InUnits(network, unit), len(known[0]), likelihood="gaussian")
        self._unit, self._known = unit, known
        self._history: list[list[tuple[float, float]]] = []
        self._seconds = 0.0

    def update(self) -> None:
        """Update on inputs that are drawn."""
        inputs, targets = self._known
        drawn = torch.randperm(len(inputs))[:UPDATE]
        self.evidence.update(inputs[drawn], targets[drawn] / self._unit)

    def after_epoch(self, epoch: int) -> None:
        """Update from the third epoch on; epochs count from 0."""
        if epoch < FIRST_EPOCH:
            return
        start = time.process_time()
        self.update()
        self._seconds += time.process_time() - start
        self._history.append([(row.share, row.softness) for row in self.evidence.table()])

    def read(self, held_out: Pairs, measure: Callable[[], dict[str, float]]) -> dict[str, Any]:
        """Return the table, and what hardening by training data and by others does; the network is left as it is.

        Args:
            held_out: other data.
            measure: errors of the network, which are taken after hardening.
        """
        self.update()
        found: dict[str, Any] = {
            "rows": [asdict(row) for row in self.evidence.table()],
            "history": self._history,
            "weight of outputs": self.evidence.state_dict()["weight"],
            "seconds of updates": self._seconds,
        }
        layers = [layer for _, layer in named_relaxed_layers(self.evidence.network)]
        before = [layer.hardened for layer in layers]
        for name, (inputs, targets) in (("train", self._known), ("held out", held_out)):
            found[f"trials, {name}"] = [asdict(trial) for trial in self.evidence.harden(inputs, targets / self._unit)]
            found |= {f"{key}, hardened by {name}": value for key, value in measure().items()}
            for layer, subgroups in zip(layers, before, strict=True):
                layer.hardened = subgroups
        return found


def softness_table(name: str, found: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Markdown: what the evidence says of softness, and which layers stay soft after hardening by held-out data.

    Args:
        name: of the rows.
        found: label of a row → what was read of each seed.
    """
    header = name, "γ/n by layer", "softness s by layer", "an output weighs", "Δ", "price", "layers that stay soft"
    return table(header, [(label, *_cells(results)) for label, results in found.items() if results])


def _cells(results: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Means over seeds; of each seed how many layers stay soft."""
    by_layer = list(zip(*(result["rows"] for result in results), strict=True))
    shares = [fmean(row["determined"] / row["weights"] for row in rows) for rows in by_layer]
    softness = [fmean(row["softness"] for row in rows) for rows in by_layer]
    trials = [result["trials, held out"] for result in results]
    rise, error, price = (fmean(of[0][key] for of in trials) for key in ("rise", "error", "price"))
    kept = [len(by_layer) - sum(len(trial["layers"]) for trial in of if trial["is_hardened"]) for of in trials]
    return (
        ", ".join(f"{share:.2f}" for share in shares),
        ", ".join(f"{value:.0e}" for value in softness),
        f"{fmean(result['weight of outputs'] for result in results):.3f}",
        f"{rise:,.0f} ± {error:,.0f}".replace("-", "−"),
        f"{price:.0f}",
        f"{', '.join(map(str, kept))} of {len(by_layer)}",
    )

"""How soft each layer should be in each subgroup, by the evidence of the training data."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from ..checks import check_choice, check_integer, check_mapping
from ..network.relaxed_layers import in_eval_mode, relaxed_layers
from ..torch_modes import full_precision
from .evidence_table import EvidenceRow, EvidenceTable, HardeningReport, HardeningTrial
from .soft_gradients import LIKELIHOODS, count_inputs, fisher_direction, gradients, input_chunks, losses, plain

__all__ = ["LEAST_PRECISION", "MOST_PRECISION", "SoftnessEvidence"]

# Bounds of δ. A weight of 1 modulates a kernel by about a fifth: below the first a prior asks for nothing, and beyond
# the second it leaves a softness below 1e-7.
LEAST_PRECISION, MOST_PRECISION = 1e-2, 1e6
# Steps of the fixed point in an update. More would follow weights that are still on their way.
_STEPS = 3
# ‖α‖² below this is 0.
_NOTHING = 1e-300
_FEWEST_INPUTS = 10
# Inputs at a time, for gradients of single ones and for losses.
_CHUNK, _LARGE_CHUNK = 32, 256


class _Group(NamedTuple):
    """The soft weights of a layer and subgroup: parameters, each with the places of its entries."""

    layer: str
    label: str
    entries: list[tuple[nn.Parameter, Tensor]]

    @property
    def key(self) -> str:
        """A name among all groups."""
        return f"{self.layer}/{self.label}"

    @property
    def width(self) -> int:
        """Number of entries."""
        return sum(places.numel() for _, places in self.entries)

    @property
    def size(self) -> int:
        """Number n of weights, without the means of rows, which are not soft."""
        return self.width - sum(len(places) for _, places in self.entries if places.dim() > 1)


class SoftnessEvidence:
    r"""Learns from the training data how soft each layer should be, without a weight to choose.

    The soft weights α of each layer and subgroup have a normal prior of precision δ. In a training loop::

        evidence = SoftnessEvidence(network, observations=len(images))
        for epoch in range(epochs):
            for batch, labels in batches:
                loss = cross_entropy(network(batch), labels) + evidence.penalty()
                ...
            if epoch >= 2:
                evidence.update(images[:128])
        print(evidence.table())

    An update finds new δ by MacKay's fixed point (docs/results/learning.md)::

        H = Fisher matrix of all observations over α       Σ = (H + diag δ)⁻¹
        γ = n − δ tr Σ                                     δ ← γ / ‖α‖²

    of which γ of the n weights are determined by the data. δ is kept in [1e-2, 1e6]. Updates before the third epoch
    take away softness that comes late.

    The loss is the mean of torch's ``cross_entropy``, ``binary_cross_entropy_with_logits`` or ``mse_loss`` over all
    outputs. Weights that are frozen, and subgroups that are hardened, are left out.

    Args:
        network: any module. Its output, a tensor or a GeometricTensor, is that of the likelihood.
        observations: N, the number of training inputs in all processes.
        likelihood: ``"categorical"`` for logits (batch, classes, …), ``"binary"`` for logits of any shape, or
            ``"gaussian"`` for a regression.
        seed: of the draws from the prediction.

    Raises:
        TypeError: for an argument of the wrong type.
        ValueError: for another likelihood, or a network without soft weights that learn.

    Example:
        >>> from escnn import gspaces
        >>> from escnn_relaxed import RelaxedR2Conv
        >>> from torch.nn.functional import cross_entropy
        >>> gspace = gspaces.rot2dOnR2(4)
        >>> image, logits = (
        ...     gspace.type(gspace.trivial_repr),
        ...     gspace.type(*[gspace.trivial_repr] * 2),
        ... )
        >>> layer = RelaxedR2Conv(image, logits, 5)
        >>> evidence = SoftnessEvidence(layer, observations=100)
        >>> images, labels = torch.randn(100, 1, 5, 5), torch.randint(0, 2, (100, 1, 1))
        >>> evidence.update(image(images))
        >>> loss = cross_entropy(layer(image(images)).tensor, labels) + evidence.penalty()
        >>> [(row.subgroup, row.weights, 0 <= row.share <= 1) for row in evidence.table()]
        [('rotation', 4, True)]
    """

    def __init__(self, network: nn.Module, observations: int, likelihood: str = "categorical", seed: int = 0) -> None:
        is_wrapped = isinstance(network, DistributedDataParallel)
        self.network: nn.Module = network.module if is_wrapped else network  # type: ignore[assignment]
        relaxed_layers(self.network)
        self.observations = check_integer("observations", observations, 1)
        self.likelihood = check_choice("likelihood", likelihood, LIKELIHOODS)
        self._generator = torch.Generator().manual_seed(check_integer("seed", seed, 0))
        # Of each group by its name: δ; γ, ‖α‖² and the columns of the rows of H in the last update.
        self._precision: dict[str, float] = {}
        self._determined: dict[str, float] = {}
        self._squares: dict[str, float] = {}
        self._rows: dict[str, Tensor] = {}
        # The variance of a Gaussian, and the number of outputs of an input that the loss is a mean over.
        self._noise, self._outputs = 1.0, 1
        self._scale = torch.zeros(0)
        self._collect()
        if not self._groups:
            raise ValueError("network has no soft weights that learn: its layers are strict, hardened or frozen")

    def penalty(self) -> Tensor:
        """Return Σ δ‖α‖² / 2N in the units of the loss, 0 before the first update. Nothing waits for a device."""
        if not self._groups:
            return torch.zeros(())
        alpha = self._weights()
        self._scale = self._scale.to(alpha)
        return (self._scale * alpha.square()).sum()

    def update(self, inputs: Any, targets: Tensor | None = None) -> None:
        """Learn δ anew from some inputs of the training data; 128 are enough.

        Args:
            inputs: a batch, a tensor or a GeometricTensor; or a tuple of all arguments of the network, this one first.
            targets: those of a regression, from whose residuals the noise is estimated.

        Raises:
            TypeError: for an argument of the wrong type.
            ValueError: for fewer than ten inputs or more than ``observations``, outputs that do not fit the likelihood,
                or a gradient that is not finite.
        """
        count = count_inputs(inputs)
        if not _FEWEST_INPUTS <= count <= self.observations:
            raise ValueError(
                f"inputs must be {_FEWEST_INPUTS} or more, and no more than observations (={self.observations}), "
                f"got {count}"
            )
        self._collect()
        if not self._groups:
            return
        with in_eval_mode(self.network), full_precision(plain(next(input_chunks(inputs, count))[0], "inputs")):
            if self.likelihood == "gaussian":
                self._estimate_noise(inputs, targets)
            rows = self._gradients(inputs)
        keys, widths = [group.key for group in self._groups], [group.width for group in self._groups]
        alpha = self._weights().detach().cpu().double()
        self._rows = dict(zip(keys, rows.split(widths, 1), strict=True))
        self._squares = {key: float(of.square().sum()) for key, of in zip(keys, alpha.split(widths), strict=True)}
        self._precision |= {key: max(self._precision[key], LEAST_PRECISION) for key in keys}
        for _ in range(_STEPS):
            determined, _ = self._posterior(self._groups)
            for key, gamma in determined.items():
                delta = gamma / max(self._squares[key], _NOTHING)
                self._precision[key] = min(max(delta, LEAST_PRECISION), MOST_PRECISION)
        self._determined |= self._posterior(self._groups)[0]
        self._set_scale()

    def table(self) -> EvidenceTable:
        """Return what the data determine of each layer's softness in each subgroup; its text is a table."""
        layers = relaxed_layers(self.network)
        rows = []
        for group in self._groups:
            with torch.no_grad():
                softness = float(layers[group.layer].softness(*re.split(" × |, ", group.label)))
            determined = self._determined.get(group.key, math.nan)
            rows.append(
                EvidenceRow(group.layer, group.label, group.size, determined, softness, self._precision[group.key])
            )
        return EvidenceTable(tuple(rows))

    @torch.no_grad()
    def log_evidence(self, inputs: Any, targets: Tensor) -> float:
        """Return Laplace's estimate of log p(data), all weights but α at their values, with δ of the last update.

        Of two networks, of D4 and C4 for instance, the one of higher evidence fits the data with the softness that
        they need.

        Args:
            inputs: of the training data; all of them, or some of which the mean stands for all.
            targets: theirs.

        Raises:
            RuntimeError: before the first update.
        """
        self._check_updated("log_evidence")
        mean, _ = self._mean(self._losses(inputs, targets))
        _, price = self._posterior(self._groups)
        return -self.observations * mean - price

    @torch.no_grad()
    def harden(self, inputs: Any, targets: Tensor) -> HardeningReport:
        """Make strict in place what the data do not need, by what it costs, and say what was done.

        A subgroup is hardened in all layers together, those of the least γ/n first. It stays so if 2Δ ≤ n: Δ is the
        rise of the negative log likelihood of all N observations, n the number of soft weights that go. What does not
        stay is tried in each layer alone. γ/n does not decide, since it is 0 where a network fits perfectly.

        Args:
            inputs: for the trials; best some hundred that were not used in training.
            targets: theirs.

        Raises:
            RuntimeError: before the first update.

        Example:
            >>> from escnn import gspaces
            >>> from escnn_relaxed import RelaxedR2Conv
            >>> gspace = gspaces.rot2dOnR2(4)
            >>> image = gspace.type(gspace.trivial_repr)
            >>> layer = RelaxedR2Conv(image, image, 5, initial_softness=1e-6)
            >>> evidence = SoftnessEvidence(layer, 100, likelihood="gaussian")
            >>> images, targets = image(torch.randn(100, 1, 5, 5)), torch.randn(100, 1, 1, 1)
            >>> evidence.update(images, targets)
            >>> [trial.is_hardened for trial in evidence.harden(images, targets)]
            [True]
            >>> layer.hardened
            ('rotation',)
        """
        self._collect()
        self._check_updated("harden")
        losses = self._losses(inputs, targets)
        trials: list[HardeningTrial] = []
        for unit in sorted(self._units(), key=lambda unit: self._share(self._going(unit))):
            trial, losses = self._trial(unit, self._going(unit), losses, inputs, targets)
            trials.append(trial)
            if trial.is_hardened or len(trial.layers) == 1:
                continue
            by_layer = [[of for of in self._going(unit) if of.layer == name] for name in trial.layers]
            for groups in sorted(by_layer, key=self._share):
                trial, losses = self._trial(unit, groups, losses, inputs, targets)
                trials.append(trial)
        return HardeningReport(tuple(trials))

    def state_dict(self) -> dict[str, Any]:
        """Return all that was learned, for :meth:`load_state_dict`."""
        return {
            "precision": dict(self._precision),
            "determined": dict(self._determined),
            "noise": self._noise,
            "outputs": self._outputs,
            "generator": self._generator.get_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state, after the network has loaded its own.

        Raises:
            TypeError: for a state that is no mapping.
            ValueError: for the state of other layers.
        """
        if check_mapping("state", state, "what state_dict gave").keys() != self.state_dict().keys():
            raise ValueError(f"state must have {list(self.state_dict())}, got {list(state)}")
        self._collect()
        keys = [group.key for group in self._groups]
        if not state["precision"].keys() >= set(keys):
            raise ValueError(f"state must have precisions of {keys}, got those of {list(state['precision'])}")
        self._precision, self._determined = dict(state["precision"]), dict(state["determined"])
        self._noise, self._outputs = state["noise"], state["outputs"]
        self._generator.set_state(state["generator"].cpu())
        self._set_scale()

    def _collect(self) -> None:
        """Find the soft weights that learn, and the precision of each group that was known before."""
        self._groups: list[_Group] = []
        owners: dict[int, str] = {}
        for name, layer in relaxed_layers(self.network).items():
            for label, entries in layer.weight_groups().items():
                # Weights that layers share are those of the first of them.
                own = [
                    (parameter, places.to(parameter.device))
                    for parameter, places in entries
                    if parameter.requires_grad and owners.setdefault(id(parameter), name) == name
                ]
                if own and not _is_gone(label, layer.hardened):
                    self._groups.append(_Group(name, label, own))
                    self._precision.setdefault(f"{name}/{label}", 0.0)
        self._set_scale()

    def _set_scale(self) -> None:
        """Set the factor of α² in the penalty, from a mean over outputs to the likelihood of the observations."""
        unit = 2 * self._noise if self.likelihood == "gaussian" else 1.0
        delta = torch.tensor([self._precision[of.key] for of in self._groups], dtype=torch.float64, device="cpu")
        widths = torch.tensor([group.width for group in self._groups], dtype=torch.long, device="cpu")
        self._scale = delta.repeat_interleave(widths) * unit / (2 * self.observations * self._outputs)

    def _weights(self) -> Tensor:
        """Return α of all groups, one after the other."""
        entries = [pair for group in self._groups for pair in group.entries]
        return torch.cat([_taken(parameter.flatten(), places) for parameter, places in entries])

    def _posterior(self, groups: Sequence[_Group]) -> tuple[dict[str, float], float]:
        """Return γ of each of some groups, and the price of their weights: what log p(data) has beside the loss."""
        # Σ is never made. With A = G δ^(−½) and H = GᵀG, δ(H + δ)⁻¹ is 1 − Aᵀ(1 + AAᵀ)⁻¹A, whose inverse exists for
        # every H; and log det(Σ⁻¹/δ) is log det(1 + AAᵀ).
        if not groups:
            return {}, 0.0
        scaled = torch.cat([self._rows[of.key] / self._precision[of.key] ** 0.5 for of in groups], 1)
        factor = torch.linalg.cholesky(torch.eye(len(scaled), dtype=scaled.dtype, device="cpu") + scaled @ scaled.mT)
        each = torch.linalg.solve_triangular(factor, scaled, upper=False).square().sum(0)
        determined = [float(of.sum()) for of in each.split([group.width for group in groups])]
        energy = sum(self._precision[group.key] * self._squares[group.key] for group in groups)
        price = energy / 2 + float(factor.diagonal().log().sum())
        return {group.key: gamma for group, gamma in zip(groups, determined, strict=True)}, price

    def _estimate_noise(self, inputs: Any, targets: Tensor | None) -> None:
        """Take the mean square of the residuals as the variance of the noise."""
        if targets is None:
            raise ValueError("targets must be given where likelihood='gaussian': they say how large the noise is")
        self._noise = 1.0
        with torch.no_grad():
            mean, _ = self._mean(self._losses(inputs, targets))
        self._noise = max(2 * mean / self._outputs - math.log(2 * math.pi), torch.finfo(torch.float32).tiny)

    def _gradients(self, inputs: Any) -> Tensor:
        """Return rows G with GᵀG = H, of the inputs of all processes, in double precision."""
        entries = [pair for group in self._groups for pair in group.entries]
        parameters = list({id(parameter): parameter for parameter, _ in entries}.values())
        rows = []
        for arguments in input_chunks(inputs, _CHUNK):
            with torch.enable_grad():
                of_inputs = gradients(self.network, parameters, arguments, self._direction)
            known = {
                id(parameter): of.reshape(len(of), -1) for parameter, of in zip(parameters, of_inputs, strict=True)
            }
            taken = [_taken(known[id(parameter)], places) for parameter, places in entries]
            rows.append(torch.cat(taken, 1).detach().cpu().double())
        of_all = [torch.cat(rows)]
        if _has_processes():
            of_all = [of_all[0]] * distributed.get_world_size()
            distributed.all_gather_object(of_all, of_all[0])
        joined = torch.cat(of_all)
        if not joined.isfinite().all():
            raise ValueError("inputs: a gradient of the network's output is not finite")
        joined = joined * (self.observations / len(joined)) ** 0.5
        return torch.linalg.qr(joined, mode="r")[1] if len(joined) > joined.shape[1] else joined

    def _direction(self, output: Tensor) -> Tensor:
        self._check_output(output)
        return fisher_direction(output, self.likelihood, self._noise, self._generator)

    def _check_output(self, output: Tensor) -> None:
        """Check the output, and count the values of an input that the loss is a mean over."""
        classes = 1
        if self.likelihood == "categorical":
            classes = output.shape[1] if output.dim() > 1 else 1
            if classes < 2:
                raise ValueError(
                    f"likelihood='categorical' is of outputs (batch, classes, …) with two classes or more, got "
                    f"{tuple(output.shape)}"
                )
        self._outputs = output[0].numel() // classes

    def _losses(self, inputs: Any, targets: Tensor) -> Tensor:
        """Return the negative log likelihood of each input, (batch,)."""
        count = count_inputs(inputs)
        if len(targets) != count:
            raise ValueError(f"targets must be as many as inputs (={count}), got {len(targets)}")
        found = []
        with in_eval_mode(self.network):
            chunks = zip(input_chunks(inputs, _LARGE_CHUNK), targets.split(_LARGE_CHUNK), strict=True)
            for arguments, wanted in chunks:
                output = plain(self.network(*arguments), "network: its output")
                self._check_output(output)
                found.append(losses(output, wanted, self.likelihood, self._noise).double())
        return torch.cat(found)

    @staticmethod
    def _mean(values: Tensor) -> tuple[float, float]:
        """Return the mean over the inputs of all processes, and its standard error."""
        sums = torch.stack([torch.ones_like(values), values, values.square()]).sum(1)
        if _has_processes():
            distributed.all_reduce(sums)
        count, first, second = sums.tolist()
        mean = first / count
        return mean, math.sqrt(max(second / count - mean**2, 0.0) / count)

    def _units(self) -> set[tuple[str, ...]]:
        """Return the subgroups that layers can be made strict in one by one, of some layers several together."""
        return {tuple(group.label.split(", ")) for group in self._groups if " × " not in group.label}

    def _going(self, unit: tuple[str, ...]) -> list[_Group]:
        """Return the groups that go where all layers become strict in some subgroups."""
        return [group for group in self._groups if _is_gone(group.label, unit)]

    def _share(self, groups: Sequence[_Group]) -> float:
        """Return γ/n of some groups together."""
        known = [self._determined.get(group.key, 0.0) for group in groups]
        return sum(known) / sum(group.size for group in groups)

    def _trial(
        self, unit: tuple[str, ...], groups: Sequence[_Group], losses: Tensor, inputs: Any, targets: Tensor
    ) -> tuple[HardeningTrial, Tensor]:
        """Harden layers for a trial; the trial and the losses of the network as it then is."""
        names = tuple(dict.fromkeys(group.layer for group in groups))
        layers = [relaxed_layers(self.network)[name] for name in names]
        going = [group.key for group in groups]
        rest = [group for group in self._groups if group.key not in going]
        price = self._posterior(self._groups)[1] - self._posterior(rest)[1]
        before = [layer.hardened for layer in layers]
        is_kept = False
        try:
            for layer in layers:
                layer.harden(*unit)
            hardened = self._losses(inputs, targets)
            rise, error = (self.observations * value for value in self._mean(hardened - losses))
            is_kept = rise <= price + error
        finally:
            if not is_kept:
                for layer, subgroups in zip(layers, before, strict=True):
                    layer.hardened = subgroups
        self._collect()
        size = sum(group.size for group in groups)
        trial = HardeningTrial(", ".join(unit), names, size, rise, error, price, is_kept)
        return trial, hardened if is_kept else losses

    def _check_updated(self, name: str) -> None:
        if not all(group.key in self._rows for group in self._groups):
            raise RuntimeError(f"{name} needs what an update learns: call update(inputs) before")


def _taken(values: Tensor, places: Tensor) -> Tensor:
    """Return the entries at some places of the last axis; where these are a matrix, less the means of its rows."""
    taken = values[..., places.to(values.device)]
    if places.dim() == 1:
        return taken
    return (taken - taken.mean(-1, keepdim=True)).flatten(-2)


def _is_gone(label: str, hardened: Sequence[str]) -> bool:
    """Return whether soft weights no longer do anything in a layer that is strict in some subgroups."""
    if ", " in label:
        return all(name in hardened for name in label.split(", "))
    return any(name in hardened for name in label.split(" × "))


def _has_processes() -> bool:
    return distributed.is_available() and distributed.is_initialized()

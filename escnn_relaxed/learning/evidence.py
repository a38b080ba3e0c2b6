"""How soft each layer should be in each subgroup, by the evidence of the training data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import repeat
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..checks import check_integer, check_mapping
from ..network.relaxed_layers import in_eval_mode, relaxed_layers
from ..torch_modes import full_precision
from .evidence_table import EvidenceRow, EvidenceTable, HardeningReport, HardeningTrial
from .likelihoods import Likelihood
from .posterior import fisher_rows, posterior
from .soft_gradients import (
    SoftGroup,
    count_inputs,
    gradients,
    input_chunks,
    is_gone,
    joined_over_processes,
    mean_over_processes,
    output_of,
    plain,
    soft_groups,
)

# Bounds of δ. A weight of 1 modulates a kernel by about a fifth: below the first a prior asks for nothing, and beyond
# the second it leaves a softness below 1e-7.
LEAST_PRECISION, MOST_PRECISION = 1e-2, 1e6
# Steps of the fixed point in an update. More would follow weights that are still on their way.
_STEPS = 3
# ‖α‖² below this is 0.
_NOTHING = 1e-300
# Softness stays where it gains more than this many times its price, since other weights have counted on it and do not
# adapt in a trial, and at odds of 20 to 1. Where nothing needs it, the rise is up to two prices.
_COUNTED_ON, _ODDS = 2.0, math.log(20)
# The largest second derivative of the penalty, so that SGD without Adam's scaling is stable up to a rate of 0.2.
_STEEPEST = 10.0
FEWEST_INPUTS = 10
# Inputs at a time, for gradients of single ones and for losses.
_CHUNK, _LARGE_CHUNK = 32, 256


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
    take away softness that comes late. A strict network fits a few hundred inputs as well as a soft one does, and then
    updates take away softness that would help on others.

    The loss is the mean of torch's ``cross_entropy``, ``binary_cross_entropy_with_logits`` or ``mse_loss`` over all
    outputs. Those of a regression count less where the residuals of an input go together, as of neighbouring pixels.
    Weights that are frozen and subgroups that are hardened are left out. The soft weights of a ``ContinuousKernel`` are
    those of its domain coordinates, or a learned ω′: then the penalty is the paper's λ‖ω′‖², with the λ of the data.

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
        >>> image = gspace.type(gspace.trivial_repr)
        >>> logits = gspace.type(*[gspace.trivial_repr] * 2)
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
        self._likelihood = Likelihood(likelihood)
        self._generator = torch.Generator().manual_seed(check_integer("seed", seed, 0))
        # Of each group by its name: δ; γ, ‖α‖² and the columns of the rows of H in the last update.
        self._precision: dict[str, float] = {}
        self._determined: dict[str, float] = {}
        self._squares: dict[str, float] = {}
        self._rows: dict[str, Tensor] = {}
        self._scale = torch.zeros(0)
        self._collect()
        if not self._groups:
            raise ValueError(
                "network has no soft weights that learn: its layers are strict, hardened or frozen"
            )

    @property
    def likelihood(self) -> str:
        """The name of the likelihood."""
        return self._likelihood.name

    def penalty(self) -> Tensor:
        """Return Σ δ‖α‖² / 2N in the units of the loss; 0 before the first update.

        Nothing waits for a device. δ beyond 10 N counts as 10 N, so that SGD is stable at rates up to 0.2.
        """
        if not self._is_current():
            self._collect()  # load_state_dict(…, assign=True), for one, puts other parameters in their places
        if not self._groups:
            return torch.zeros(())
        alpha = self._weights()
        self._scale = self._scale.to(alpha)
        return (self._scale * alpha.square()).sum()

    def update(self, inputs: Any, targets: Tensor | None = None) -> None:
        """Learn δ anew from some inputs of the training data; 128 are enough.

        Args:
            inputs: a batch, a tensor or a GeometricTensor; or a tuple of all arguments of the network, this one first.
            targets: those of a regression. Its residuals say how large the noise is, and what an output weighs.

        Raises:
            TypeError: for an argument of the wrong type.
            ValueError: for fewer than ten inputs or more than ``observations``, outputs that do not fit the likelihood,
                or a gradient that is not finite.
        """
        count = count_inputs(inputs)
        if not FEWEST_INPUTS <= count <= self.observations:
            raise ValueError(
                f"inputs must be {FEWEST_INPUTS} or more, and no more than observations (={self.observations}), "
                f"got {count}"
            )
        self._collect()
        if not self._groups:
            return
        known = self._likelihood
        try:
            with in_eval_mode(self.network), full_precision(plain(next(input_chunks(inputs, count))[0], "inputs")):
                rows = self._weighted_gradients(inputs, targets)
        except Exception:
            self._likelihood = known
            raise
        keys, sizes = [group.key for group in self._groups], [group.size for group in self._groups]
        alpha = self._weights().detach().cpu().double()
        self._rows = dict(zip(keys, rows.split(sizes, 1), strict=True))
        self._squares = {key: float(of.square().sum()) for key, of in zip(keys, alpha.split(sizes), strict=True)}
        self._precision |= {key: max(self._precision[key], LEAST_PRECISION) for key in keys}
        for _ in range(_STEPS):
            for key, gamma in self._posterior(self._groups)[0].items():
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
                softness = float(layers[group.layer].softness(*group.subgroups))
            numbers = self._determined.get(group.key, math.nan), softness, self._precision[group.key]
            rows.append(EvidenceRow(group.layer, group.label, group.size, *numbers))
        return EvidenceTable(tuple(rows))

    @torch.no_grad()
    def log_evidence(self, inputs: Any, targets: Tensor) -> float:
        """Return Laplace's estimate of log p(data), all weights but α at their values, with δ of the last update.

        Of networks of D4 and C4, for instance, that of higher evidence fits the data with the softness that it needs.

        Args:
            inputs: of the training data; all of them, or some of which the mean stands for all.
            targets: theirs.

        Raises:
            RuntimeError: before the first update.
        """
        self._check_updated("log_evidence")
        mean, _ = mean_over_processes(self._losses(inputs, targets))
        # Outputs count in full: the weight of a network whose errors go together is small, and would favour it.
        weight = self._likelihood.weight
        return -self.observations * mean / weight - self._posterior(self._groups, 1 / weight)[1]

    @torch.no_grad()
    def harden(self, inputs: Any, targets: Tensor) -> HardeningReport:
        """Make strict in place what the data do not need, by what it costs, and say what was done.

        A subgroup is hardened in all layers together, those of the least γ/n first, and what does not stay strict in
        each layer alone. It becomes soft again if Δ, the rise of the negative log likelihood of all N observations, is
        above twice the price of the weights that go, by log 20 and the error of Δ. The price is what they cost
        in log p(data), ½ (δ‖α‖² + log det Σ⁻¹/δ). γ/n does not decide: it is near 0 in a perfect fit, too.

        Train on for an epoch or two: batch norm has statistics of the soft network, and other weights count on it.

        Args:
            inputs: for the trials. Images that were not trained on are the safer choice.
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
            >>> [trial.is_hardened for trial in evidence.harden(images, targets)], layer.hardened
            ([True], ('rotation',))
        """
        self._collect()
        self._check_updated("harden")
        losses = self._losses(inputs, targets)
        trials: list[HardeningTrial] = []
        # The subgroups that layers can be made strict in one by one, of some layers several together.
        units = {tuple(group.label.split(", ")) for group in self._groups if " × " not in group.label}
        for unit in sorted(units, key=lambda unit: self._share(self._going(unit))):
            if not (going := self._going(unit)):
                continue  # all of them have gone with several subgroups together
            trial, losses = self._trial(unit, going, losses, inputs, targets)
            trials.append(trial)
            by_layer = [[of for of in going if of.layer == name] for name in dict.fromkeys(of.layer for of in going)]
            if trial.is_hardened or len(by_layer) == 1:
                continue
            for groups in sorted(by_layer, key=self._share):
                trial, losses = self._trial(unit, groups, losses, inputs, targets)
                trials.append(trial)
        return HardeningReport(tuple(trials))

    def state_dict(self) -> dict[str, Any]:
        """Return all that was learned, for :meth:`load_state_dict`."""
        return {
            "precision": dict(self._precision),
            "determined": dict(self._determined),
            "noise": self._likelihood.noise,
            "outputs": self._likelihood.outputs,
            "weight": self._likelihood.weight,
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
        vars(self._likelihood).update((name, state[name]) for name in ("noise", "outputs", "weight"))
        self._generator.set_state(state["generator"].cpu())
        self._set_scale()

    def _collect(self) -> None:
        """Find the soft weights that learn, and the precision of each group that was known before."""
        self._groups = soft_groups(self.network)
        soft = {id(parameter) for group in self._groups for parameter, _ in group.entries}
        self._parameters = {name: of for name, of in self.network.named_parameters() if id(of) in soft}
        self._precision = dict.fromkeys((group.key for group in self._groups), 0.0) | self._precision
        self._set_scale()

    def _is_current(self) -> bool:
        """Whether the network still has the parameters that were found, and no others in their places."""
        try:
            return all(attrgetter(name)(self.network) is of for name, of in self._parameters.items())
        except AttributeError:
            return False

    def _set_scale(self) -> None:
        """Set the factor of each α² in the penalty."""
        delta = torch.tensor([self._precision[of.key] for of in self._groups], dtype=torch.float64, device="cpu")
        sizes = torch.tensor([group.size for group in self._groups], dtype=torch.long, device="cpu")
        factors = delta * self._likelihood.unit / (2 * self.observations)
        self._scale = factors.clamp_max(_STEEPEST / 2).repeat_interleave(sizes)

    def _weights(self) -> Tensor:
        """Return α of all groups, one after the other."""
        values = {id(parameter): parameter.flatten() for parameter in self._parameters.values()}
        return torch.cat([of for group in self._groups for of in group.taken(values)])

    def _posterior(self, groups: Sequence[SoftGroup], weight: float = 1.0) -> tuple[dict[str, float], float]:
        """Return γ of each of some groups, and the price of their weights: what log p(data) has beside the loss."""
        keys = [group.key for group in groups]
        precision, squares = ([of[key] for key in keys] for of in (self._precision, self._squares))
        determined, price = posterior([self._rows[key] for key in keys], precision, squares, weight)
        return dict(zip(keys, determined, strict=True)), price

    def _weighted_gradients(self, inputs: Any, targets: Tensor | None) -> Tensor:
        """Return rows G with GᵀG = H; with targets of a regression find its noise and the weight of an output first."""
        self._likelihood = Likelihood(self.likelihood)
        if self.likelihood == "gaussian":
            if targets is None:
                raise ValueError("targets must be given where likelihood='gaussian': they say how large the noise is")
            with torch.no_grad():
                self._likelihood.fit(mean_over_processes(self._losses(inputs, targets))[0])
        rows = self._gradients(inputs)
        if targets is not None and self._likelihood.is_weighted:
            rows = self._likelihood.weighted(rows, self._gradients(inputs, targets))
        return rows

    def _gradients(self, inputs: Any, targets: Tensor | None = None) -> Tensor:
        """Return rows G with GᵀG = H, of the inputs of all processes, in double precision; or those of residuals."""
        parameters, rows = list(self._parameters.values()), []
        parts = repeat(None) if targets is None else targets.split(_CHUNK)
        for arguments, wanted in zip(input_chunks(inputs, _CHUNK), parts, strict=False):
            direction = partial(self._likelihood.direction, generator=self._generator, targets=wanted)
            with torch.enable_grad():
                of_inputs = gradients(self.network, parameters, arguments, direction)
            values = {id(of): found.reshape(len(found), -1) for of, found in zip(parameters, of_inputs, strict=True)}
            taken = [of for group in self._groups for of in group.taken(values)]
            rows.append(torch.cat(taken, 1).detach().cpu().double())
        return fisher_rows(joined_over_processes(torch.cat(rows)), self.observations)

    def _losses(self, inputs: Any, targets: Tensor) -> Tensor:
        """Return the negative log likelihood of each input, (batch,)."""
        count = count_inputs(inputs)
        if len(targets) != count:
            raise ValueError(f"targets must be as many as inputs (={count}), got {len(targets)}")
        found = []
        with in_eval_mode(self.network):
            for arguments, wanted in zip(input_chunks(inputs, _LARGE_CHUNK), targets.split(_LARGE_CHUNK), strict=True):
                output = output_of(self.network, arguments)
                found.append(self._likelihood.losses(output, wanted).double())
        return torch.cat(found)

    def _going(self, unit: tuple[str, ...]) -> list[SoftGroup]:
        """Return the groups that go where all layers become strict in some subgroups."""
        return [group for group in self._groups if is_gone(group.label, unit)]

    def _share(self, groups: Sequence[SoftGroup]) -> float:
        """Return γ/n of some groups together."""
        known = [self._determined.get(group.key, 0.0) for group in groups]
        return sum(known) / sum(group.size for group in groups)

    def _trial(
        self, unit: tuple[str, ...], groups: Sequence[SoftGroup], losses: Tensor, inputs: Any, targets: Tensor
    ) -> tuple[HardeningTrial, Tensor]:
        """Harden layers for a trial; the trial and the losses of the network as it then is."""
        names = tuple(dict.fromkeys(name for group in groups for name in group.layers))
        layers = [relaxed_layers(self.network)[name] for name in names]
        rest = [of for of in self._groups if of.key not in {group.key for group in groups}]
        price = self._posterior(self._groups)[1] - self._posterior(rest)[1]
        before = [layer.hardened for layer in layers]
        is_kept = False
        try:
            for layer in layers:
                layer.harden(*unit)
            hardened = self._losses(inputs, targets)
            rise, error = (self.observations * value for value in mean_over_processes(hardened - losses))
            is_kept = rise - error <= _COUNTED_ON * price + _ODDS
        finally:
            if not is_kept:
                for layer, subgroups in zip(layers, before, strict=True):
                    layer.hardened = subgroups
        self._collect()
        trial = HardeningTrial(", ".join(unit), names, sum(group.size for group in groups), rise, error, price, is_kept)
        return trial, hardened if is_kept else losses

    def _check_updated(self, name: str) -> None:
        if not all(group.key in self._rows for group in self._groups):
            raise RuntimeError(f"{name} needs what an update learns: call update(inputs) before")

"""The evidence of the training data for the softness of each layer in each subgroup."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..checks import check_callable, check_integer, check_mapping, check_not_negative
from ..measure.batches import device_of, joined_pairs
from ..measure.forward_probe import OutputSelector
from ..measure.symmetry_profile import SymmetryProfile, symmetry_profile
from ..network.relaxed_layers import copy_network, first_input, in_eval_mode, relaxed_layers
from ..torch_modes import full_precision
from .cloud_batch import batch_of
from .fisher_matrix import Batch
from .hardening import HardeningReport, harden_by_trials
from .likelihoods import IGNORE_INDEX, Likelihood
from .posterior import EvidenceRow, EvidenceTable, fixed_point, posterior_draws
from .prior import LearnedGroup, Prior, check_prior
from .soft_gradients import SoftGroup, SoftWeights, gather_entries, joined_over_processes, scale_entries, soft_groups

FEWEST_INPUTS = 10


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

    An update finds new δ by MacKay's fixed point. δ has a gamma prior, which counts as n₀ more weights of size σ₀::

        H = Fisher matrix of all observations over α       Σ = (H + diag δ)⁻¹
        γ = n − δ tr Σ                                     δ ← (γ + n₀) / (‖α‖² + n₀σ₀²)

    n₀ is 1 and σ₀ is 0.5. The data determine γ of the n weights. Where they say nothing, as where few images are fitted
    perfectly, δ stays at 1/σ₀² = 4. Begin after the third epoch, because before that the network knows too little: an
    early update takes away softness that comes late.

    The loss is the mean of torch's ``cross_entropy``, ``binary_cross_entropy_with_logits`` or ``mse_loss`` over all
    outputs, or over those whose class is not ``ignore_index``. Label smoothing changes nothing. Class weights and
    ``pos_weight`` are not known here: every output counts once, as if their mean were 1. In a regression the residuals
    of one input may be correlated, as those of neighbouring pixels; such outputs count less. Frozen weights and
    hardened subgroups are left out. The soft weights of a ``ContinuousKernel`` are those of its domain coordinates, or
    a learned ω′: then the penalty is the paper's λ‖ω′‖², with the λ of the data. Those of a
    :class:`~escnn_relaxed.ReferenceField` are its vector, in units of features that are normalised.

    A cloud is an input, and N counts clouds. Outputs are of clouds, or of nodes, which are to a cloud as the pixels to
    an image: they share messages, and have one gradient together.

    Args:
        network: any module, with weights of relaxed layers whole in each process (not of ``fully_shard``). Its output,
            a tensor or a GeometricTensor, is that of the likelihood. A gate on its softness is refused: δ is that of
            the weights α, and what the data determine would be g α, with another g for each input.
        observations: N, the number of training inputs in all processes; with augmentation the number before it.
        likelihood: ``"categorical"`` for logits (batch, classes, …), ``"binary"`` for logits of any shape, or
            ``"gaussian"`` for a regression.
        seed: of the draws from the prediction.
        output: from what the network returns to the tensor of the likelihood, where it returns a dict or a tuple:
            ``lambda returned: returned["logits"]``.
        ignore_index: the class of outputs that the loss leaves out, as of ``cross_entropy``. Where there are some,
            updates need targets.
        prior: of the soft weights; the :class:`~escnn_relaxed.learning.GammaPrior` above by default.

    Raises:
        TypeError: for an argument of the wrong type.
        ValueError: for another likelihood, a number that is too small, or a network without soft weights that learn.

    Example:
        >>> import torch
        >>> from escnn import gspaces
        >>> from escnn_relaxed import RelaxedR2Conv, SoftnessEvidence
        >>> from torch.nn.functional import cross_entropy
        >>> gspace = gspaces.rot2dOnR2(4)
        >>> image = gspace.type(gspace.trivial_repr)
        >>> logits = gspace.type(*[gspace.trivial_repr] * 2)
        >>> layer = RelaxedR2Conv(image, logits, 5)
        >>> evidence = SoftnessEvidence(layer, observations=100)
        >>> images, labels = torch.randn(100, 1, 5, 5), torch.randint(0, 2, (100, 1, 1))
        >>> evidence.update(image(images))
        >>> loss = cross_entropy(layer(image(images)).tensor, labels) + evidence.penalty()
        >>> [(row.subgroup, row.weights) for row in evidence.table()]
        [('rotation', 4)]
    """

    def __init__(
        self,
        network: nn.Module,
        observations: int,
        likelihood: str = "categorical",
        seed: int = 0,
        output: OutputSelector = None,
        ignore_index: int = IGNORE_INDEX,
        prior: Prior | None = None,
    ) -> None:
        is_wrapped = isinstance(network, DistributedDataParallel)
        self.network: nn.Module = network.module if is_wrapped else network  # type: ignore[assignment]
        relaxed_layers(self.network)
        self.observations = check_integer("observations", observations, 1)
        self._likelihood = Likelihood(likelihood, ignore_index)
        self._generator = torch.Generator().manual_seed(check_integer("seed", seed, 0))
        if output is not None:
            check_callable("output", output)
        self._output = output
        self._prior = check_prior(prior)
        self._learned: dict[str, LearnedGroup] = {}
        self._factors = torch.zeros(0)  # of each α² in the penalty
        self._collect()
        if not self._groups:
            raise ValueError("network has no soft weights that learn: its layers are strict, hardened or frozen")

    @property
    def likelihood(self) -> str:
        """The name of the likelihood."""
        return self._likelihood.name

    def penalty(self) -> Tensor:
        """Return Σ δ‖α‖² / 2N in the units of the loss; 0 before the first update.

        Nothing waits for a device. δ beyond 10 N counts as 10 N, so that SGD is stable at rates up to 0.2.
        """
        if not self._current_groups():
            return torch.zeros(())
        alpha = self._soft.values()
        return (self._factors_beside(alpha).to(alpha) * alpha.square()).sum()

    @torch.no_grad()
    def decay(self, learning_rate: float | torch.optim.Optimizer) -> None:
        """Shrink the soft weights by their prior, α ← (1 − rate · δ/N) α, in place of :meth:`penalty` in the loss.

        This is decoupled weight decay (Loshchilov and Hutter 2019), to be called beside each step of the optimiser.
        With plain SGD it does what the penalty does. Adam divides a gradient by its usual size. Where few inputs are
        fitted perfectly the gradient of the loss is nearly 0, so Adam follows the penalty alone, at its full rate
        however small the penalty is, and softness that helps is lost. Decay stays as slow as δ/N says.

        Args:
            learning_rate: that of the step; or the optimiser, whose groups say the rate of each soft weight. Weights
                that it does not have stay as they are.

        Raises:
            TypeError: for another type.
            ValueError: for a number below 0.
        """
        is_soft = bool(self._current_groups())
        if isinstance(learning_rate, torch.optim.Optimizer):
            groups = learning_rate.param_groups
        else:
            rate = check_not_negative("learning_rate", learning_rate)
            groups = [{"lr": rate, "params": self._soft.parameters}]
        if is_soft:
            factors = self._factors_beside(self._soft.parameters[0])
            rates = {id(value): group["lr"] for group in groups for value in group["params"]}
            own = {id(of): rates.get(id(of), 0.0) * torch.ones_like(of).flatten() for of in self._soft.parameters}
            scale_entries(self._groups, (1 - 2 * gather_entries(self._groups, own).to(factors) * factors).clamp_min(0))

    def update(self, inputs: Any, targets: Tensor | None = None, batch: Tensor | None = None) -> None:
        """Learn δ anew from some inputs of the training data; 128 are enough.

        Args:
            inputs: a batch, a tensor or a GeometricTensor; or a tuple of all arguments of the network, this one first.
            targets: those of a regression. Its residuals say how large the noise is, and what an output weighs. Or
                classes, where some are ``ignore_index``: the share of the others is taken for that of all data.
            batch: the number of the cloud of each node, (nodes,); by default the network's argument of this name.

        Raises:
            TypeError: for an argument of the wrong type.
            ValueError: for fewer than ten inputs or more than ``observations``, outputs or targets that do not fit the
                likelihood, or a gradient that is not finite.
        """
        data = self._batch(inputs, targets, batch)
        data.check(self._likelihood, FEWEST_INPUTS, self.observations)
        self._collect()
        if not self._groups:
            return
        likelihood = Likelihood(self.likelihood, self._likelihood.ignore_index)
        with in_eval_mode(self.network), full_precision(first_input(inputs)):
            rows = data.fisher_rows(self._soft, likelihood, self.observations, self._generator, joined_over_processes)
        sizes = [group.size for group in self._groups]
        squares = [float(alpha.square().sum()) for alpha in self._soft.values().detach().cpu().double().split(sizes)]
        measured = zip(self._present(), squares, rows.split(sizes, 1), strict=True)
        groups = [replace(group, square=square, rows=columns) for group, square, columns in measured]
        learned = fixed_point(groups, self._prior)
        # Rows are of one update together, so what is strict now has none.
        others = {key: replace(group, rows=None) for key, group in self._learned.items()}
        self._learned = others | {group.key: each for group, each in zip(self._groups, learned, strict=True)}
        self._likelihood = likelihood
        self._set_factors()

    def check(self, inputs: Any, targets: Tensor | None = None, batch: Tensor | None = None) -> None:
        """Check that :meth:`update` accepts such a batch, and change nothing; one input is enough.

        Args:
            inputs: a batch as of an update.
            targets: theirs.
            batch: theirs.

        Raises:
            TypeError: for an argument of the wrong type, or an output that is no tensor.
            ValueError: for more inputs than ``observations``, and otherwise as an update.

        Example:
            >>> from escnn import gspaces
            >>> from escnn_relaxed import RelaxedR2Conv
            >>> image = gspaces.rot2dOnR2(4).type(gspaces.rot2dOnR2(4).trivial_repr)
            >>> evidence = SoftnessEvidence(RelaxedR2Conv(image, image, 5), observations=100)
            >>> evidence.check(torch.randn(2, 1, 5, 5))
            Traceback (most recent call last):
            ValueError: likelihood='categorical' is of outputs (batch, classes, …) with two classes ...
        """
        data = self._batch(inputs, targets, batch)
        data.check(self._likelihood, 1, self.observations)
        if not self._current_groups():
            return
        generator = torch.Generator()
        generator.set_state(self._generator.get_state())
        likelihood = Likelihood(self.likelihood, self._likelihood.ignore_index)
        devices = {of.device for of in self.network.parameters() if of.device.type == "cuda"}
        with torch.random.fork_rng(devices), in_eval_mode(self.network), full_precision(first_input(inputs)):
            data.fisher_rows(self._soft, likelihood, self.observations, generator, lambda rows: rows)

    @torch.no_grad()
    def table(self) -> EvidenceTable:
        """Return how far the data determine the softness of each layer in each subgroup; prints as a table."""
        layers = relaxed_layers(self.network)
        rows = []
        for group, learned in zip(self._current_groups(), self._present(), strict=True):
            softness = float(layers[group.layer].softness(*group.weights.subgroups))
            numbers = group.size, learned.determined, softness, learned.precision
            rows.append(EvidenceRow(group.layer, group.weights.name, *numbers))
        return EvidenceTable(tuple(rows))

    @torch.no_grad()
    def symmetry_profile(self, draws: int = 100) -> SymmetryProfile:
        """Return how far each group element moves the kernels, with its posterior error.

        It is :func:`~escnn_relaxed.measure.symmetry_profile`, beside whose ‖hK − K‖ / ‖K‖ stands the root mean square
        by which it changes over draws of the soft weights from their posterior N(α, Σ). An element whose error is no
        more than a few of these may be kept. Weights of the strict part stay as they are.

        Args:
            draws: their number.

        Raises:
            RuntimeError: before the first update.
            ValueError: where no layer has a group with more than the identity.
        """
        self._collect()
        self._check_updated("symmetry_profile")
        draws = check_integer("draws", draws, 1)
        if not self._groups:
            return symmetry_profile(self.network)  # nothing is soft, so that nothing is open
        profile, drawn = symmetry_profile(self.network), copy_network(self.network)
        entries = [entry for group in soft_groups(drawn) for entry in group.weights.entries]
        start = [parameter.view(-1)[places] for parameter, places in entries]
        errors = torch.tensor([row.error for row in profile.rows], dtype=torch.float64)
        squares = torch.zeros_like(errors)
        # The variance by gradients of the errors would be far too small for elements that are nearly kept, the ones
        # asked for: at ‖hK − K‖ = 0 the norm has no derivative.
        for change in posterior_draws(self._present(), draws, self._generator):
            changes = change.split([len(values) for values in start])
            for (parameter, places), values, own_change in zip(entries, start, changes, strict=True):
                parameter.view(-1)[places] = values + own_change.to(values)
            squares += (errors.new_tensor([row.error for row in symmetry_profile(drawn).rows]) - errors).square()
        deviations = (squares / draws).sqrt().tolist()
        rows = (replace(row, deviation=each) for row, each in zip(profile.rows, deviations, strict=True))
        return replace(profile, rows=tuple(rows))

    @torch.no_grad()
    def harden(self, inputs: Any, targets: Tensor | None = None, batch: Tensor | None = None) -> HardeningReport:
        """Give a hint: make layers strict in place where the loss rises too little for softness, and return a report.

        Each subgroup is hardened in all layers together, that of the least γ/n first. If it does not stay strict, it is
        tried in each layer alone. A trial makes it soft again if Δ, the rise of the negative log likelihood of all N
        observations, less its error, is above what is needed: twice the Occam factor of the weights that go, plus
        log 20. The Occam factor is what they cost in log p(data), ½ (δ‖α‖² + log det(Σ⁻¹/δ)). γ/n does not decide,
        because it is near 0 in a perfect fit, too.

        This is a first pass, and no decision. Nothing is trained, so a symmetry that the data keep can look broken
        where other weights count on its softness. :func:`~escnn_relaxed.which_softness_helps` decides.

        Train further for an epoch or two, because batch norm has statistics of the soft network, and other weights
        count on it. In a process group each process decides alone, by the inputs that it is given. Give all of them the
        same inputs, or let one decide and send the ``state_dict()``, which says what is hardened.

        Args:
            inputs: for the trials, or a DataLoader of batches (inputs, targets); those not trained on are safer.
            targets: theirs; left out with a DataLoader.
            batch: as of an update.

        Raises:
            RuntimeError: before the first update.
            TypeError: for batches that are no pair.

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
        inputs, targets = joined_pairs(("inputs", "targets"), inputs, targets, device_of(self.network))
        losses = partial(self._batch(inputs, targets, batch).losses, self._likelihood)
        report = harden_by_trials(self.network, self._learned, losses, self.observations)
        self._collect()
        return report

    def state_dict(self) -> dict[str, Any]:
        """Return all that was learned, for :meth:`load_state_dict`."""
        return {
            "precision": {key: learned.precision for key, learned in self._learned.items()},
            "determined": {key: of.determined for key, of in self._learned.items() if not math.isnan(of.determined)},
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
        precision, determined = state["precision"], state["determined"]
        saved = {key: LearnedGroup(of, determined.get(key, math.nan)) for key, of in precision.items()}
        for group in self._groups:
            learned = saved.get(group.key, saved.get(group.former_key))
            if learned is None:
                keys = [group.key for group in self._groups]
                raise ValueError(f"state must have precisions of {keys}, got those of {list(precision)}")
            saved[group.key] = learned
        self._learned = saved
        vars(self._likelihood).update((name, state[name]) for name in ("noise", "outputs", "weight"))
        self._generator.set_state(state["generator"].cpu())
        self._set_factors()

    def _collect(self) -> None:
        """Collect the trainable soft weights; groups keep their learned precisions."""
        self._soft = SoftWeights(self.network)
        self._groups = self._soft.groups
        self._learned = {group.key: LearnedGroup() for group in self._groups} | self._learned
        self._set_factors()

    def _current_groups(self) -> list[SoftGroup]:
        """Return the groups of the parameters that the network has now."""
        if not self._soft.is_current():
            self._collect()  # load_state_dict(…, assign=True), for one, puts other parameters in their places
        return self._groups

    def _present(self) -> list[LearnedGroup]:
        """Return the learned state of the groups that are soft."""
        return [self._learned[group.key] for group in self._groups]

    def _set_factors(self) -> None:
        """Set the factor of each α² in the penalty."""
        delta = torch.tensor([learned.precision for learned in self._present()], dtype=torch.float64, device="cpu")
        sizes = torch.tensor([group.size for group in self._groups], dtype=torch.long, device="cpu")
        factors = self._prior.factors(delta, self.observations, self._likelihood.unit)
        self._factors = factors.repeat_interleave(sizes)

    def _factors_beside(self, weights: Tensor) -> Tensor:
        """Return the factor of each α² in the penalty, in at least single precision."""
        # Once, so that later steps wait for no copy.
        self._factors = self._factors.to(weights.device, torch.promote_types(weights.dtype, torch.float32))
        return self._factors

    def _batch(self, inputs: Any, targets: Tensor | None, batch: Tensor | None) -> Batch:
        return batch_of(self.network, inputs, targets, self._output, batch)

    def _check_updated(self, name: str) -> None:
        pairs = zip(self._groups, self._present(), strict=True)
        if any(learned.rows is None or learned.size != group.size for group, learned in pairs):
            raise RuntimeError(f"{name} needs what an update learns: call update(inputs) before")

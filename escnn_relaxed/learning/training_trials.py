"""The decider: fine-tune networks with and without a subgroup's softness, and compare them."""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from ..checks import (
    check_bool,
    check_callable,
    check_integer,
    check_positive,
    check_sequence,
    check_subgroups,
    ordered_subgroups,
)
from ..layer.reference_field import ReferenceField
from ..layer.relaxed_layer import RelaxedLayer
from ..measure.batches import Batches, device_of, joined_pairs
from ..measure.forward_probe import OutputSelector
from ..measure.progress import say
from ..measure.reports import Report
from ..network.relaxed_layers import copy_network, first_input, in_eval_mode, input_chunks, relaxed_layers
from .likelihoods import Likelihood
from .soft_gradients import mean_and_error, output_of

# Images of a copy at a time, where it is given images and not a function.
_CHUNK = 256
# The name of reference fields among the candidates.
REFERENCE = "reference"


@dataclass(frozen=True)
class TrainingTrial:
    """Two networks that were trained alike, one of them strict in one more subgroup.

    Attributes:
        subgroup: the subgroup.
        hardened: those in which both networks were strict.
        rise: by how much the mean loss of a held-out input is higher where the subgroup is strict.
        error: its standard error, by the spread over the inputs.
        helps: whether softness in the subgroup helps: the rise is more than ``errors`` of these, all held-out inputs
            together make softness ``odds`` times as likely, and further training does not make up for the rise.
        still_falls: whether the rise is that large, and the loss of one of the two networks falls by as much when it is
            trained once more, so that they were compared too early.

    Example:
        >>> TrainingTrial("rotation", ("reflection",), 0.31, 0.02, True).cells()
        ('rotation', 'reflection', '0.310 ± 0.020', 'helps')
        >>> TrainingTrial("rotation", (), 0.31, 0.02, False, still_falls=True).verdict
        'train longer'
    """

    subgroup: str
    hardened: tuple[str, ...]
    rise: float
    error: float
    helps: bool
    still_falls: bool = False

    @property
    def verdict(self) -> str:
        """``"helps"``, ``"not needed"`` or ``"train longer"``."""
        if self.still_falls:
            return "train longer"
        return "helps" if self.helps else "not needed"

    def cells(self) -> tuple[str, ...]:
        """Return the row as text."""
        rise = f"{round(self.rise, 3) + 0.0:.3f} ± {self.error:.3f}"
        return self.subgroup, ", ".join(self.hardened) or "–", rise, self.verdict


@dataclass(frozen=True)
class TrainingTrials(Report):
    """A row for each comparison; its text is a table.

    Attributes:
        rows: the comparisons in their order.
        trainings: how often a network was trained.
        network: a copy of the network that is strict in all that needs no softness and was trained further. What has
            to be trained longer stays soft in it.

    Example:
        >>> trial = TrainingTrial("rotation", (), 0.31, 0.02, True)
        >>> print(TrainingTrials((trial,), 2, torch.nn.Identity()))
        softness in  beside strict  held-out loss rises by  verdict
        rotation     –              0.310 ± 0.020           helps
    """

    rows: tuple[TrainingTrial, ...]
    trainings: int
    network: nn.Module = field(repr=False)
    _header = ("softness in", "beside strict", "held-out loss rises by", "verdict")

    @property
    def helps(self) -> dict[str, bool | None]:
        """Subgroup → whether softness in it helps, as was found last; None where the networks must train longer."""
        return {row.subgroup: None if row.still_falls else row.helps for row in self.rows}


# It trains, wherever it is called.
@torch.inference_mode(mode=False)
def which_softness_helps(
    network: nn.Module,
    train: Callable[[nn.Module], object],
    losses: Callable[[nn.Module], Tensor] | tuple[Any, Tensor] | Batches,
    *,
    subgroups: Sequence[str] = (),
    errors: float = 3.0,
    odds: float = 20.0,
    seed: int = 0,
    output: OutputSelector = None,
    verbose: bool = True,
) -> TrainingTrials:
    """Find the subgroups in which softness helps, by fine-tuning with and without it.

    A network counts on the softness that it has, so hardening costs something even in a symmetry that the data keep.
    Training mends that. Copies of the network are trained further alike, from the same seed: one as it is, and for each
    subgroup one that is strict in it. Softness helps where the loss on held-out inputs is higher without it, by three
    standard errors, and by odds of 20 to 1 for all of these inputs together, since a rise may be certain and too small
    to matter. The subgroup that is missed least becomes strict if it does not help, and the others are tried again
    beside it.

    A network that still learns can seem to need any softness. So where softness would help, the two copies are trained
    once more. The verdict is ``"train longer"`` if the loss of one of them falls by so much that the rise, less this
    fall, would not help. Then train the network longer, or let ``train`` do more, and ask again.

    Reference fields (:class:`~escnn_relaxed.ReferenceField`) are one candidate more, ``"reference"``: so the answer
    says whether the input breaks the symmetry, the layers do, or nothing needs to.

    With k subgroups this takes at most 3 + k (k + 1) / 2 trainings. A few epochs are enough for a trained network. For
    a network that is new ``train`` may be the whole training.

    In a process group each process decides alone, by its own losses, and waits for no other where ``train`` does not.
    Give all of them the same images. Or let one decide and send the answer.

    Args:
        network: a network with soft layers, which stays as it is; of a ``DistributedDataParallel`` the module inside.
        train: trains the network that it is given in place, with a new optimiser.
        losses: the loss of each held-out input of a network, (inputs,); it is called in eval mode. ``odds`` are those
            of a negative log likelihood, as of cross entropy; divide squares by twice their variance. For cross entropy
            held-out (images, labels) are enough, or a DataLoader of such batches, whose images are kept.
        subgroups: those to try, any of ``"rotation"``, ``"reflection"``, ``"translation"`` (of the layers) and
            ``"reference"``; where none is named, all in which the network may be soft.
        errors: how many standard errors a rise must be above 0.
        odds: how many times as likely softness must make all held-out inputs together.
        seed: of the generators of torch, NumPy and Python before each training, which stay as they are outside. Make a
            data loader with a generator of its own anew in ``train``.
        output: from what the network returns to the logits, where it returns a dict or a tuple and ``losses`` is no
            function: ``lambda returned: returned["logits"]``.
        verbose: whether a terminal shows a line before each training.

    Returns:
        A :class:`TrainingTrials`: ``helps`` for each subgroup (None: train longer), and ``network``, strict in all that
        needs no softness.

    Raises:
        TypeError: for an argument of the wrong type.
        ValueError: for another subgroup, a network that is soft in none, or losses that are not finite.

    Example:
        >>> from escnn import gspaces
        >>> from escnn_relaxed import RelaxedR2Conv
        >>> gspace = gspaces.rot2dOnR2(4)
        >>> image = gspace.type(gspace.trivial_repr)
        >>> generator = torch.manual_seed(1)
        >>> layer = RelaxedR2Conv(image, image, 5, initial_softness=0.1)
        >>> images = torch.randn(2000, 1, 5, 5)
        >>> up = images[:, 0, :2].mean((1, 2))  # the targets have a way up
        >>> def losses(network, chosen=slice(1000, None)):
        ...     return (network(image(images[chosen])).tensor.flatten() - up[chosen]).square()
        >>> def train(network):
        ...     optimiser = torch.optim.Adam(network.parameters(), 0.05)
        ...     for _ in range(100):
        ...         optimiser.zero_grad()
        ...         losses(network, slice(1000)).mean().backward()
        ...         optimiser.step()
        >>> which_softness_helps(layer, train, losses).helps
        {'rotation': True}
    """
    if isinstance(network, DistributedDataParallel):
        network = network.module
    layers = [layer for layer in relaxed_layers(network).values() if isinstance(layer, RelaxedLayer)]
    soft = _soft_in(network)
    wanted = _checked_candidates(subgroups)
    tried = [name for name in soft if name in wanted]
    if not tried:
        raise ValueError(f"network must be soft in one of the subgroups, got layers soft in {soft or 'none'}")
    check_callable("train", train)
    rule = _Rule(check_positive("errors", errors), check_positive("odds", odds))
    most = 3 + len(tried) * (len(tried) + 1) // 2
    check_integer("seed", seed, 0)
    check_bool("verbose", verbose)
    modes = {name: module.training for name, module in network.named_modules()}
    trainer = _Trainer(train, _losses_function(losses, output), seed, most, verbose, modes)
    # What is strict from the start is strict in every trial.
    relaxable = ordered_subgroups(*(layer.relaxable_subgroups for layer in layers))
    hardened = tuple(name for name in relaxable if name not in soft)
    rows: list[TrainingTrial] = []
    reference = trainer.train(network)
    while tried:
        copies = {name: trainer.train(network, _ordered(hardened, (name,))) for name in tried}
        trials = [rule.trial(name, hardened, reference, copies[name]) for name in tried]
        needless = [row for row in trials if not row.helps]
        if not needless:
            rows = _settled(rows + trials, rule, trainer, reference, copies)
            break
        rows += trials
        row = min(needless, key=lambda row: row.rise)
        tried.remove(row.subgroup)
        hardened = _ordered(hardened, (row.subgroup,))
        reference = copies[row.subgroup]
    return TrainingTrials(tuple(rows), trainer.trainings, reference.network)


def _soft_in(network: nn.Module) -> tuple[str, ...]:
    """Return the subgroups in which layers may be soft, and the reference fields of a network under one name."""
    layers = relaxed_layers(network).values()
    names = ordered_subgroups(*(layer.relaxed_subgroups for layer in layers if isinstance(layer, RelaxedLayer)))
    has_reference = any(isinstance(layer, ReferenceField) and layer.relaxed_subgroups for layer in layers)
    return (*names, REFERENCE) if has_reference else names


def _checked_candidates(names: Any) -> tuple[str, ...]:
    """Return names of subgroups, or of the reference fields, checked; all where none is given."""
    given = (names,) if isinstance(names, str) else check_sequence("subgroups", names, "names")
    of_layers = [name for name in given if not (isinstance(name, str) and name == REFERENCE)]
    checked = check_subgroups(of_layers) if of_layers or not given else ()
    return (*checked, REFERENCE) if len(of_layers) < len(given) or not given else checked


def _ordered(*names: Sequence[str]) -> tuple[str, ...]:
    """Return candidates that are named in any of several collections, in a fixed order."""
    is_named = any(REFERENCE in given for given in names)
    return (*ordered_subgroups(*names), *([REFERENCE] if is_named else []))


def _harden(network: nn.Module, names: Sequence[str]) -> None:
    """Make the layers strict in some subgroups, and reference fields 0 where they are named."""
    subgroups = ordered_subgroups(names)
    for layer in relaxed_layers(network).values():
        if isinstance(layer, ReferenceField):
            if REFERENCE in names:
                layer.harden()
        elif subgroups:
            layer.harden(*subgroups)


@dataclass(frozen=True)
class _Trained:
    """A fine-tuned network, the subgroups in which it is strict, and its losses."""

    network: nn.Module
    hardened: tuple[str, ...]
    losses: Tensor


@dataclass
class _Trainer:
    """Trains copies of networks alike, and counts how often."""

    function: Callable[[nn.Module], object]
    losses: Callable[[nn.Module], Tensor]
    seed: int
    most: int
    verbose: bool
    modes: dict[str, bool]
    trainings: int = 0

    def train_again(self, trained: _Trained) -> _Trained:
        """Return a copy of a trained copy, trained once more."""
        return self.train(trained.network, trained.hardened, again=True)

    def train(self, network: nn.Module, hardened: tuple[str, ...] = (), *, again: bool = False) -> _Trained:
        """Return a fine-tuned copy that is strict in some subgroups."""
        self.trainings += 1
        described = (f", strict in {', '.join(hardened)}" if hardened else "") + (", once more" if again else "")
        say(f"which_softness_helps: training {self.trainings} of at most {self.most}{described}", self.verbose)
        copy = copy_network(network)
        _harden(copy, hardened)
        for name, module in copy.named_modules():
            module.training = self.modes.get(name, module.training)  # a training may end in eval mode
        devices = {parameter.device for parameter in network.parameters() if parameter.device.type == "cuda"}
        with _seeded(self.seed, list(devices)), torch.enable_grad():
            self.function(copy)
        with in_eval_mode(copy), torch.no_grad():
            losses = self.losses(copy)
        if not isinstance(losses, Tensor) or losses.dim() != 1 or len(losses) < 2:
            shape = f" of shape {tuple(losses.shape)}" if isinstance(losses, Tensor) else ""
            raise TypeError(
                f"losses must return a tensor with the loss of each of two inputs or more, got a "
                f"{type(losses).__name__}{shape}"
            )
        if not losses.isfinite().all():
            raise ValueError("losses must be finite: the further training may have diverged, try a lower learning rate")
        return _Trained(copy, hardened, losses.detach().double().cpu())


@dataclass(frozen=True)
class _Rule:
    """The rule: a rise of the held-out loss has to be more than chance, and large enough to matter."""

    errors: float
    odds: float

    def __post_init__(self) -> None:
        if not self.odds > 1:
            raise ValueError(f"odds must be above 1, as 20 for 20 to 1, got {self.odds!r}")

    def trial(self, subgroup: str, hardened: tuple[str, ...], reference: _Trained, copy: _Trained) -> TrainingTrial:
        """Return the row of a copy that is strict in one more subgroup than the reference."""
        rise, error = mean_and_error(copy.losses - reference.losses)
        return TrainingTrial(subgroup, hardened, rise, error, self._helps(rise, error, len(copy.losses)))

    def falls_too_far(self, row: TrainingTrial, *pairs: tuple[_Trained, _Trained]) -> bool:
        """Return True where another training of a copy lowers its losses by so much that a row may not help."""
        falls = [mean_and_error(once.losses - twice.losses) for once, twice in pairs]
        # A fall within its standard error is none.
        fall = max(fall if fall > error else 0.0 for fall, error in falls)
        return not self._helps(row.rise - fall, row.error, len(pairs[0][0].losses))

    def _helps(self, rise: float, error: float, inputs: int) -> bool:
        return rise > max(self.errors * error, math.log(self.odds) / inputs)


def _settled(
    rows: list[TrainingTrial], rule: _Rule, trainer: _Trainer, reference: _Trained, copies: dict[str, _Trained]
) -> list[TrainingTrial]:
    """Return the rows, marked "train longer" where another training still lowers the losses by much."""
    pair = reference, trainer.train_again(reference)
    last = {row.subgroup: row for row in rows}
    early = {
        name for name, copy in copies.items() if rule.falls_too_far(last[name], pair, (copy, trainer.train_again(copy)))
    }
    return [replace(row, helps=False, still_falls=True) if row.helps and row.subgroup in early else row for row in rows]


def _losses_function(losses: Any, output: OutputSelector) -> Callable[[nn.Module], Tensor]:
    """Return the given function of losses, or the cross entropy on held-out images."""
    if output is not None:
        check_callable("output", output)
    if isinstance(losses, DataLoader):
        # Once, since a loader may shuffle, and losses of two copies are compared image by image.
        with _seeded(0, []):
            pair = joined_pairs(("losses", "labels"), losses, None, None)
    elif isinstance(losses, tuple) and len(losses) == 2 and isinstance(losses[1], Tensor) and losses[1].dim():
        pair = losses
    elif callable(losses):
        if output is not None:
            raise ValueError("output: losses is a function here, which picks from what the network returns itself")
        return losses
    else:
        raise TypeError(f"losses must be a function, (images, labels) or a DataLoader of such batches, got {losses!r}")
    images, labels = pair
    count = len(first_input(images, "losses: images"))
    if len(labels) != count:
        raise ValueError(f"losses must have a label for each of {count} images, got {len(labels)}")
    return partial(_cross_entropy, images, labels, output)


def _cross_entropy(images: Any, labels: Tensor, output: OutputSelector, network: nn.Module) -> Tensor:
    """Return the cross entropy of each image, (batch,)."""
    likelihood, losses = Likelihood("categorical"), []
    for arguments, some in zip(input_chunks(images, _CHUNK), labels.split(_CHUNK), strict=True):
        device = device_of(network)
        given = tuple(value.to(device) if hasattr(value, "to") else value for value in arguments)
        losses.append(likelihood.losses(output_of(network, given, output), some.to(device)))
    return torch.cat(losses)


@contextlib.contextmanager
def _seeded(seed: int, devices: list[torch.device]) -> Iterator[None]:
    """Seed all generators in a ``with`` block, and restore them after it."""
    of_python, of_numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed % 2**32)
            yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)

"""Callbacks for Lightning (the extra ``lightning``): softness that is learned or annealed, and its log.

``LearnSoftness`` adds the gradient of its penalty right before the step of an optimiser, to the parameters of that
optimiser, where gradients are accumulated, unscaled and reduced over processes. The loss that the module logs is its
own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from escnn.nn import FieldType, GeometricTensor
from lightning.fabric.utilities import move_data_to_device
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from ..checks import check_bool, check_callable, check_integer, warn_once
from ..measure.forward_probe import OutputSelector
from ..measure.measured_network import Data, Shifts
from ..measure.summary import relaxation_scalars
from ..network.relaxed_layers import first_input, input_chunks, relaxed_layers
from .annealing_callback import AnnealSoftness
from .evidence import FEWEST_INPUTS, SoftnessEvidence
from .likelihoods import IGNORE_INDEX, Likelihood
from .prior import Prior, check_prior
from .soft_gradients import soft_groups

__all__ = ["AnnealSoftness", "LearnSoftness", "LogSoftness"]

# All arguments of a network, images first, and the targets that an update needs.
Pair: TypeAlias = tuple[tuple[Any, ...], Tensor | None]


class LearnSoftness(Callback):
    """Learns how soft each layer should be: :class:`~escnn_relaxed.SoftnessEvidence` over a Lightning run.

    It takes its images from the training batches: the first floating-point tensor (batch, C, H, W), or of volumes
    (batch, C, D, H, W), which the module's ``forward`` has to take. The tensor that follows it has the targets, which
    only a regression needs. Batches of another form need ``from_batch``. The loss has to be the mean of torch's
    function for the likelihood. The share γ/n of the weights that the data determine is logged as
    ``determined/<layer>/<subgroup>`` at the end of each epoch.

    The first images are tried at once, so that a mistake ends a run at its start. Weights may be frozen, and layers
    hardened: they have no updates until they learn. Another ``fit`` of the same module goes on with its evidence. N is
    the number of images of the last epoch.

    Args:
        likelihood: ``"categorical"``, ``"binary"`` or ``"gaussian"``, as in :class:`~escnn_relaxed.SoftnessEvidence`.
        first_epoch: number of the epoch after which the first update is, counted from 0. Default: 2, the third.
        inputs: number of images of an update.
        decoupled: whether soft weights shrink by :meth:`~escnn_relaxed.SoftnessEvidence.decay`, for few images, and not
            by the penalty.
        output: from what ``forward`` returns to the tensor of the likelihood, where it returns a dict or a tuple:
            ``lambda returned: returned["logits"]``.
        from_batch: from a training batch to (inputs, targets). Inputs are images, or a tuple of all arguments of
            ``forward``, images first. Targets are those of an update: of a regression, or classes where some are
            ``ignore_index``, else None will do.
        ignore_index: the class of outputs that the loss leaves out, as in ``cross_entropy``. Updates then need the
            classes, by default the tensor that follows the images.
        prior: of the soft weights, as in ``SoftnessEvidence``.

    Attributes:
        evidence: that of the run, from the end of the first epoch with an update on, for ``evidence.table()`` and
            ``evidence.harden``; None before.

    Raises:
        TypeError: for an argument of the wrong type.
        ValueError: for another likelihood, or a number that is too small.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> learned = LearnSoftness("categorical")
        >>> trainer = Trainer(max_epochs=30, callbacks=[learned], logger=False, accelerator="cpu")
    """

    def __init__(
        self,
        likelihood: str,
        first_epoch: int = 2,
        inputs: int = 128,
        *,
        decoupled: bool = False,
        output: OutputSelector = None,
        from_batch: Callable[[Any], tuple[Any, Tensor | None]] | None = None,
        ignore_index: int | None = None,
        prior: Prior | None = None,
    ) -> None:
        super().__init__()
        self._prior = check_prior(prior)
        self._decoupled = check_bool("decoupled", decoupled)
        self._ignore_index = IGNORE_INDEX if ignore_index is None else ignore_index
        self._likelihood = Likelihood(likelihood, self._ignore_index).name
        self._needs_targets = likelihood == "gaussian" or ignore_index is not None
        self._first_epoch = check_integer("first_epoch", first_epoch, 0)
        self._wanted = check_integer("inputs", inputs, FEWEST_INPUTS)
        for name, function in (("output", output), ("from_batch", from_batch)):
            if function is not None:
                check_callable(name, function)
        self._output, self._from_batch = output, from_batch
        # The state of a checkpoint, until soft weights learn that it is of.
        self._restored: dict[str, Any] = {}
        # Images of this epoch, also those before a run was resumed inside it.
        self._count = 0
        self._pairs: list[Pair] = []
        self._is_first_batch, self._is_tried = True, False
        self.evidence: SoftnessEvidence | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Continue with the state of a checkpoint if one was loaded, else with the evidence of an earlier fit."""
        if self._restored or (self.evidence is not None and self.evidence.network is not pl_module):
            self.evidence = None
        self._count = self._restored.pop("images", 0)
        self._is_first_batch, self._is_tried = True, False
        likelihood = self._restored.get("likelihood", self._likelihood)
        if likelihood != self._likelihood:
            raise ValueError(f"likelihood must be {likelihood!r}, as in the checkpoint, got {self._likelihood!r}")
        if not _may_learn_later(pl_module):
            SoftnessEvidence(pl_module, 1, self._likelihood)  # refuses a strict network before it is trained
        self._restore(pl_module)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Forget the images of the last epoch."""
        self._pairs = []
        self._restore(pl_module)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Count the images of the epoch, keep some with their targets, and check the first batch."""
        inputs, targets = self._pair_of(batch)
        size, kept = len(first_input(inputs)), sum(len(first_input(images)) for images, _ in self._pairs)
        if self._is_first_batch:
            self._notice_size(trainer, pl_module, size)
        self._count = size + (self._count if batch_idx else 0)
        if kept >= self._wanted:
            return
        self._pairs.append((inputs, targets))
        if not self._is_tried and not kept and soft_groups(pl_module):
            self._try(pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Update the precisions, and log γ/n."""
        if not self._pairs or not soft_groups(pl_module):
            return  # a run that was resumed after the last batch, or nothing that learns
        _check_enough(self._count)
        inputs, targets = _joined(self._pairs, self._wanted)
        # Fewer may be left of an epoch inside which a run was resumed.
        is_enough = len(first_input(inputs)) >= FEWEST_INPUTS
        if trainer.current_epoch < self._first_epoch or not is_enough:
            return
        observations = self._count * trainer.world_size
        if self.evidence is None:
            self.evidence = self._evidence(pl_module, observations)
        self.evidence.observations = observations
        self.evidence.update(inputs, targets)
        table = self.evidence.table()
        pl_module.log_dict({f"determined/{row.layer}/{row.subgroup}": row.gamma_per_weight for row in table})

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """Add the gradient of the penalty, or let the soft weights decay."""
        if self.evidence is None:
            return
        if self._decoupled:
            self.evidence.decay(optimizer)
        elif (penalty := self.evidence.penalty()).requires_grad:
            values = [value for group in optimizer.param_groups for value in group["params"] if value.requires_grad]
            if values:
                penalty.backward(inputs=values)

    def state_dict(self) -> dict[str, Any]:
        """Return what was learned, for checkpoints."""
        learned = self._restored
        if self.evidence is not None:
            given = {"observations": self.evidence.observations, "likelihood": self._likelihood}
            learned = {**given, **self.evidence.state_dict()}
        return {**learned, "images": self._count}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Keep the state of a checkpoint for the start of training."""
        self._restored = dict(state_dict)

    def _evidence(self, module: LightningModule, observations: int) -> SoftnessEvidence:
        given: dict[str, Any] = {"output": self._output, "ignore_index": self._ignore_index, "prior": self._prior}
        return SoftnessEvidence(module, observations, self._likelihood, **given)

    def _restore(self, module: LightningModule) -> None:
        """Restore the evidence of a checkpoint once there are trainable soft weights."""
        if "likelihood" in self._restored and soft_groups(module):
            state = {name: value for name, value in self._restored.items() if name not in ("likelihood", "images")}
            self.evidence = self._evidence(module, state.pop("observations"))
            self.evidence.load_state_dict(state)
            self._restored = {}

    def _pair_of(self, batch: Any) -> Pair:
        """Return the arguments of the network for a batch, and the targets where updates need them."""
        if self._from_batch is not None:
            returned = self._from_batch(batch)
            if (
                not isinstance(returned, tuple)
                or len(returned) != 2
                or not isinstance(returned[1], (Tensor, type(None)))
            ):
                raise TypeError(f"from_batch must return (inputs, targets), targets a tensor or None, got {returned!r}")
            inputs, targets = returned
            first_input(inputs, "from_batch: the inputs")
        else:
            tensors = list(_tensors(batch))
            first = next((number for number, tensor in enumerate(tensors) if _is_image(tensor)), None)
            if first is None:
                raise ValueError("LearnSoftness: a training batch has no floating-point tensor (batch, C, H, W)")
            # Where updates need none, what follows may be anything.
            following = tensors[first + 1 : first + 2]
            inputs, targets = tensors[first], (following[0] if following and self._needs_targets else None)
            if not self._needs_targets and self._likelihood == "categorical":
                self._notice_void(following)
        if self._needs_targets and targets is None and self._likelihood == "categorical":
            raise ValueError(
                f"LearnSoftness: updates need classes where ignore_index={self._ignore_index}, the tensor after the "
                "images, or those that from_batch gives"
            )
        arguments = inputs if isinstance(inputs, tuple) else (inputs,)
        return tuple(map(_detached, arguments)), _detached(targets)

    def _notice_void(self, following: Sequence[Tensor]) -> None:
        """Warn of targets that look like a class that the loss ignores, since each output would count."""
        is_known = self.evidence is not None or len(self._pairs) > 0
        if not is_known and any(not of.is_floating_point() and bool((of == IGNORE_INDEX).any()) for of in following):
            warn_once(
                f"LearnSoftness: the tensor after the images has {IGNORE_INDEX}, which cross_entropy leaves out, and "
                f"the evidence counts all outputs: give ignore_index={IGNORE_INDEX}"
            )

    def _notice_size(self, trainer: Trainer, module: LightningModule, size: int) -> None:
        """Check the number of images of the first batch against the minimum and the last fit."""
        self._is_first_batch, batches = False, trainer.num_training_batches
        if batches == float("inf"):
            return
        if soft_groups(module):
            _check_enough(size * int(batches))
        if self.evidence is not None:
            # The last batch may be smaller than the first.
            most, step = size * int(batches) * trainer.world_size, size * trainer.world_size
            observations = min(max(self.evidence.observations, most - step + 1), most)
            if observations != self.evidence.observations:
                self._restored = {**self.state_dict(), "observations": observations}
                self._restore(module)

    def _try(self, module: LightningModule) -> None:
        """Check that an update will accept the batch, before epochs are spent."""
        inputs, targets = _joined(self._pairs, FEWEST_INPUTS)
        try:
            self._evidence(module, FEWEST_INPUTS).check(inputs, targets)
        except (TypeError, ValueError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(
                f"LearnSoftness: an update with the first images fails: {error} (from_batch= picks the arguments of "
                "forward and the targets from a batch, output= a tensor from what forward returns)"
            ) from error
        self._is_tried = True


class LogSoftness(Callback):
    """Logs how soft a network is after each epoch: :func:`~escnn_relaxed.relaxation_scalars`.

    :func:`~escnn_relaxed.plots.plot_softness` draws ``history``, which checkpoints keep.

    Args:
        data: images to measure equivariance errors on, as in ``relaxation_scalars``; nothing is measured without.
        in_type: fields of the input, where the network does not say.
        shifts: in pixels, to measure beside the group elements.

    Attributes:
        history: the numbers by tag, a dict for each epoch.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> log = LogSoftness()
        >>> trainer = Trainer(max_epochs=30, callbacks=[log], logger=False, accelerator="cpu")
        >>> log.history
        []
    """

    def __init__(self, data: Data = None, in_type: FieldType | None = None, shifts: Shifts = ()) -> None:
        super().__init__()
        self._data, self._in_type, self._shifts = data, in_type, shifts
        self.history: list[dict[str, float]] = []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Measure once, so that errors occur before training."""
        self._scalars(pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the numbers, and keep them."""
        scalars = self._scalars(pl_module)
        pl_module.log_dict(scalars)
        self.history.append(scalars)

    def state_dict(self) -> dict[str, Any]:
        """Return the history, for checkpoints."""
        return {"history": [dict(scalars) for scalars in self.history]}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue the history of a checkpoint."""
        self.history = [dict(scalars) for scalars in state_dict["history"]]

    def _scalars(self, module: LightningModule) -> dict[str, float]:
        data = None if self._data is None else move_data_to_device(self._data, module.device)
        return relaxation_scalars(module, data, self._in_type, self._shifts)


def _may_learn_later(network: LightningModule) -> bool:
    """Return whether soft weights are frozen or hardened, so that they may be trained later."""
    pairs = ((layer, list(layer.soft_parameters())) for layer in relaxed_layers(network).values())
    return any(
        weights and (layer.hardened or not all(weight.requires_grad for weight in weights)) for layer, weights in pairs
    )


def _check_enough(images: int) -> None:
    """Raise a ``ValueError`` for an epoch with fewer images than an update takes."""
    if images < FEWEST_INPUTS:
        raise ValueError(f"LearnSoftness: an epoch must have {FEWEST_INPUTS} images or more, got {images}")


def _joined(batches: Sequence[Pair], most: int) -> Pair:
    """Return the concatenated inputs and targets of several batches, up to a maximum count."""
    # What is no batch of an argument is that of the first.
    arguments = [_concatenated(values, batches) for values in zip(*(inputs for inputs, _ in batches), strict=True)]
    targets = [targets for _, targets in batches if targets is not None]
    inputs = next(input_chunks(tuple(arguments), most))
    return inputs, torch.cat(targets)[:most] if targets else None


def _concatenated(values: Sequence[Any], batches: Sequence[Pair]) -> Any:
    """Return one argument concatenated over all batches."""
    if isinstance(values[0], GeometricTensor):
        return values[0].type(torch.cat([value.tensor for value in values]))
    pairs = zip(values, (first_input(inputs) for inputs, _ in batches), strict=True)
    is_batch = all(isinstance(value, Tensor) and value.dim() and len(value) == len(images) for value, images in pairs)
    return torch.cat(list(values)) if is_batch else values[0]


def _detached(value: Any) -> Any:
    if isinstance(value, GeometricTensor):
        return value.type(value.tensor.detach())
    return value.detach() if isinstance(value, Tensor) else value


def _is_image(tensor: Tensor) -> bool:
    return tensor.dim() in (4, 5) and tensor.is_floating_point()


def _tensors(batch: Any) -> Iterator[Tensor]:
    """Yield the tensors of a batch, in order."""
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, (Mapping, tuple, list)):
        for member in batch.values() if isinstance(batch, Mapping) else batch:
            yield from _tensors(member)

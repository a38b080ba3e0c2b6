"""The network of a configuration, its loss and its optimiser, as a Lightning module."""

from __future__ import annotations

import math
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torch.nn import functional
from torchmetrics.classification import MulticlassAccuracy

from escnn_relaxed.layer.convolution import RelaxedConvolution
from escnn_relaxed.learning import frequency_penalty, parameter_groups, share_domain_frequency
from escnn_relaxed.models import RelaxedResNet

from .augmentation import Augmentation, Normalization
from .batches import mixed_seed
from .configuration import Configuration
from .kernel_options import read_kernel
from .tasks import Task

__all__ = ["ImageClassifier", "build_network", "learning_rate_factor"]


def build_network(configuration: Configuration, classes: int, in_channels: int) -> RelaxedResNet:
    """The network of a configuration, from torch's present random state."""
    learned = {"learn_relaxation": True} if configuration.learn_relaxation else {}
    network = RelaxedResNet(
        classes,
        configuration.rotations,
        layer=configuration.layer,
        relax=configuration.relax,
        in_channels=in_channels,
        fields=configuration.fields,
        lifting_kernel_size=configuration.lifting_kernel_size,
        kernel=read_kernel(configuration.kernel),
        **learned,
    )
    if configuration.learn_relaxation and configuration.share_relaxation != "none":
        _share_axes(network)
        if configuration.share_relaxation == "layers":
            share_domain_frequency(network)
    return network


def _share_axes(network: RelaxedResNet) -> None:
    """Make each layer learn one ω′ for x and y, which then counts once in the penalty."""
    for module in network.modules():
        if isinstance(module, RelaxedConvolution) and "translation" in module.domain_frequency:
            both = module.domain_frequency["translation"].detach()
            module.kernel.frequency.register_parameter("translation", nn.Parameter(both[:1].clone()))


def _without_decay_of_frequencies(network: RelaxedResNet) -> list[dict[str, Any]]:
    """Return groups for an optimiser: learned ω′ without weight decay, then the rest."""
    layers = [module for module in network.modules() if isinstance(module, RelaxedConvolution)]
    # Layers may share one.
    frequencies = {id(value): value for layer in layers for value in layer.kernel.frequency.parameters()}
    rest = [value for value in network.parameters() if id(value) not in frequencies]
    return [{"params": list(frequencies.values()), "weight_decay": 0.0}, {"params": rest}]


def learning_rate_factor(step: int, warmup: int, steps: int) -> float:
    """Return the factor of the learning rate: a linear rise, then a cosine to 0.

    Args:
        step: number of the step, from 0.
        warmup: steps of the rise.
        steps: all steps.

    Example:
        >>> [round(learning_rate_factor(step, 2, 6), 2) for step in range(6)]
        [0.5, 1.0, 1.0, 0.85, 0.5, 0.15]
    """
    if step < warmup:
        return (step + 1) / warmup
    return (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup))) / 2


class ImageClassifier(LightningModule):
    """Cross-entropy and λ times the penalty, with Adam; accuracies of validation and test.

    Args:
        configuration: what is trained, and how.
        task: what on.
        seed: of the network's start and of the augmentation.

    Shape:
        uint8 images (batch, channels, H, W) in batches; normalised ones in ``forward`` → (batch, classes).
    """

    def __init__(self, configuration: Configuration, task: Task, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        channels, side = task.train.images.shape[1:3]
        self.network = build_network(configuration, task.classes, channels)
        self.normalization = Normalization(task)
        self.accuracy = MulticlassAccuracy(task.classes, average="micro")
        self._augmentation = Augmentation(side, task.flips) if configuration.augment else None
        self._configuration = configuration
        self._seed = seed

    def forward(self, images: Tensor) -> Tensor:
        """Class scores."""
        scores: Tensor = self.network(images)
        return scores

    def on_train_epoch_start(self) -> None:
        """Seed what a forward draws, the samples of a random kernel: a run that goes on draws what it would have."""
        torch.manual_seed(mixed_seed(self._seed, self.current_epoch))

    def on_after_batch_transfer(self, batch: tuple[Tensor, Tensor], dataloader_idx: int) -> tuple[Tensor, Tensor]:
        """Augment, in training alone, and normalise, on the device."""
        pixels = batch[0].float() / 255
        if self.trainer.training and self._augmentation is not None:
            # The seed is that of this process and this step: a run that goes on draws what it would have drawn.
            pixels = self._augmentation(pixels, self._seed, self.trainer.global_step, self.global_rank)
        return self.normalization(pixels), batch[1]

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """The loss of a batch; what is logged is its cross-entropy."""
        images, labels = batch
        entropy = functional.cross_entropy(self(images).float(), labels)
        self.log("train/loss", entropy, on_step=False, on_epoch=True, sync_dist=True, prog_bar=True)
        if self._configuration.penalty_weight == 0:
            return entropy
        return entropy + self._configuration.penalty_weight * frequency_penalty(self.network)

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Accuracy on held-out images."""
        self._evaluate(batch, "validation")

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Accuracy on test images."""
        self._evaluate(batch, "test")

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Adam, ω′ without weight decay; the rate changes at each step."""
        settings = self._configuration
        # The paper has weight decay on the kernel net; the soft weights of the default kernel have none.
        groups = (_without_decay_of_frequencies if read_kernel(settings.kernel) else parameter_groups)(self.network)
        optimizer = torch.optim.Adam(groups, lr=settings.learning_rate, weight_decay=settings.weight_decay)
        steps = int(self.trainer.estimated_stepping_batches)
        warmup = steps * settings.warmup_epochs // settings.epochs
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate_factor(step, warmup, steps))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def _evaluate(self, batch: tuple[Tensor, Tensor], split: str) -> None:
        images, labels = batch
        self.accuracy(self(images), labels)
        self.log(f"{split}/accuracy", self.accuracy, on_step=False, on_epoch=True, prog_bar=True)

"""A small Lightning module, its data, and a trainer that says nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from escnn import nn as enn
from lightning.pytorch import Callback, LightningModule, Trainer
from small import soft_regular_layer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

BATCHES = 3  # an epoch

# Lightning's own: what it uses of torch, and advice on loaders and logging that is none for a few images.
QUIET = [
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:The number of training batches .* is smaller than the logging interval"),
]


class Classifier(LightningModule):
    """Two soft layers with batch norm between them, and a linear one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        first, second = soft_regular_layer(), soft_regular_layer()
        norm = enn.InnerBatchNorm(first.out_type).double()
        self.network = enn.SequentialModule(first, norm, enn.ReLU(first.out_type), second)
        self.head = nn.Linear(second.out_type.size, 2).double()

    @property
    def hardened(self) -> list[tuple[str, ...]]:
        return [self.network[0].hardened, self.network[3].hardened]

    def forward(self, features: Tensor) -> Tensor:
        return self.head(self.network(self.network.in_type(features)).tensor.mean(dim=(2, 3)))

    def loss(self, batch: list[Tensor]) -> Tensor:
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return self.loss(batch)

    def test_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("loss", self.loss(batch))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def loader() -> DataLoader:
    torch.manual_seed(2)
    features = torch.randn(4 * BATCHES, 4, 5, 5, dtype=torch.float64)
    return DataLoader(TensorDataset(features, torch.randint(0, 2, (len(features),))), batch_size=4)


def trainer(*callbacks: Callback, max_epochs: int = 4, **arguments: Any) -> Trainer:
    quiet: dict[str, Any] = {
        "accelerator": "cpu",
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return Trainer(max_epochs=max_epochs, callbacks=list(callbacks), **{**quiet, **arguments})


class SaveAfterEpoch(Callback):
    """A checkpoint in the middle of a run that goes on."""

    def __init__(self, path: Path, epoch: int) -> None:
        self.path, self.epoch = path, epoch

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.current_epoch == self.epoch:
            trainer.save_checkpoint(self.path)

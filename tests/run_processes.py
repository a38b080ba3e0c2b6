"""Runs of the experiments in processes that a test can kill, and that find each other as those of torchrun do."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import torch

from experiments import module, training
from experiments.command_line import main
from experiments.configuration import Configuration

__all__ = ["killed_at_step", "one_of_several"]


def killed_at_step(step: int, configuration: Configuration, output: Path) -> None:
    """Train until a step, and die in it."""
    torch.set_num_threads(1)
    plain = module.ImageClassifier.training_step

    def training_step(self: Any, batch: Any, number: int) -> Any:
        if self.global_step == step:
            os.kill(os.getpid(), signal.SIGKILL)
        return plain(self, batch, number)

    module.ImageClassifier.training_step = training_step
    training.run("digits-soft", configuration, 0, None, output, training.Machine("cpu", progress_bar=False))


def one_of_several(rank: int, local_rank: int, world_size: int, port: int, arguments: list[str]) -> None:
    """The command line as a process of several, with what torchrun tells each."""
    torch.set_num_threads(1)
    told = {"RANK": rank, "LOCAL_RANK": local_rank, "WORLD_SIZE": world_size, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in told.items()})
    os.environ.update({"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RUN_ID": "test", "GROUP_RANK": str(rank - local_rank)})
    main(arguments)

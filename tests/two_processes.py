"""Two processes that train together, in a group of gloo."""

import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import distributed

PROCESSES = 2


def in_two_processes(function: Callable[..., Any], folder: Path, *arguments: Any) -> list[Any]:
    """Return what ``function(rank, *arguments)`` returns in each, which torch must be able to save.

    Both are forks of a server without threads, which imports torch and escnn once for all tests and builds nothing.
    """
    multiprocessing.set_forkserver_preload(["torch.distributed", "escnn_relaxed"])
    given = function, str(folder), arguments
    torch.multiprocessing.start_processes(_meet, given, PROCESSES, start_method="forkserver")
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(PROCESSES)]


def _meet(rank: int, function: Callable[..., Any], folder: str, arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    # The server has the environment of its start.
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=PROCESSES)
    torch.save(function(rank, *arguments), f"{folder}/{rank}.pt")
    distributed.barrier()
    distributed.destroy_process_group()

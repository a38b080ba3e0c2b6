"""Kill a run at random moments, as often while it writes its checkpoint, and compare it with one that was left alone.

    python -m experiments.kills /tmp [--kills 30]
    TMPDIR=/tmp python -m experiments.kills /dev/shm       # temporary files on another file system than the run

After each kill the run must still have every epoch of which it had a checkpoint; at the end it must have the metrics
of a run that was left alone.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import signal
import tempfile
import time
import warnings
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from experiments.configuration import read_row
from experiments.training import Machine, run, run_folder

ROW = "digits-soft"
TINY = replace(
    read_row(ROW).configuration, images=16, evaluation_images=8, batch_size=8, fields=(1, 1), epochs=400, augment=False
)
LONGEST_SECONDS = 4.0


def train(output: Path) -> dict[str, Any]:
    """The run, from its last checkpoint on."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    return run(ROW, TINY, 0, None, output, Machine("cpu", progress_bar=False))


def kill_once(output: Path, in_a_write: bool) -> None:
    """Start the run and kill it: when a temporary file is there, or at any moment."""
    # Forked, so that nothing is imported again.
    process = get_context("fork").Process(target=train, args=(output,))
    process.start()
    end = time.monotonic() + random.uniform(0.5, LONGEST_SECONDS)
    partial = run_folder(output, ROW, TINY, 0) / "last.ckpt.part"
    while process.is_alive() and (time.monotonic() < end or (in_a_write and not partial.exists())):
        time.sleep(1e-5 if in_a_write else 1e-2)
    if process.pid is not None and process.is_alive():
        os.kill(process.pid, signal.SIGKILL)
    process.join()


def epochs_kept(folder: Path) -> int:
    """Return the number of epochs in the last sound checkpoint."""
    for name in ("last.ckpt", "last.before.ckpt"):
        if (folder / name).exists():
            return int(torch.load(folder / name, weights_only=True)["epoch"]) + 1
    return 0


def without_time(result: dict[str, Any]) -> list[dict[str, float]]:
    """Return the metrics of each epoch."""
    return [{name: value for name, value in epoch.items() if name != "seconds"} for epoch in result["epochs"]]


def main() -> None:
    """Parse the command line, kill, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="on the file system to try")
    parser.add_argument("--kills", type=int, default=30)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        output = Path(name)
        folder = run_folder(output / "killed", ROW, TINY, 0)
        kept, in_writes, finished = 0, 0, 0
        for number in range(arguments.kills):
            kill_once(output / "killed", in_a_write=number % 2 == 1)
            in_writes += (folder / "last.ckpt.part").exists()
            if (folder / "result.json").exists():
                finished += 1
                continue
            before, kept = kept, epochs_kept(folder)
            # Between two renamings the epoch that is being written is not there yet.
            if kept < before:
                raise SystemExit(f"kill {number}: {before} epochs were kept, now {kept}")
        killed, whole = (without_time(train(output / part)) for part in ("killed", "whole"))
        if killed != whole:
            raise SystemExit("the killed run has other metrics than the one that was left alone")
        left = sorted(path.name for path in folder.iterdir() if path.is_file())
    print(f"{arguments.kills} kills, {in_writes} in a write, {finished} after the end: nothing lost, left are {left}")


if __name__ == "__main__":
    main()

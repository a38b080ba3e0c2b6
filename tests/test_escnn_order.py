"""Parameters and buffers of escnn's modules have one order in every process: optimisers and DDP know them by it."""

import os
import subprocess
import sys

from escnn import gspaces, nn

import escnn_relaxed  # noqa: F401 — patches escnn

NAMES = """
import escnn_relaxed
from escnn import gspaces, nn

gspace = gspaces.rot2dOnR2(8)
irreps = gspace.type(*[gspace.irrep(k) for k in (3, 0, 2, 1)])
modules = nn.IIDBatchNorm2d(irreps), nn.GNormBatchNorm(irreps), nn.R2Conv(irreps, irreps, 3)
print([name for module in modules for name in module.state_dict()])
"""


def names_of(hash_seed: int) -> str:
    command, environment = (
        [sys.executable, "-W", "ignore", "-c", NAMES],
        {**os.environ, "PYTHONHASHSEED": str(hash_seed)},
    )
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout


def test_order_does_not_depend_on_the_hash_seed() -> None:
    # Two seeds with which escnn alone has two orders.
    first, second = names_of(0), names_of(1)
    assert first.count("running_var") >= 4
    assert first.count("sampled_basis") > 4
    assert first == second


def test_order_is_that_of_the_fields() -> None:
    gspace = gspaces.rot2dOnR2(8)
    fields = gspace.type(*[gspace.irrep(k) for k in (3, 0, 2, 3, 1)])
    names = [name.split("_")[1] for name, _ in nn.IIDBatchNorm2d(fields).named_parameters() if name.endswith("weight")]
    assert names == ["3", "0", "2", "1"]

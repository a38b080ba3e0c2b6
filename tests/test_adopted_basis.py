"""States of escnn's layers with another basis: their weights are expressed in ours, or refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
import volumes
from escnn import gspaces
from escnn import nn as enn
from escnn.nn import FieldType
from layers import shake
from tolerances import SINGLE
from transformations import relative_error

from escnn_relaxed import RelaxedR2Conv, RelaxedR3Conv, relax_network

# Kernels go through a least-squares solution of float32 samples.
SOLVED = 1e-5


def layers(dimension: int) -> tuple[Any, Any, FieldType]:
    if dimension == 2:
        gspace = gspaces.flipRot2dOnR2(4)
        return enn.R2Conv, RelaxedR2Conv, FieldType(gspace, [gspace.regular_repr, gspace.irrep(1, 1)])
    return enn.R3Conv, RelaxedR3Conv, volumes.fields("SO(3)")


def in_another_basis(layer: Any, mixing: float = 1.0) -> dict[str, torch.Tensor]:
    """The state of the same layer by a process that drew other bases; only some are others."""
    state = {name: value.clone() for name, value in layer.state_dict().items()}
    expansion = layer.basisexpansion
    for pair in expansion._representations_pairs[::2]:
        name = f"_basisexpansion.block_expansion_{expansion._escape_pair(pair)}.sampled_basis"
        change = torch.linalg.qr(torch.randn(*[len(state[name])] * 2))[0]
        state[name] = torch.einsum("ab,b...->a...", change, state[name])
        place = slice(*expansion._weights_ranges[pair])
        state["weights"][place] = (state["weights"][place].view(-1, len(change)) @ change.T).flatten()
    return state


@pytest.mark.parametrize("dimension", [2, 3])
@pytest.mark.parametrize("relax", [None, "default"])
def test_state_in_another_basis_is_the_same_layer(dimension: int, relax: str | None) -> None:
    theirs, ours, fields = layers(dimension)
    trained = theirs(fields, fields, 3, bias=False)
    shake(trained)
    state = in_another_basis(trained)
    assert not torch.allclose(state["weights"], trained.weights, atol=1e-2)
    layer = ours(fields, fields, 3, bias=False, relax=relax)
    layer.load_state_dict(state)
    assert relative_error(layer.filter.detach(), trained.expand_parameters()[0].detach()) <= SOLVED
    layer.load_state_dict(trained.state_dict())
    assert torch.equal(layer.weights, trained.weights)
    assert relative_error(layer.filter.detach(), trained.expand_parameters()[0].detach()) <= SINGLE


@pytest.mark.parametrize("dimension", [2, 3])
def test_state_of_other_kernels_is_refused_by_name(dimension: int) -> None:
    theirs, ours, fields = layers(dimension)
    state = theirs(fields, fields, 3).state_dict()
    name = next(name for name in state if name.endswith(".sampled_basis"))
    state[name] = torch.randn_like(state[name])
    with pytest.raises(RuntimeError, match=r"steerable basis of 'this layer' from .* to .* holds other kernels"):
        ours(fields, fields, 3).load_state_dict(state)


@pytest.mark.parametrize("dimension", [2, 3])
def test_own_state_of_another_basis_is_refused_by_name(dimension: int) -> None:
    theirs, ours, fields = layers(dimension)
    trained = theirs(fields, fields, 3)
    blocks: Mapping[str, Any] = dict(trained.basisexpansion.named_modules())
    block = next(value for name, value in blocks.items() if name.startswith("block_expansion"))
    own = ours(fields, fields, 3)
    before = block.sampled_basis.clone()
    try:
        # A process that drew another basis before this package was imported.
        block.sampled_basis.neg_()
        from escnn_relaxed.on_escnn import grid_exact_basis

        known = grid_exact_basis._PREPARED.pop(id(block))
        relaxed = relax_network(trained)
    finally:
        block.sampled_basis.copy_(before)
        grid_exact_basis._PREPARED[id(block)] = known
    with pytest.raises(RuntimeError, match=r"does not fit: fingerprint of the steerable basis is \["):
        own.load_state_dict(relaxed.state_dict())
    own.load_state_dict(ours(fields, fields, 3).state_dict())

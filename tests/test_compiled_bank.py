"""Filter banks in training are built within one graph of the compiler, which fuses what is elementwise."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from escnn import gspaces
from escnn.nn import FieldType
from tolerances import SINGLE
from torch import Tensor
from transformations import relative_error

from escnn_relaxed import RelaxedR2Conv

BANKS: dict[str, tuple[dict[str, object], Callable[[RelaxedR2Conv], Tensor]]] = {
    "soft rotation": ({}, lambda layer: layer.filter_bank()),
    "continuous": ({"strict_kernel": "continuous"}, lambda layer: layer.filter_bank()),
    "learned": ({"learn_relaxation": True}, lambda layer: layer.filter_bank()),
    "cells": ({"relax": {"translation": 0.25}}, lambda layer: layer.region_banks((16, 16))),
    "other regions": ({"relax": {"translation": 0.25}}, lambda layer: layer.region_banks((18, 18))),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in ("learned", "cells"))) for name in BANKS]
)
def test_filter_bank_is_one_graph(name: str) -> None:
    torch.compiler.reset()
    gspace = gspaces.rot2dOnR2(8)
    fields = FieldType(gspace, [gspace.regular_repr] * 2)
    arguments, bank_of = BANKS[name]
    layer = RelaxedR2Conv(fields, fields, 3, initial_softness=0.3, bias=False, **arguments)
    parameters = list(layer.parameters())
    compiled = torch.compile(lambda: bank_of(layer), fullgraph=True, backend="eager")
    found, expected = compiled(), bank_of(layer)
    assert relative_error(found.detach(), expected.detach()) <= SINGLE
    direction = torch.randn_like(expected)
    gradients = (torch.autograd.grad(bank, parameters, direction) for bank in (found, expected))
    for found_gradient, gradient in zip(*gradients, strict=True):
        assert relative_error(found_gradient, gradient) <= 10 * SINGLE

"""The evidence in a training loop of networks that were not written for it."""

from __future__ import annotations

import pytest
import torch
from drop_in_networks import NETWORKS, images
from torch.nn import functional

from escnn_relaxed import RelaxedR2Conv, RelaxedR2ConvTransposed, SoftnessEvidence
from escnn_relaxed.network.relaxed_layers import named_relaxed_layers

INPUTS = 10


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_public_network_learns_how_soft_it_is(name: str) -> None:
    torch.manual_seed(0)
    network = NETWORKS[name][0](RelaxedR2Conv, RelaxedR2ConvTransposed)
    features = images(name, INPUTS)
    with torch.no_grad():
        shape = network.eval()(features).shape
    targets = torch.randn(shape, generator=torch.Generator().manual_seed(5))
    optimiser = torch.optim.Adam(network.train().parameters(), lr=1e-3)
    evidence = SoftnessEvidence(network, observations=1000, likelihood="gaussian")
    for _ in range(2):
        loss = functional.mse_loss(network(features), targets) + evidence.penalty()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        evidence.update(features, targets)
    assert network.training
    table = evidence.table()
    # A layer of 1 × 1 between trivial fields, for instance, has none.
    with_soft_weights = {layer for layer, of in named_relaxed_layers(network) if sum(map(len, of.soft_parameters()))}
    assert {row.layer for row in table} == with_soft_weights
    assert all(0 <= row.share <= 1 for row in table)
    assert sum(row.determined for row in table) > 0
    assert evidence.penalty().item() > 0

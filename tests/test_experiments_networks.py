"""The networks of configurations: their layers, kernels and shared frequencies."""

from dataclasses import replace

import pytest
import torch

pytest.importorskip("lightning")
pytest.importorskip("kornia")

from escnn_relaxed.learning import frequency_penalty
from experiments.configuration import override
from experiments.module import build_network
from experiments.rows import find_row

SMALL = replace(find_row("digits-soft").configuration, fields=(1, 1))


def test_rows_build_the_networks_that_they_name() -> None:
    strict = build_network(replace(SMALL, relax={"rotation": 0.0}), 10, 1).eval()
    images = torch.rand(2, 1, 28, 28)
    assert torch.equal(strict(images).argmax(1), strict(images.rot90(2, (2, 3))).argmax(1))
    torch.testing.assert_close(strict(images), strict(images.rot90(2, (2, 3))), atol=1e-4, rtol=1e-4)
    partial = build_network(replace(SMALL, layer="partial", relax="default", lifting_kernel_size=1), 10, 1)
    assert partial.features[0].kernel_size == 1
    assert type(partial.features[3].body[0]).__name__ == "PartialR2Conv"


@pytest.mark.parametrize(("share", "values", "parameters"), [("none", 2, 6), ("axes", 1, 6), ("layers", 1, 1)])
def test_learned_frequencies_of_translation_are_shared_by_axes_and_layers(
    share: str, values: int, parameters: int
) -> None:
    settings = ["fields=[1,1]", f"share_relaxation={share!r}"]
    network = build_network(override(find_row("t2-learned-0.1").configuration, settings), 10, 3)
    frequencies = {id(own): own for name, own in network.named_parameters() if name.endswith("frequency.translation")}
    assert len(frequencies) == parameters
    assert all(len(own) == values for own in frequencies.values())
    (network(torch.randn(2, 3, 28, 28)).square().sum() + frequency_penalty(network)).backward()
    assert all((own.grad != 0).all() for own in frequencies.values())

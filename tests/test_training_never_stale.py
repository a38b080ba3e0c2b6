"""In training, too, the next forward and ``softness()`` see every write to a fixed tensor, whatever wrote it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path

import battery
import pytest
import torch
from forms import answer, train_a_step
from layers import build
from tolerances import ROUNDING
from torch import Tensor, distributed, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn
from transformations import relative_error

from escnn_relaxed import RelaxedR2Conv

pytestmark = pytest.mark.usefixtures("group_of_one")


@pytest.fixture(scope="module")
def group_of_one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    store: Path = tmp_path_factory.mktemp("group") / "store"
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def by_its_data(tensor: Tensor, new: Tensor) -> None:
    tensor.data.copy_(new)


def by_numpy(tensor: Tensor, new: Tensor) -> None:
    tensor.detach().numpy()[:] = new.numpy()


def by_a_vector(tensor: Tensor, new: Tensor) -> None:
    nn.utils.vector_to_parameters(new.flatten(), [tensor])


def by_a_collective(tensor: Tensor, new: Tensor) -> None:
    """As ``broadcast`` writes on the processes that receive: no version counter rises."""
    version = tensor._version
    distributed.scatter(tensor.detach(), [new], src=0)
    assert tensor._version == version


def by_an_average(tensor: Tensor, new: Tensor) -> None:
    get_ema_multi_avg_fn(0.0)([tensor.data], [new], 1)


def in_place(tensor: Tensor, new: Tensor) -> None:
    with torch.no_grad():
        tensor.copy_(new)


WRITES = {
    write.__name__: write for write in (by_its_data, by_numpy, by_a_vector, by_a_collective, by_an_average, in_place)
}


def layer_of(kind: str, start: float = 0.2, soft_part: str = "tied") -> RelaxedR2Conv:
    """A layer in training whose ω′ is fixed: a buffer, or a parameter that does not learn."""
    subgroup = "translation" if kind == "translation" else "rotation"
    learns = {"learn_relaxation": kind == "frozen parameter", "soft_part": soft_part, "regions": 2}
    pair = battery.types("C4", "regular + irreps -> irreps + regular")
    layer = build(*pair, relax={subgroup: start}, initial_softness=0.3, padding=1, **learns)
    layer.domain_frequency[subgroup].requires_grad_(False)
    return layer.train()


def frequency(layer: RelaxedR2Conv) -> Tensor:
    (value,) = layer._domain_frequency.state_dict(keep_vars=True).values()
    return value


def projections(layer: RelaxedR2Conv) -> Tensor:
    return layer.bank.kernel.domain_weight


def units(layer: RelaxedR2Conv) -> Tensor:
    return layer.bank.units


def seen(layer: RelaxedR2Conv) -> list[Tensor]:
    """The answer of a training step, the softness in it, and both without gradients."""
    found = layer(layer.in_type(FEATURES)).tensor.detach()
    return [found, layer.softness().detach(), answer(layer, FEATURES)]


FEATURES = battery.random_input(battery.types("C4", "regular + irreps -> irreps + regular")[0], 9, 9)


def assert_seen(layer: RelaxedR2Conv, write: Callable[[], None]) -> None:
    """A copy remembers nothing."""
    before = seen(layer)
    write()
    after = seen(layer)
    for found, expected in zip(after, seen(copy.deepcopy(layer)), strict=True):
        assert (found - expected).abs().max() <= ROUNDING * found.abs().max()
    assert layer.training
    # More than rounding: the largest of what would be seen if something were stale.
    assert relative_error(after[0], before[0]) > 1e-3
    assert relative_error(after[1], before[1]) > 1e-3


@pytest.mark.parametrize("target", [frequency, projections, units])
@pytest.mark.parametrize("write", WRITES)
def test_write_to_a_fixed_tensor_is_seen(write: str, target: Callable[[RelaxedR2Conv], Tensor]) -> None:
    layer = layer_of("buffer", soft_part="centred" if target is projections else "tied")
    tensor = target(layer)
    assert_seen(layer, lambda: WRITES[write](tensor, 1.7 * tensor.detach()))


@pytest.mark.parametrize("kind", ["frozen parameter", "translation"])
@pytest.mark.parametrize("write", WRITES)
def test_write_to_a_fixed_frequency_is_seen_from_zero_and_to_zero(write: str, kind: str) -> None:
    """Whether a layer is soft at all is asked anew."""
    layer = layer_of(kind, start=0.0)
    for value in (0.3, 0.0):
        assert_seen(
            layer, lambda value=value: WRITES[write](frequency(layer), torch.full_like(frequency(layer), value))
        )


OPTIMISERS: dict[str, Callable[[RelaxedR2Conv], torch.optim.Optimizer]] = {
    "fused": lambda layer: torch.optim.Adam(layer.parameters(), lr=0.05, fused=True),
    "foreach": lambda layer: torch.optim.SGD(layer.parameters(), lr=0.05, foreach=True),
    "foreach AdamW": lambda layer: torch.optim.AdamW(layer.parameters(), lr=0.05, foreach=True),
}


@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_step_of_an_optimiser_is_seen(optimiser: str) -> None:
    layer = layer_of("frozen parameter")
    frequency(layer).requires_grad_(True)
    stepped = OPTIMISERS[optimiser](layer)
    assert_seen(layer, lambda: train_a_step(layer, stepped))

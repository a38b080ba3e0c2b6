"""The integral with a bank at every pixel, in chunks: against a sum over taps, and layers against their adjoints."""

import itertools
from math import prod

import pytest
import small
import torch
from errors import ROUNDING, answer_to, relative_error
from small import build
from torch import Tensor

from escnn_relaxed import RelaxedR2Conv, RelaxedR2ConvTransposed
from escnn_relaxed.integral import at_pixels
from escnn_relaxed.integral.at_pixels import integrate_at_pixels
from escnn_relaxed.integral.geometry import ConvolutionGeometry, Geometry, TransposedGeometry

GEOMETRIES: dict[str, tuple[Geometry, tuple[int, ...]]] = {
    "plain": (ConvolutionGeometry(3), (4, 3)),
    "all at once": (ConvolutionGeometry(2, (1, 2), 2, 2, 2, "reflect"), (5, 4)),
    "circular": (ConvolutionGeometry(3, (1, 1), padding_mode="circular"), (2, 3)),
    "volumes": (ConvolutionGeometry(2, (1, 0, 1), stride=2), (3, 2, 2)),
    "adjoint": (TransposedGeometry(3, (1, 2), 2, 1, 2, (1, 0)), (3, 4)),
    "adjoint beyond the kernel": (TransposedGeometry(2, stride=3), (2, 3)),
    "adjoint in space": (TransposedGeometry(2, (1, 0, 0), 2, output_padding=(0, 0, 0)), (2, 1, 2)),
}
CHANNELS = 4


def sum_over_taps(features: Tensor, banks: Tensor, geometry: Geometry) -> Tensor:
    """A pixel, a tap and a group at a time."""
    is_adjoint = isinstance(geometry, TransposedGeometry)
    size, output = tuple(features.shape[2:]), geometry.output_size(*features.shape[2:])
    total = features.new_zeros(len(features), CHANNELS, *output)
    padded = features if is_adjoint else geometry.pad(features)
    taps = list(itertools.product(range(geometry.kernel_size), repeat=len(size)))
    axis = 1 if is_adjoint else 0
    for number, pixel in enumerate(itertools.product(*map(range, size if is_adjoint else output))):
        for tap in taps:
            moved = [geometry.stride * x + geometry.dilation * t for x, t in zip(pixel, tap, strict=True)]
            read, written = (pixel, moved) if is_adjoint else (moved, pixel)
            if is_adjoint:
                written = [at - cut for at, cut in zip(moved, geometry.padding, strict=True)]
                if not all(0 <= at < side for at, side in zip(written, output, strict=True)):
                    continue
            values = padded[(..., *read)].chunk(geometry.groups, 1)
            parts = banks[number][(..., *tap)].chunk(geometry.groups, axis)
            added = torch.cat([value @ part.mT for value, part in zip(values, parts, strict=True)], 1)
            place = torch.zeros(output, dtype=torch.float64)
            place[tuple(written)] = 1
            total = total + added.view(*added.shape, *[1] * len(size)) * place
    return total


@pytest.mark.parametrize("pixels", [1, 3, 10**6], ids=["a pixel", "three", "all"])
@pytest.mark.parametrize("name", GEOMETRIES)
def test_values_and_gradients_are_those_of_the_sum_over_taps(
    name: str, pixels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In chunks of a pixel, of three, and in one."""
    geometry, size = GEOMETRIES[name]
    # A pixel takes five numbers; four are left over.
    monkeypatch.setattr(at_pixels, "_MOST_VALUES", 5 * pixels + 4)
    features = torch.randn(2, CHANNELS, *size, dtype=torch.float64, requires_grad=True)
    channels = CHANNELS, CHANNELS // geometry.groups
    channels = channels[::-1] if isinstance(geometry, TransposedGeometry) else channels
    shape = prod(geometry.domain_size(features)), *channels, *[geometry.kernel_size] * len(size)
    banks = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(CHANNELS, dtype=torch.float64)
    asked: list[int] = []

    def banks_of(start: int, end: int) -> Tensor:
        asked.append(end - start)
        return banks[start:end].flatten(3)

    banks_of.values = 5
    found = integrate_at_pixels(features, banks_of, bias, geometry)
    expected = sum_over_taps(features, banks, geometry) + bias.view(-1, *[1] * len(size))
    assert max(asked) <= pixels
    assert sum(asked) == len(banks)
    assert found.shape == expected.shape
    assert relative_error(found.detach(), expected.detach()) <= ROUNDING
    cotangent = torch.randn_like(found)
    gradients = [torch.autograd.grad(of, [features, banks], cotangent) for of in (found, expected)]
    assert all(relative_error(*of) <= ROUNDING for of in zip(*gradients, strict=True))
    # Banks are not kept for the backward pass, but made again.
    assert sum(asked) == 2 * len(banks)
    assert max(asked) <= pixels


@pytest.mark.parametrize("place", [{}, {"stride": 2}, {"dilation": 2, "padding": (2, 1)}], ids=str)
def test_transposed_layer_with_the_same_weights_is_the_adjoint(place: dict[str, object]) -> None:
    """⟨K f, h⟩ = ⟨f, Kᵀ h⟩ of continuous kernels of one channel: the position is that of the input of the adjoint."""
    types = small.types("C4", "trivial -> trivial")
    relax = {"translation": (0.3, 0.5), "rotation": 0.2}
    place = {"padding": 1, "bias": False, "soft_part": "continuous", "relax": relax, "initial_softness": 0.3, **place}
    forward, adjoint = (build(*types, make=make, **place) for make in (RelaxedR2Conv, RelaxedR2ConvTransposed))
    adjoint.kernel.load_state_dict(forward.kernel.state_dict())
    f = small.random_input(types[0], 5, 7)
    h = torch.randn_like(answer_to(forward, f))
    products = (answer_to(forward, f) * h).sum(), (f * answer_to(adjoint, h)).sum()
    assert products[0].item() == pytest.approx(products[1].item(), rel=1e-10)
    # The position matters.
    other = (answer_to(forward, f.flip(2)) * h.flip(2)).sum()
    assert abs(other.item() - products[0].item()) > 1e-2

"""The same answers and gradients on a GPU as on the CPU, to float32 rounding; where there is none, one is pretended."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import battery
import pytest
import torch
from layers import SOFT_PARTS, build, options_of
from pretend_device import another_device
from tolerances import ROUNDING, SINGLE_REORDERED
from transformations import largest_error, relative_error

from escnn_relaxed import RelaxedR2Conv, equivariance_error, prediction_agreement

CASES = [
    ("C8", "two regular -> regular"),
    ("D4", "trivial + regular + irreps + regular -> last irrep + regular + trivial + mixed"),
    ("C8", "induced + quotient + trivial -> regular + induced"),
    ("SO(2)", "band-limited + trivial -> irreps + mixed"),
    ("O(2)", "irreps -> irreps"),
]
if not torch.cuda.is_available():
    # The forms of a layer pretend to be elsewhere in test_devices.py.
    CASES = [CASES[0], CASES[3]]
_EVERYWHERE = {"rotation": 0.2, "translation": (0.2, 0.4)}
SOFT = {
    "strict": {"relax": {}},
    "soft": {"relax": {"rotation": 0.2}},
    "soft translation": {"relax": _EVERYWHERE},
}


@pytest.fixture(autouse=True)
def gpu() -> Iterator[torch.device]:
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False), another_device() as device:
        yield device


def layer_of(space: str, pair: str, soft: str, soft_part: str, **arguments: object) -> RelaxedR2Conv:
    return build(
        *battery.types(space, pair),
        learn_relaxation=True,
        initial_softness=0.3,
        padding=1,
        soft_part=soft_part,
        **SOFT[soft],
        **arguments,
    )


@pytest.mark.parametrize("soft_part", SOFT_PARTS)
@pytest.mark.parametrize("soft", SOFT)
@pytest.mark.parametrize(("space", "pair"), CASES)
def test_answers_and_gradients_are_those_of_the_cpu(
    space: str, pair: str, soft: str, soft_part: str, gpu: torch.device
) -> None:
    layer = layer_of(space, pair, soft, soft_part).float()
    features = battery.random_input(layer.in_type, 14, 9, dtype=torch.float32)
    cotangent = torch.randn(layer.evaluate_output_shape(features.shape))
    results = []
    for device in (torch.device("cpu"), gpu):
        moved = copy.deepcopy(layer).to(device)
        values = features.to(device).requires_grad_()
        answer = moved(moved.in_type(values)).tensor
        assert answer.device == device
        gradients = torch.autograd.grad(answer, [values, *moved.parameters()], cotangent.to(device))
        results.append([result.detach().cpu() for result in (answer, *gradients)])
    for expected, found in zip(*results, strict=True):
        if not expected.numel():
            continue
        # Gradients sum over the batch, the pixels and the taps as well.
        assert relative_error(found, expected) <= 10 * SINGLE_REORDERED


@pytest.mark.parametrize("soft_part", SOFT_PARTS)
@pytest.mark.parametrize(("space", "pair"), CASES)
def test_strict_layer_on_the_gpu_is_equivariant_in_float64(
    space: str, pair: str, soft_part: str, gpu: torch.device
) -> None:
    """Constants keep their digits on the way."""
    in_type, out_type = battery.types(space, pair)
    layer = RelaxedR2Conv(in_type, out_type, 3, padding=1, relax=None, **options_of(soft_part)).to(gpu).double()
    assert largest_error(layer, battery.random_input(in_type, 6, 6).to(gpu)) <= ROUNDING


def test_padding_modes_on_the_gpu(gpu: torch.device) -> None:
    for mode in ("zeros", "reflect", "replicate", "circular"):
        layer = layer_of("C4", "regular -> irreps", "soft translation", "continuous", padding_mode=mode)
        features = battery.random_input(layer.in_type, 14, 9)
        with torch.no_grad():
            expected = layer(layer.in_type(features)).tensor
            found = layer.to(gpu)(layer.in_type(features.to(gpu))).tensor.cpu()
        assert relative_error(found, expected) <= ROUNDING


def test_measured_errors_are_those_of_the_cpu(gpu: torch.device) -> None:
    layer = layer_of("C8", "two regular -> regular", "soft", "tied")
    features = battery.random_input(layer.in_type, 9, 9)
    results = []
    for device in (torch.device("cpu"), gpu):
        moved, data = copy.deepcopy(layer).to(device), features.to(device)
        rows = equivariance_error(moved, data=data, shifts=[(1, 2)]).rows
        results.append([value for row in rows for value in (row.error, row.resampling)])
    assert results[1] == pytest.approx(results[0], rel=1e-9, abs=ROUNDING)
    trivial = battery.field_type("C8", "trivial")
    images = torch.rand(3, 1, 9, 9, device=gpu)
    report = prediction_agreement(torch.nn.Flatten(), images, in_type=trivial, shifts=[(1, 0)])
    assert 0 <= report.orbit <= 1
    assert all(row.error >= 0 for row in equivariance_error(layer.to(gpu), 9).rows)

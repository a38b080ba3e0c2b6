"""Continuous groups: the error falls with the number of samples; the grid is turned at random in training alone."""

from __future__ import annotations

import copy
import math

import battery
import numpy as np
import pytest
import torch
from layers import EVERY_KIND, SIZES, SOFT_PARTS, build, relaxation
from tolerances import ROUNDING
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from transformations import relative_error

from escnn_relaxed import RelaxedR2Conv
from escnn_relaxed.group.frame import GroupFrame

SAMPLES = (4, 8, 16, 32)


def error_against_continuous_constraint(layer: RelaxedR2Conv, angles: list[float]) -> float:
    """Mean of ‖K_turned − K‖ / ‖K‖ over angles.

    The bank on a grid turned by r is ρ_out(r) K(r⁻¹d) ρ_in(r)⁻¹, evaluated without resampling: the continuous
    constraint says that it is K.
    """
    errors = []
    with torch.no_grad():
        bank = layer.filter_bank()
        for angle in angles:
            layer.bank.turn(angle)
            errors.append(relative_error(layer.filter_bank(), bank))
        layer.bank.turn(0.0)
        assert relative_error(layer.filter_bank(), bank) <= ROUNDING
    return float(np.mean(errors))


@pytest.mark.parametrize(
    ("space", "pair"),
    [
        ("SO(2)", "band-limited + trivial -> irreps + mixed"),
        ("O(2)", "irreps -> irreps"),
    ],
)
def test_error_against_the_continuous_constraint_falls_with_the_number_of_samples(
    space: str, pair: str, record_property: pytest.RecordProperty
) -> None:
    in_type, out_type = battery.types(space, pair)
    table = []
    for samples in SAMPLES:
        errors = []
        for seed in range(2):
            torch.manual_seed(seed)
            layer = build(in_type, out_type, 5, relax=None, samples=samples)
            angles = (2 * math.pi * torch.rand(4)).tolist()
            errors.append(error_against_continuous_constraint(layer, angles))
        table.append(float(np.mean(errors)))
        record_property(f"N = {samples}", table[-1])
    print(f"{space} {pair}: " + ", ".join(f"N = {n}: {e:.2g}" for n, e in zip(SAMPLES, table, strict=True)))
    # Four and eight samples both alias: which of the two errs more is chance.
    assert min(table[:2]) > table[2] > table[3]
    # Band-limited kernels: once the samples resolve their harmonics the error falls faster than any power of N.
    assert table[0] > 0.1
    assert table[2] < 0.05
    assert table[3] < 1e-3


@pytest.mark.parametrize("space", battery.CONTINUOUS)
def test_strict_layer_on_many_samples_is_equivariant_to_every_angle(space: str) -> None:
    layer = build(*battery.types(space, "irreps -> irreps"), relax=None, samples=64)
    # 64 samples resolve every harmonic that a bandwidth of this size has above rounding.
    assert error_against_continuous_constraint(layer, [0.3, 1.0, 2.0]) < 1e-9


def soft_layer_of_rotations(soft_part: str, samples: int) -> RelaxedR2Conv:
    place = *battery.types("SO(2)", "irreps -> irreps"), 5
    soft = {"relax": {"rotation": 0.25}, "initial_softness": 0.3, "random_offset": True}
    return build(*place, **soft, samples=samples, soft_part=soft_part)


def bank_turned_by(layer: RelaxedR2Conv, offset: float) -> torch.Tensor:
    with torch.no_grad(), layer.bank.turned(offset):
        return layer.filter_bank()


def bank_on_a_dense_grid(layer: RelaxedR2Conv) -> torch.Tensor:
    """The integral over all rotations: the same weights on a grid of 256."""
    if layer.bank.has_waves:
        return continuous_bank_on_a_dense_grid(layer)
    dense = soft_layer_of_rotations("tied", samples=256)
    dense.load_state_dict(dict(layer.state_dict()))
    with torch.no_grad():
        return dense.filter_bank()


def continuous_bank_on_a_dense_grid(layer: RelaxedR2Conv) -> torch.Tensor:
    bank = copy.deepcopy(layer).bank
    frame = GroupFrame(layer.space, samples=256)
    bank.remembered.drop()
    bank.frame = frame
    bank.grid.set_frame(frame)
    bank.steered_average.set_structures(*bank._structures(frame))
    with torch.no_grad():
        kernel: torch.Tensor = bank(layer.domain_frequency, (), layer._strict_part)
        return kernel


@pytest.mark.parametrize(
    ("soft_part", "samples", "bound"),
    [
        # One mean over the grid: that over all grids is the integral.
        *[("continuous", samples, ROUNDING) for samples in (4, 8, 16)],
        # Functions of the angle alone have no mean over any grid.
        *[("tied", samples, ROUNDING) for samples in (4, 8, 16)],
        # The soft part is centred by a second mean over the same grid. Found: 2e-4 and 2e-10, but 0.2 for 4 samples.
        ("centred", 8, 1e-3),
        ("centred", 16, 1e-8),
    ],
)
def test_mean_over_the_offsets_is_the_integral_over_the_rotations(soft_part: str, samples: int, bound: float) -> None:
    layer = soft_layer_of_rotations(soft_part, samples)
    integral = bank_on_a_dense_grid(layer)
    steps = 256 // samples
    offsets = [2 * math.pi / samples * step / steps for step in range(steps)]
    banks = torch.stack([bank_turned_by(layer, offset) for offset in offsets])
    assert relative_error(banks.mean(dim=0), integral) <= bound
    # A single grid is further off, or there would be nothing to average.
    assert relative_error(banks[0], integral) > 10 * bound


def test_mean_over_drawn_offsets_is_the_integral_within_its_standard_error() -> None:
    layer = soft_layer_of_rotations("continuous", samples=8)
    torch.manual_seed(0)
    banks = torch.stack([bank_turned_by(layer, layer.bank.random_offset()) for _ in range(100)])
    error = (banks.mean(dim=0) - bank_on_a_dense_grid(layer)).square().sum()
    # Its mean over draws is the variance of the mean; three standard errors are hardly ever reached.
    assert error.sqrt() <= 3 * (banks.var(dim=0).sum() / len(banks)).sqrt()


def test_drawn_offsets_are_uniform_over_a_step_of_the_grid() -> None:
    layer = soft_layer_of_rotations("continuous", samples=8)
    torch.manual_seed(0)
    quantiles = sorted(layer.bank.random_offset() / (2 * math.pi / 8) for _ in range(1000))
    assert 0 <= quantiles[0] < quantiles[-1] < 1
    # Kolmogorov and Smirnov's distance is above 1.95/√1000 once in a thousand.
    assert max(abs(value - rank / 1000) for rank, value in enumerate(quantiles)) < 0.062


@pytest.mark.parametrize("soft_part", SOFT_PARTS)
@pytest.mark.parametrize("space", battery.CONTINUOUS)
def test_offset_is_random_in_training_and_fixed_in_evaluation(space: str, soft_part: str) -> None:
    in_type, out_type = battery.types(space, "irreps -> irreps")
    layer = build(
        in_type,
        out_type,
        relax=battery.subgroups(space, 0.2),
        samples=4,
        random_offset=True,
        initial_softness=0.3,
        soft_part=soft_part,
    )
    features = in_type(battery.random_input(in_type, 5, 5))

    def answers() -> list[torch.Tensor]:
        with torch.no_grad():
            return [layer(features).tensor for _ in range(3)]

    fixed = layer.eval() and answers()
    assert torch.equal(fixed[0], fixed[1])
    drawn = layer.train() and answers()
    assert not torch.allclose(drawn[0], drawn[1])
    assert not torch.allclose(drawn[1], drawn[2])
    # Back on the fixed grid, to the last digit, also when asked for the filter bank without a forward pass.
    assert torch.equal(layer.eval() and answers()[0], fixed[0])


def test_filter_bank_of_an_evaluated_layer_is_that_of_the_fixed_grid() -> None:
    in_type, out_type = battery.types("SO(2)", "irreps -> irreps")
    layer = build(in_type, out_type, relax=None, samples=4, random_offset=True)
    expected = layer.eval().filter_bank().detach()
    layer.train()(in_type(battery.random_input(in_type, 4, 4)))
    assert torch.equal(layer.eval().filter_bank().detach(), expected)


def test_offset_follows_the_seed() -> None:
    in_type, out_type = battery.types("SO(2)", "irreps -> irreps")
    layer = build(in_type, out_type, relax=None, samples=4, random_offset=True)
    features = in_type(battery.random_input(in_type, 4, 4))
    answers = []
    for _ in range(2):
        torch.manual_seed(3)
        answers.append(layer(features).tensor.detach())
    assert relative_error(*answers) <= ROUNDING


@pytest.mark.parametrize("soft_part", SOFT_PARTS)
@pytest.mark.parametrize("space", battery.CONTINUOUS)
@EVERY_KIND
def test_gradients_are_right_when_the_layer_runs_again_before_backward(kind: str, space: str, soft_part: str) -> None:
    """The second pass turns the grid: the first must not see it, nor the second what is left of the first."""
    in_type, out_type = battery.types(space, "trivial -> irreps")
    arguments = relaxation(kind, battery.subgroups(space, 0.2))
    fixed = {"samples": 4, "random_offset": True, "initial_softness": 0.3, "padding": 1, "learn_relaxation": True}
    layer = build(in_type, out_type, **arguments, **fixed, soft_part=soft_part)
    features = battery.random_input(in_type, *SIZES[kind]).requires_grad_()
    cotangent = torch.randn(layer.evaluate_output_shape(features.shape), dtype=torch.float64)

    def answer(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return layer(in_type(features)).tensor

    def gradients(of: torch.Tensor) -> list[torch.Tensor]:
        return [of.detach(), *torch.autograd.grad(of, [features, *layer.parameters()], cotangent)]

    apart = [gradients(answer(seed)) for seed in (3, 4)]
    assert relative_error(apart[0][0], apart[1][0]) > 1e-4
    answers = [answer(seed) for seed in (3, 4)]
    for expected, found in zip(apart, map(gradients, answers), strict=True):
        # O(2)'s irreps learn no ω′ of reflection: rotation gives all directions that a tied kernel has.
        pairs = zip(expected, found, strict=True)
        assert all((b - a).norm() <= ROUNDING * a.norm() for a, b in pairs)


AVERAGES = {
    "average": {},
    "exponential": {"multi_avg_fn": get_ema_multi_avg_fn(0.9)},
    "of buffers too": {"multi_avg_fn": get_ema_multi_avg_fn(0.9), "use_buffers": True},
}


@pytest.mark.parametrize("how", AVERAGES)
@EVERY_KIND
def test_average_of_models_is_evaluated_on_the_fixed_grid(kind: str, how: str) -> None:
    """Averages copy or average buffers, those of numbers of channels too."""
    in_type, out_type = battery.types("SO(2)", "band-limited + trivial -> irreps + mixed")
    arguments = {"samples": 4, "random_offset": True, "initial_softness": 0.3, "padding": 1, "learn_relaxation": True}
    layer = build(in_type, out_type, **relaxation(kind, {"rotation": 0.2}), **arguments, soft_part="tied")
    features = in_type(battery.random_input(in_type, *SIZES[kind]))
    average = AveragedModel(layer, **AVERAGES[how])
    for _ in range(3):
        layer(features)
        average.update_parameters(layer)
    with torch.no_grad():
        expected = layer.eval()(features).tensor
        # Averages of one value are rounded.
        assert relative_error(average.eval()(features).tensor, expected) <= 1e-12


def test_grid_is_the_fixed_one_whenever_no_pass_runs() -> None:
    """Also after one that failed."""
    in_type, out_type = battery.types("SO(2)", "irreps -> irreps")
    layer = build(in_type, out_type, relax=None, samples=4, random_offset=True)
    expected = {name: buffer.clone() for name, buffer in layer.named_buffers()}
    layer(in_type(battery.random_input(in_type, 4, 4)))
    with pytest.raises(RuntimeError):
        layer(in_type(battery.random_input(in_type, 4, 4).float()))
    assert layer.bank.frame.offset == 0
    for name, buffer in layer.double().named_buffers():
        assert torch.equal(buffer, expected[name]), name


# Torch's own, where a graph ends and another one takes its values.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize(
    ("kind", "backend"), [("stationary", "aot_eager"), ("by regions", "eager"), ("per pixel", "eager")]
)
def test_compiled_layer_draws_the_same_offsets(kind: str, backend: str) -> None:
    """The grid is turned outside of the graph."""
    torch.compiler.reset()
    in_type, out_type = battery.types("SO(2)", "irreps -> irreps")
    arguments = {"samples": 4, "random_offset": True, "initial_softness": 0.3, "padding": 1}
    layer = build(in_type, out_type, **relaxation(kind, {"rotation": 0.2}), **arguments)
    features = in_type(battery.random_input(in_type, *SIZES[kind]))
    calls = [layer, torch.compile(layer, backend=backend)]
    for seed in range(3):
        results = []
        for call in calls:
            torch.manual_seed(seed)
            answer = call(features).tensor
            results.append([answer.detach(), *torch.autograd.grad(answer.square().mean(), list(layer.parameters()))])
        for expected, found in zip(*results, strict=True):
            assert relative_error(found, expected) <= 1e-12


@pytest.mark.filterwarnings("ignore:random_offset. ignored:UserWarning")
def test_finite_groups_take_no_offset() -> None:
    in_type, out_type = battery.types("C4", "irreps -> irreps")
    layer = build(in_type, out_type, relax={"rotation": 0.2}, random_offset=True)
    features = in_type(battery.random_input(in_type, 4, 4))
    assert torch.equal(layer(features).tensor, layer(features).tensor)

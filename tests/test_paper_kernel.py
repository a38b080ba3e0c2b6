"""The paper's kernel: random samples of SO(2), whole frequencies, evidence of its weights, its special cases."""

import math

import pytest
import torch
from errors import ROUNDING
from escnn import gspaces, nn
from torch import Tensor

from escnn_relaxed import ContinuousKernel, RelaxedR2Conv, SoftnessEvidence
from escnn_relaxed.continuous import FourierKernel, SirenKernel, draw_samples
from escnn_relaxed.continuous.kernel import _drawn_angle as drawn_angle
from escnn_relaxed.models import RelaxedResNet

C8 = gspaces.rot2dOnR2(8)
IMAGE, HIDDEN = C8.type(C8.trivial_repr), C8.type(*[C8.regular_repr] * 2)
LOG = {"rotation_coordinates": "log"}


def layer_between(
    *types: nn.FieldType, relax: object = ("rotation",), keep: str | None = None, samples: int = 8, **options: object
):
    torch.manual_seed(0)
    form = {"samples": samples, "keep": keep, "kernel": ContinuousKernel(hidden_size=6, **options)}
    return RelaxedR2Conv(*types, 5, padding=2, relax=relax, initial_softness=0.2, **form)


# The nets that are smooth on the circle, and the paper's, which sees where a coordinate is not wrapped.
FORMS = [("circle", FourierKernel), ("log", FourierKernel), ("log", SirenKernel)]


@pytest.mark.usefixtures("float64_default")
@pytest.mark.parametrize(("form", "net"), FORMS)
@pytest.mark.parametrize("keep", [None, "C2"])
@pytest.mark.parametrize("in_type", [IMAGE, HIDDEN], ids=["lifting", "regular"])
def test_samples_turned_by_steps_of_the_grid_roll_the_channels(
    in_type: nn.FieldType, keep: str | None, form: str, net: type
) -> None:
    """Also where the coordinate of a rotation is that of a coset, which turns twice as fast."""
    layer = layer_between(in_type, HIDDEN, keep=keep, sampling="random", rotation_coordinates=form, net=net)
    grid = layer.filter_bank()
    layer.kernel.turn(2 * math.tau / 8)
    rolled = grid.unflatten(0, (2, 8)).roll(-2, 1).flatten(0, 1)
    if in_type is HIDDEN:
        rolled = rolled.unflatten(1, (2, 8)).roll(-2, 2).flatten(1, 2)
    assert (layer.filter_bank() - rolled).abs().max() <= ROUNDING
    layer.kernel.turn(0.3)
    assert (layer.filter_bank() - grid).abs().max() > 1e-2


def irreps_of(name: str) -> nn.FieldType:
    space = gspaces.rot2dOnR2(-1, 2) if name == "SO(2)" else gspaces.flipRot2dOnR2(-1, 2)
    irreps = [(0,), (1,), (2,)] if name == "SO(2)" else [(0, 0), (1, 0), (1, 1), (1, 2)]
    return space.type(*(space.irrep(*of) for of in irreps))


@pytest.mark.usefixtures("float64_default")
@pytest.mark.parametrize("name", ["SO(2)", "O(2)"])
@pytest.mark.parametrize(("form", "net"), FORMS)
def test_a_mean_over_the_group_is_that_of_samples_turned_by_a_step(name: str, form: str, net: type) -> None:
    """Between irreps, whose matrices turn too."""
    fields, options = irreps_of(name), {"sampling": "random", "rotation_coordinates": form, "net": net}
    layer = layer_between(fields, fields, relax="default", **options)
    grid = layer.filter_bank()
    for steps in (3, 8):
        layer.kernel.turn(steps * math.tau / 8)
        assert (layer.filter_bank() - grid).abs().max() <= ROUNDING
    layer.kernel.turn(0.2)
    assert (layer.filter_bank() - grid).abs().max() > 1e-3


@pytest.mark.usefixtures("float64_default")
@pytest.mark.parametrize("name", ["SO(2)", "O(2)"])
@pytest.mark.parametrize(("form", "net"), FORMS)
def test_turned_samples_together_are_a_finer_grid(name: str, form: str, net: type) -> None:
    """So the mean kernel of training is that of evaluation, but for the step of the grid."""
    fields, options = irreps_of(name), {"sampling": "random", "rotation_coordinates": form, "net": net}
    layer = layer_between(fields, fields, relax="default", **options)
    fine = layer_between(fields, fields, relax="default", samples=24, **options)
    fine.kernel.net = layer.kernel.net
    pairs = (of.kernel.steered_average.block_pairs for of in (layer, fine))
    for pair, other in zip(*pairs, strict=True):
        other.weights, other.units = pair.weights, pair.units
    mean = torch.zeros_like(layer.filter_bank())
    for turn in range(3):
        layer.kernel.turn(turn * math.tau / 24)
        mean += layer.filter_bank() / 3
    assert (mean - fine.filter_bank()).abs().max() <= ROUNDING


def test_each_forward_of_training_draws_and_evaluation_has_the_grid() -> None:
    layer = layer_between(IMAGE, HIDDEN, sampling="random")
    images = IMAGE(torch.randn(1, 1, 9, 9))
    torch.manual_seed(1)
    first, second = (layer(images).tensor for _ in range(2))
    assert not torch.equal(first, second)
    torch.manual_seed(1)
    assert torch.equal(layer(images).tensor, first)
    layer.eval()
    grid = layer_between(IMAGE, HIDDEN).eval()
    grid.load_state_dict(layer.state_dict())
    assert torch.equal(layer(images).tensor, grid(images).tensor)


@pytest.mark.usefixtures("float64_default")
def test_positions_turn_with_the_samples_and_are_those_of_the_grid_again() -> None:
    """By steps of the grid: at a pixel as seen from the next element, and averaged over all that any element sees."""
    space = gspaces.rot2dOnR2(4)
    types = space.type(space.trivial_repr), space.type(space.regular_repr)
    layer = layer_between(*types, relax=("rotation", "translation"), sampling="random")

    def banks(size: tuple[int, int]) -> Tensor:
        return layer.filter_banks(size).detach().movedim((0, 1), (-2, -1))

    def mean() -> Tensor:
        return layer.kernel(layer.weights, ("translation",)).detach().unflatten(-1, (layer.kernel_size,) * 2)

    grid = banks((3, 4)), mean()
    for angle, turns in ((math.tau / 4, 1), (0.3, None), (0.0, 0)):
        layer.kernel.turn(angle)
        # Quarter turns map the pixels of the reference image to each other.
        assert (banks((8, 8)).mean((-2, -1)) - mean()).abs().max() <= ROUNDING
        for found, expected in zip((banks((3, 4)), mean()), grid, strict=True):
            if turns is None:
                assert (found - expected).abs().max() > 1e-3
            else:
                assert (found - expected.roll(-turns, 0)).abs().max() <= ROUNDING


def test_layers_of_a_network_share_a_draw_that_checkpoints_repeat() -> None:
    kernel = ContinuousKernel(hidden_size=4, sampling="random")
    network = RelaxedResNet(2, 4, relax=("rotation",), in_channels=1, fields=(1, 2), kernel=kernel)
    network(torch.randn(2, 1, 28, 28))
    angles = {of.kernel.angle for of in network.modules() if isinstance(of, RelaxedR2Conv)}
    assert len(angles) == 1
    assert 0 not in angles
    layers = [layer_between(HIDDEN, HIDDEN, sampling="random") for _ in range(2)]
    draw_samples(nn.SequentialModule(*layers))
    images = torch.randn(1, 16, 9, 9, requires_grad=True)
    plain = layers[1](layers[0](HIDDEN(images))).tensor.square().sum()
    (expected,) = torch.autograd.grad(plain, images)
    part = torch.utils.checkpoint.checkpoint(lambda of: layers[0](HIDDEN(of)).tensor, images, use_reentrant=False)
    (found,) = torch.autograd.grad(layers[1](HIDDEN(part)).tensor.square().sum(), images)
    assert torch.equal(found, expected)


def test_a_draw_is_any_angle_and_for_layers_with_random_samples_alone() -> None:
    angles = torch.tensor([drawn_angle() for _ in range(200)])
    assert angles.min() >= 0
    assert angles.max() < math.tau
    # A fifth of a turn holds 40 of them.
    assert (torch.histc(angles, 5, 0, math.tau) > 20).all()
    layers = [layer_between(IMAGE, HIDDEN, sampling=sampling) for sampling in ("grid", "random", "random")]
    layers[1].eval()
    draw_samples(nn.SequentialModule(layers[0], layer_between(HIDDEN, HIDDEN)))
    for layer in layers:
        draw_samples(layer)
    assert [layer.kernel.angle == 0 for layer in layers] == [True, True, False]


def test_random_samples_are_of_continuous_groups_or_of_regular_fields() -> None:
    d4 = gspaces.flipRot2dOnR2(4)
    regular = d4.type(d4.regular_repr)
    irreps = C8.type(C8.irrep(1))
    for types in ((regular, regular), (HIDDEN, irreps), (irreps, HIDDEN)):
        with pytest.raises(ValueError, match="sampling must be 'grid' here"):
            layer_between(*types, sampling="random")
    with pytest.raises(ValueError, match="sampling"):
        ContinuousKernel(sampling="often")


@pytest.mark.usefixtures("warnings_not_yet_given")
@pytest.mark.parametrize(("frequency", "filtered"), [(0.3, {}), (1.0, {"filter_frequency": {"rotation": 0.5}})])
def test_frequencies_that_are_no_whole_numbers_jump_in_log_coordinates(frequency: float, filtered: dict) -> None:
    with pytest.warns(UserWarning, match="jumps where the angle does"):
        layer_between(HIDDEN, HIDDEN, relax={"rotation": frequency}, **LOG, **filtered)


@pytest.mark.usefixtures("warnings_not_yet_given")
@pytest.mark.filterwarnings("ignore:.*a learned ω′ leaves the whole numbers")
@pytest.mark.parametrize("learn", [False, True])
def test_a_frequency_that_is_set_or_loaded_jumps_as_one_at_the_start_does(learn: bool) -> None:
    def layer() -> RelaxedR2Conv:
        kernel = ContinuousKernel(hidden_size=4, **LOG)
        return RelaxedR2Conv(HIDDEN, HIDDEN, 3, learn_relaxation=learn, kernel=kernel)

    first, second = layer(), layer()
    first.set_domain_frequency(rotation=2.0)
    second.load_state_dict(first.state_dict())  # warnings are errors
    with pytest.warns(UserWarning, match=r"jumps where the angle does.*, got ω′ = 0.375"):
        first.set_domain_frequency(rotation=0.375)
    state = first.state_dict()
    state["kernel.frequency.rotation"].fill_(0.625)
    with pytest.warns(UserWarning, match=r"jumps where the angle does.*, got ω′ = 0.625"):
        second.load_state_dict(state)
    state["kernel.frequency.rotation"].fill_(5.0)
    with pytest.warns(
        UserWarning, match="load_state_dict: the domain frequency 5 of rotation is above 4 .* it aliases"
    ):
        second.load_state_dict(state)
    second.load_state_dict(state)


def test_a_learned_frequency_leaves_the_whole_numbers() -> None:
    with pytest.warns(UserWarning, match="a learned ω′ leaves the whole numbers"):
        RelaxedR2Conv(HIDDEN, HIDDEN, 3, relax={"rotation": 1.0}, learn_relaxation=True, kernel=ContinuousKernel(**LOG))


@pytest.mark.usefixtures("float64_default")
def test_log_coordinates_are_smooth_on_the_circle_by_default() -> None:
    kernel = layer_between(HIDDEN, HIDDEN, relax={"rotation": 1.0}, **LOG).kernel
    net = kernel.net
    ends = [torch.tensor([[0.1, 0.2, angle]]) for angle in (-0.5, 0.5)]
    frequency = kernel.options.frequencies(kernel.config.kernel_size)["rotation"]
    values = [net(of * torch.tensor([1.0, 1.0, frequency]), torch.tensor([[0.3]])) for of in ends]
    assert (values[0] - values[1]).abs().max() <= ROUNDING


def gradients_of(output: torch.Tensor, layer: RelaxedR2Conv) -> torch.Tensor:
    found = torch.autograd.grad(output.square().sum(), list(layer.parameters()), allow_unused=True)
    return torch.cat([value.flatten() for value in found if value is not None])


@pytest.mark.usefixtures("float64_default")
@pytest.mark.parametrize("change", ["another draw", "evaluation", "frequency"])
def test_backward_has_the_kernel_of_the_forward(change: str) -> None:
    relax = {"rotation": 0.25, "translation": 0.5}
    layer = layer_between(HIDDEN, HIDDEN, relax=relax, sampling="random")
    images, others = (HIDDEN(torch.randn(1, 16, 5, 5)) for _ in range(2))
    found = []
    for number in range(2):
        torch.manual_seed(5)
        output = layer.train()(images).tensor
        if number and change == "another draw":
            layer(others)
        elif number and change == "evaluation":
            layer.eval()
        elif number:
            layer.set_domain_frequency(translation=0.1)
        found.append(gradients_of(output, layer))
    assert (found[0] - found[1]).abs().max() <= ROUNDING * found[0].abs().max()


def test_parameters_that_change_before_the_backward_are_refused() -> None:
    layer = layer_between(IMAGE, HIDDEN, relax=("translation",))
    output = layer(IMAGE(torch.randn(1, 1, 5, 5))).tensor
    with torch.no_grad():
        next(layer.kernel.parameters()).mul_(1.5)
    with pytest.raises(RuntimeError, match="changed in place between the forward and the backward pass"):
        output.sum().backward()


@pytest.mark.parametrize(
    ("net", "learn", "expected"),
    [
        (SirenKernel, False, {"translation": 12, "rotation": 12}),
        (FourierKernel, False, {"rotation, translation": 6 * 32}),
        (SirenKernel, True, {"translation": 2, "rotation": 1}),
    ],
)
def test_soft_weights_are_those_of_domain_coordinates_or_a_learned_frequency(
    net: type, learn: bool, expected: dict[str, int]
) -> None:
    kernel = ContinuousKernel(net=net, hidden_size=6)
    relax = ("rotation", "translation")
    layer = RelaxedR2Conv(IMAGE, HIDDEN, 3, relax=relax, learn_relaxation=learn, kernel=kernel)
    groups = {group.name: group.entries for group in layer.kernel.weight_groups()}
    assert {name: sum(len(numbers) for _, numbers in of) for name, of in groups.items()} == expected
    assert layer.softness().item() > 1e-3
    soft = {id(value) for value in layer.soft_parameters()}
    assert {id(value) for of in groups.values() for value, _ in of} <= soft
    if net is SirenKernel:
        for weights, numbers in groups["rotation"]:
            weights.data.view(-1)[numbers] = 0
        assert layer.softness("rotation").item() == pytest.approx(0, abs=1e-9)
        assert layer.softness("translation").item() > 1e-4
    with torch.no_grad():
        layer.kernel.scale_soft_part(0.0)
    assert layer.softness().item() == 0


def test_evidence_learns_the_weight_of_a_learned_frequency() -> None:
    """δ of one number is γ/ω′², and the penalty the paper's λ‖ω′‖² with λ = δ/2N."""
    torch.manual_seed(0)
    layer = RelaxedR2Conv(IMAGE, C8.type(*[C8.trivial_repr] * 2), 5, learn_relaxation=True, kernel=ContinuousKernel())
    evidence = SoftnessEvidence(layer, observations=64)
    assert evidence.penalty().item() == 0
    evidence.update(IMAGE(torch.randn(64, 1, 5, 5)))
    (row,) = evidence.table()
    assert row.weights == 1
    assert 0 <= row.gamma_per_weight <= 1
    (precision,) = evidence.state_dict()["precision"].values()
    frequency = layer.domain_frequency["rotation"]
    expected = precision * frequency.square().sum().item() / (2 * 64)
    assert evidence.penalty().item() == pytest.approx(min(expected, 5 * frequency.item() ** 2), rel=1e-5)


@pytest.mark.usefixtures("float64_default")
def test_a_kernel_of_many_hidden_values_fits_an_independent_weight_at_each_pixel() -> None:
    """Limit (i), a non-equivariant linear product: the output weights are found by least squares."""
    torch.manual_seed(0)
    plain = gspaces.trivialOnR2()
    field = plain.type(plain.trivial_repr)
    side = 8
    kernel = ContinuousKernel(hidden_size=160)
    layer = RelaxedR2Conv(field, field, 1, bias=False, relax={"translation": 4.0}, initial_softness=0.5, kernel=kernel)
    layer.kernel.net.domain_weight.data.normal_()
    positions = layer.kernel.domain_points.pixels((side, side))
    features = layer.kernel.features(layer.kernel.net, layer.kernel.frequency, (), positions)
    (pair,) = layer.kernel.steered_average.block_pairs
    values = pair.steered(features).flatten(0, 2).squeeze(-1).mT @ pair.units.mT  # (pixels, weights)
    target = torch.randn(side * side, 1)
    found = torch.linalg.lstsq(values, target).solution
    pair.weights.data.copy_(found.view_as(pair.weights))
    bank = layer.filter_banks((side, side)).flatten()
    assert (bank - target.flatten()).square().mean() <= 1e-8
    ones = field(torch.ones(1, 1, side, side))
    assert torch.allclose(layer(ones).tensor.flatten(), target.flatten(), atol=1e-4)


def test_image_of_another_dtype_is_refused_at_every_pixel_too() -> None:
    layer = layer_between(IMAGE, IMAGE, relax=("translation",))
    with pytest.raises(TypeError, match=r"input must be of the layer's dtype, torch.float32, got torch.float64"):
        layer(IMAGE(torch.randn(1, 1, 7, 7).double()))

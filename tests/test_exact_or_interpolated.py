"""Which transformations are exact, and what interpolation alone costs: strict networks show whether it is right."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import small
import torch
from errors import BROKEN, ROUNDING, SINGLE, on_grid_elements
from errors import equivariance_error as error_written_out
from escnn import gspaces
from escnn import nn as enn
from small import build, soft_regular_layer
from small_networks import OnTensors, left_alone, network
from torch import Tensor, nn
from torch.nn import functional

from escnn_relaxed import RelaxedR2Conv, RelaxedR3Conv, assert_equivariant, equivariance_error
from escnn_relaxed.measure import EquivarianceReport, ErrorRow
from escnn_relaxed.network.relaxed_layers import input_chunks

Module = Callable[[enn.FieldType], nn.Module]


def interpolated(report: EquivarianceReport) -> list[ErrorRow]:
    return [row for row in report.rows if row.kind != "exact"]


def strided(*modules: Module) -> enn.SequentialModule:
    """A strict network on regular fields of D4, from modules in order."""
    fields = small.field_type("D4", "regular")
    return enn.SequentialModule(*(module(fields).double() for module in modules))


def conv(kernel_size: int, stride: int = 1, padding: int = 0) -> Module:
    return lambda f: RelaxedR2Conv(f, f, kernel_size, stride=stride, padding=padding, relax=None)


def of_escnn(kind: type[nn.Module], *arguments: object, **options: object) -> Module:
    return lambda fields: kind(fields, *arguments, **options)


def transposed(output_padding: int = 0) -> Module:
    return lambda f: enn.R2ConvTransposed(f, f, 3, padding=1, output_padding=output_padding, stride=2)


# Modules, image size, whether strides keep points that turns map to each other.
STRIDES: dict[str, tuple[tuple[Module, ...], tuple[int, int], bool]] = {
    "3 by 2, odd": ((conv(3, 2, 1),), (9, 7), True),
    "4 by 2, even": ((conv(4, 2, 1),), (8, 8), True),
    "a half that does not fit": ((conv(3, 2, 1), conv(3, 2, 1)), (11, 11), False),
    "maximum, even": ((conv(3, 1, 1), of_escnn(enn.PointwiseMaxPool2D, 2)), (8, 8), True),
    "maximum, odd": ((conv(3, 1, 1), of_escnn(enn.PointwiseMaxPool2D, 2)), (9, 9), False),
    "maximum of 3, rounded up": ((of_escnn(enn.PointwiseMaxPool2D, 3, 2, 1, ceil_mode=True),), (9, 9), True),
    "blurred mean, odd": ((of_escnn(enn.PointwiseAvgPoolAntialiased2D, 0.66, 2),), (9, 9), True),
    "blurred maximum, odd": ((of_escnn(enn.PointwiseMaxPoolAntialiased2D, 3, 2, 1),), (9, 9), True),
    "blurred maximum, even": ((of_escnn(enn.PointwiseMaxPoolAntialiased2D, 3, 2, 1),), (8, 8), False),
    "adaptive": ((of_escnn(enn.PointwiseAdaptiveAvgPool2D, 3),), (8, 8), True),
    # One row and one column more than fit, which are not compared.
    "transposed, and more": ((transposed(output_padding=1),), (5, 5), True),
    "upsampled": ((of_escnn(enn.R2Upsampling, 2), conv(3, 2, 1)), (5, 5), False),
}


@pytest.mark.usefixtures("float64_default")
@pytest.mark.parametrize("name", STRIDES)
def test_exact_is_what_a_strict_network_does_without_error(name: str) -> None:
    """Whether a stride fits is told from the modules; a strict network shows whether that is right."""
    modules, size, fits = STRIDES[name]
    whole = strided(*modules)
    atol = SINGLE if name.startswith("transposed") else ROUNDING
    if fits:
        assert {row.kind for row in assert_equivariant(whole, size, atol=atol).rows} == {"exact"}
        return
    # All that errs, by more than 1e-3, is strided, and what is exact does not err.
    with pytest.raises(AssertionError, match=r"6 of 7 .*\n(.*\n)+strided: a stride does not fit"):
        assert_equivariant(whole, size, atol=1e-3)
    report = equivariance_error(whole, size)
    assert {row.kind for row in report.rows} == {"exact", "strided"}
    assert max(row.error for row in report.exact) <= atol
    assert min(min(row.error, row.resampling) for row in interpolated(report)) > 1e-3
    # A transposition maps what any stride keeps to itself, if the sides are equal.
    assert [row.name for row in report.exact] == ["reflection along 45°"]


# The same of volumes: a module, a size that its stride fits, and one that it does not.
OF_VOLUMES: dict[str, tuple[Module, int, int | None]] = {
    "relaxed": (lambda f: RelaxedR3Conv(f, f, 3, padding=1, stride=2, relax=None), 7, 8),
    "maximum": (of_escnn(enn.PointwiseMaxPool3D, 2), 8, 7),
    "blurred maximum": (of_escnn(enn.PointwiseMaxPoolAntialiased3D, 3, 2, 1), 7, 8),
    "blurred mean": (of_escnn(enn.PointwiseAvgPoolAntialiased3D, 0.66, 2), 7, 8),
    "transposed": (lambda f: enn.R3ConvTransposed(f, f, 3, padding=1, stride=2), 5, None),
}


@pytest.mark.parametrize("name", OF_VOLUMES)
def test_exact_in_space_is_what_a_strict_module_does_without_error(name: str) -> None:
    make, *sizes = OF_VOLUMES[name]
    for kind, side in zip(("exact", "strided"), sizes, strict=True):
        if side is not None:
            module, size = make(small.volume_type("C4")), (5, side, side)
            assert [row.kind for row in equivariance_error(module, size).rows] == 3 * [kind]
            if kind == "exact":
                assert_equivariant(module, size, atol=SINGLE)
            else:
                with pytest.raises(AssertionError, match=r"3 of 3 .*\n(.*\n)+strided: a stride does not fit"):
                    assert_equivariant(module, size, atol=BROKEN)


def test_an_output_without_space_knows_of_strides_inside() -> None:
    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = strided(conv(3, 2, 1), enn.GroupPooling)

        def forward(self, images: Tensor) -> Tensor:
            features = self.body(self.body.in_type(images)).tensor
            return features.relu().mean(dim=(2, 3))

    assert {row.kind for row in assert_equivariant(Pooled(), 9, atol=SINGLE).rows} == {"exact"}
    does_not = equivariance_error(Pooled(), 8)
    assert len(interpolated(does_not)) == 6
    assert all(row.error > 1e-3 and math.isnan(row.resampling) for row in interpolated(does_not))


@pytest.mark.parametrize(
    ("mode", "padding", "stride", "size", "pixels", "kind"),
    [
        ("circular", 1, 2, 8, (2, -4), "exact"),
        ("circular", 1, 2, 8, (2, 1), "strided"),
        ("zeros", 1, 2, 8, (2, 4), "exact"),
        ("zeros", 0, 1, 8, (3, -1), "exact"),
        ("zeros", 0, 2, 8, (0, 1), "strided"),
        ("circular", 1, 1, 5, (1, -2, 3), "exact"),
        ("zeros", 1, 1, (5, 6, 7), (-1, 2, 0), "exact"),
        ("zeros", 1, 2, 8, (2, 0, -2), "exact"),
        ("zeros", 1, 2, 8, (1, 0, 0), "strided"),
    ],
)
def test_shifts_of_a_strict_layer(mode: str, padding: int, stride: int, size: Any, pixels: Any, kind: str) -> None:
    fields = small.field_type("C4", "regular") if len(pixels) == 2 else small.volume_type("octahedral")
    make = RelaxedR2Conv if len(pixels) == 2 else RelaxedR3Conv
    layer = build(fields, fields, make=make, relax=None, padding_mode=mode, padding=padding, stride=stride)
    place = {"input_size": size, "elements": (), "shifts": [pixels]}
    (row,) = equivariance_error(layer, **place).rows
    assert (row.kind, row.subgroup, row.name) == (kind, "translation", "shift " + ", ".join(map(str, pixels)))
    if kind == "exact":
        assert_equivariant(layer, **place, atol=ROUNDING)
    else:
        with pytest.raises(AssertionError, match=rf"shift {', '.join(map(str, pixels))} +strided"):
            assert_equivariant(layer, **place, atol=0.1)


def test_torus_is_lost_where_one_module_pads_with_zeros() -> None:
    """Whatever those behind it pad: 1×1 layers pad nothing."""
    whole = strided(conv(3, padding=1), conv(1)).double()
    (row,) = assert_equivariant(whole, 8, elements=(), shifts=[(-3, 1)], atol=ROUNDING).rows
    assert row.kind == "exact"


# What stands before a convolution of 3×3 taps, or behind it, what is measured, and the kind; a strict network has no
# error where the rows are exact.
AROUND: dict[str, tuple[Callable[[Tensor], Tensor] | None, Callable[[Tensor], Tensor] | None, str]] = {
    "circular": (lambda x: functional.pad(x, (1, 1, 1, 1), mode="circular"), None, "exact"),
    "zeros": (nn.ZeroPad2d((1, 2, 0, 3)), None, "exact"),
    "crop": (None, lambda x: x[..., 2:, 1:-1], "exact"),
    "crop of all axes": (lambda x: x[:, :, 1:], lambda x: x[0:, :, :-1, 1:], "exact"),
    "every second pixel": (None, lambda x: x[..., ::2, ::2], "exact"),
    "every second pixel, not in the middle": (None, lambda x: x[:, :, 1::2, 1:-1:2][:, 0:1], "exact"),
    "every third pixel, not in the middle": (None, lambda x: x[..., 1::3, 1::3], "strided"),
    "channels last": (
        None,
        lambda x: functional.rms_norm(x.permute(0, 2, 3, 1), (1,), eps=1).permute(0, 3, 1, 2),
        "exact",
    ),
    "pooling by a function": (None, lambda x: functional.max_pool2d(x, 2), "strided"),
}


@pytest.mark.parametrize("around", AROUND)
def test_functions_that_change_the_size_of_a_map(around: str) -> None:
    """Where pixels lie is known behind a padding and a crop, and else a guess but for whole factors."""
    before, behind, kind = AROUND[around]
    image = small.field_type("C4", "trivial")

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = RelaxedR2Conv(image, image, 3, relax=None).double()

        def forward(self, images: Tensor) -> Tensor:
            found = self.layer(image(images if before is None else before(images))).tensor
            return found if behind is None else behind(found)

    shifts = [(2, 0), (-2, 4)]  # of two pixels, which a step of two keeps
    whole, place = Network(), {"input_size": 21, "shifts": shifts, "in_type": image, "out_type": image}
    report = equivariance_error(whole, **place)
    assert {row.kind for row in report.rows if row.subgroup == "rotation" and "180" not in row.name} == {kind}
    if kind == "exact":
        assert {row.kind for row in assert_equivariant(whole, **place, atol=ROUNDING).rows} == {kind}


def test_network_that_changes_its_input_in_place_is_measured_and_leaves_the_images() -> None:
    image = small.field_type("C4", "trivial")
    layer = RelaxedR2Conv(image, image, 3, padding=1, relax=None).double()

    class Network(nn.Module):
        in_type = image

        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, images: Tensor) -> Tensor:
            return self.layer(image(images.sub_(0.5).mul_(2))).tensor.mean(dim=(2, 3))

    images = torch.rand(4, 1, 9, 9, dtype=torch.float64)
    before = images.clone()
    assert_equivariant(Network(), data=images, atol=ROUNDING)
    (chunk,) = next(input_chunks(images, 3))
    chunk.zero_()
    assert torch.equal(images, before)


class Blur(nn.Module):
    """Convolution with an isotropic Gaussian of 1.5 pixels: equivariant on the plane to many digits."""

    def __init__(self) -> None:
        super().__init__()
        line = torch.arange(-7, 8, dtype=torch.float64)
        kernel = torch.exp(-(line**2 + line[:, None] ** 2) / (2 * 1.5**2))
        self.kernel = nn.Parameter(kernel[None, None] / kernel.sum())

    def forward(self, images: Tensor) -> Tensor:
        return nn.functional.conv2d(images, self.kernel, padding=7)


def test_a_layer_that_is_equivariant_on_the_plane_is_within_what_interpolation_costs() -> None:
    trivial = small.field_type("SO(2)", "trivial")
    angles = [6.0, 30.0, 57.0, 115.0]
    report = equivariance_error(Blur(), 33, in_type=trivial, out_type=trivial, elements=(), angles=angles)
    assert [row.angle for row in report.rows] == pytest.approx(angles)
    for row in report.rows:
        assert row.kind == "interpolated"
        assert 0 < row.error <= row.resampling < 0.02


def test_corners_that_turn_out_of_the_image_do_not_count() -> None:
    class AddOne(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return images + 1

    trivial = small.field_type("SO(2)", "trivial")
    dark = torch.zeros(1, 1, 9, 9, dtype=torch.float64)
    for row in equivariance_error(AddOne(), data=dark, in_type=trivial, out_type=trivial).rows:
        assert row.error <= ROUNDING
        assert row.resampling <= ROUNDING


class Branches(nn.Module):
    """Two strides that leave maps of one size, the first about the centre of an even image, the second beside it."""

    def __init__(self) -> None:
        super().__init__()
        fields = small.field_type("D4", "regular")
        self.centred, self.beside, self.after = (
            build(fields, fields, size, relax=None, **place)
            for size, place in ((2, {"stride": 2}), (3, {"stride": 2, "padding": 1}), (1, {}))
        )

    def forward(self, features: Tensor) -> Tensor:
        first = self.centred(self.centred.in_type(features))
        self.beside(self.beside.in_type(features))
        # No module: what lies where is passed on by functions, from the first of equal sizes too.
        lists = torch.chunk(first.tensor.relu(), 2)
        return self.after(first.type(torch.cat([2 * part for part in lists]) + 1)).tensor


def test_branches_of_one_size_and_other_centres_are_told_apart() -> None:
    assert len(assert_equivariant(Branches(), 8, layer="after", atol=ROUNDING).rows) == 7
    assert min(row.error for row in interpolated(equivariance_error(Branches(), 8, layer="beside"))) > 1e-3


def test_functions_that_change_the_size_keep_the_centre() -> None:
    class Doubled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = strided(conv(2, 2))

        def forward(self, images: Tensor) -> Tensor:
            return nn.functional.interpolate(self.body(self.body.in_type(images)).tensor, scale_factor=2)

    report = equivariance_error(Doubled(), 8, out_type=small.field_type("D4", "regular"), shifts=[(2, -4), (1, 0)])
    assert [row.kind for row in report.rows] == ["exact"] * 8 + ["strided"]
    assert max(row.error for row in report.exact) <= ROUNDING


def test_compiled_modules_are_seen_from_inside() -> None:
    trivial = small.field_type("C4", "trivial")
    plain = nn.Sequential(nn.Conv2d(1, 1, 3, stride=2, padding=1), nn.Sequential(nn.Conv2d(1, 1, 3), nn.ReLU()))
    partly = nn.Sequential(plain[0], torch.compile(plain[1], backend="eager"))
    modules = (plain, partly, torch.compile(plain, backend="eager"))
    reports = [equivariance_error(module, 8, in_type=trivial, out_type=trivial) for module in modules]
    assert reports[0] == reports[1] == reports[2]
    assert {row.kind for row in reports[0].rows} == {"strided"}


@pytest.mark.parametrize("mode", ["zeros", "circular"])
@pytest.mark.parametrize(
    ("space", "pair", "size"),
    [
        ("C4", "regular -> irreps", (5, 5)),
        ("D4", "mixed, sheared -> regular", (4, 6)),
        ("O(2)", "irreps -> irreps", (5, 5)),
    ],
)
def test_exact_errors_are_those_of_transformations_written_out(space: str, pair: str, size: tuple, mode: str) -> None:
    in_type, out_type = small.types(space, pair)
    relax = small.subgroups(space, 0.3)
    layer = build(in_type, out_type, padding=1, padding_mode=mode, relax=relax, initial_softness=0.3)
    features = small.random_input(in_type, *size)
    elements = on_grid_elements(in_type.gspace)
    report = equivariance_error(layer, data=features, elements=elements)
    expected = [error_written_out(layer, features, element) for element in elements]
    # Where ρ is not orthogonal, ‖g f(x)‖ is not ‖f(x)‖, which is what the definition divides by.
    with torch.no_grad():
        norm = layer(in_type(features)).tensor.norm()
        turned = [layer(in_type(features)).transform(element).tensor.norm() for element in elements]
    expected = [error * float(t / norm) for error, t in zip(expected, turned, strict=True)]
    assert [row.error for row in report.exact] == pytest.approx(expected, rel=1e-6)  # escnn's transform is in float32
    assert min(expected) > 0.01


def test_a_layer_inside_is_measured_as_the_network_up_to_it() -> None:
    whole = network("D4").double()
    inside = equivariance_error(whole, 8, layer="3")
    assert inside.layer == "3"
    assert inside.rows == equivariance_error(enn.SequentialModule(*list(whole)[:4]), 8).rows


def test_forms_of_input() -> None:
    layer = soft_regular_layer()
    features = small.random_input(layer.in_type, 5, 5)
    expected = equivariance_error(layer, data=features).rows
    assert equivariance_error(layer, data=layer.in_type(features)).rows == expected
    assert equivariance_error(nn.Sequential(layer), data=features).rows == expected
    assert equivariance_error(layer, 5).rows == equivariance_error(layer, (5, 5)).rows


def test_measuring_changes_nothing() -> None:
    whole = network("C4")
    whole.train()
    whole[1].eval()
    with left_alone(whole):
        with pytest.raises(ValueError, match=r"nothing says which fields .*out_type=.*layer="):
            equivariance_error(OnTensors(whole), 8, angles=[17.0], shifts=[(1, 1)])
        equivariance_error(whole, 8, angles=[], shifts=[(1, 1)])


@pytest.mark.usefixtures("float64_default")
def test_noise_is_the_same_whatever_the_defaults_of_torch() -> None:
    image = small.field_type("C4", "trivial")
    layer = build(image, image, padding=1, relax={"rotation": 0.2}).float()
    transformations = {"angles": [17.0], "shifts": [(1, 0)]}
    report = equivariance_error(layer, 16, **transformations)
    with torch.device("meta"):
        assert equivariance_error(layer, 16, **transformations) == report
    torch.set_default_dtype(torch.float32)
    assert equivariance_error(layer, 16, **transformations) == report


class Pair(nn.Module):
    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        return images, images


def test_a_tensor_is_picked_of_what_a_network_returns() -> None:
    trivial = small.field_type("C4", "trivial")
    place = {"input_size": 5, "in_type": trivial, "out_type": trivial}
    report = equivariance_error(Pair(), **place, output=lambda answer: answer[1])
    assert [(row.kind, row.error) for row in report.rows] == [("exact", 0.0)] * 3
    inside = nn.Sequential(nn.Identity(), Pair())
    assert equivariance_error(inside, **place, layer="1", output=lambda answer: answer[1]).rows == report.rows


# Several inputs: images turn, fields beside them turn with them, the rest stays.
SIDE = 7
GSPACE = gspaces.rot2dOnR2(4)
IMAGE, VECTOR = (enn.FieldType(GSPACE, [field]) for field in (GSPACE.trivial_repr, GSPACE.irrep(1)))
SCORES = enn.FieldType(GSPACE, [GSPACE.trivial_repr] * 2)


class Critic(nn.Module):
    """Scores of an image and an action, a vector over one pixel that is laid over all."""

    def __init__(self, relax: dict[str, float] | None = None) -> None:
        super().__init__()
        self.first = build(IMAGE + VECTOR, SCORES, 3, padding=1, relax=relax, initial_softness=0.1)
        self.last = enn.ReLU(SCORES)
        self.eval()

    def forward(self, images: Tensor, action: enn.GeometricTensor | Tensor, scale: float = 1.0) -> Tensor:
        arrows = action.tensor if isinstance(action, enn.GeometricTensor) else action
        laid = torch.cat([images, arrows.expand(-1, -1, *images.shape[2:])], dim=1)
        scores: Tensor = scale * self.last(self.first((IMAGE + VECTOR)(laid))).tensor.mean((2, 3))
        return scores


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def errors(module: nn.Module, data: tuple[object, ...], **options: object) -> list[float]:
    return [row.error for row in equivariance_error(module, data=data, in_type=IMAGE, **options).exact]


def test_a_field_beside_the_images_turns_and_a_plain_action_stays() -> None:
    images, action = drawn(3, 1, SIDE, SIDE), drawn(3, 2, 1, 1)
    assert_equivariant(Critic(), data=(images, VECTOR(action), 2.0), in_type=IMAGE, atol=ROUNDING)
    assert min(errors(Critic(), (images, action))) > 1e-3
    soft = Critic({"rotation": 0.3})
    found = errors(soft, (images, VECTOR(action)))
    with torch.no_grad():
        before = soft(images, action)
        for turns, error in enumerate(found, start=1):
            angle = turns * math.pi / 2
            matrix = [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]
            turned = torch.einsum("oc,bcij->boij", torch.tensor(matrix, dtype=torch.float64), action)
            after = soft(images.rot90(turns, (2, 3)), turned)
            assert error == pytest.approx(((after - before).norm() / before.norm()).item(), rel=1e-9)
            assert error > 1e-3
    said = r"the fields of the input are of C4_on_R2.*, which holds no rotation 45°: .* rotation 0° and rotation 90°;"
    with pytest.raises(ValueError, match=said):
        errors(soft, (images, VECTOR(action)), angles=[45])


class TwoImages(nn.Module):
    """A convolution of two plain images side by side."""

    def __init__(self, padding_mode: str) -> None:
        super().__init__()
        layer = build(IMAGE + IMAGE, SCORES, 3, padding=1, relax=None, padding_mode=padding_mode)
        self.body = enn.SequentialModule(layer, enn.ReLU(SCORES)).eval()

    def forward(self, images: Tensor, depth: Tensor) -> enn.GeometricTensor:
        return self.body(self.body.in_type(torch.cat([images, depth], dim=1)))


@pytest.mark.parametrize("padding_mode", ["zeros", "circular"])
def test_plain_images_are_measured_as_channels_of_one(padding_mode: str) -> None:
    """Every row: exact, interpolated and shifted."""
    module, images, depth = TwoImages(padding_mode), drawn(3, 1, SIDE, SIDE + 2), drawn(3, 1, SIDE, SIDE + 2).flip(2)
    options = {"elements": None, "angles": [30], "shifts": [(1, -2)]}
    pair = equivariance_error(module, data=(images, depth), in_type=IMAGE, **options)
    assert pair == equivariance_error(module.body, data=torch.cat([images, depth], dim=1), **options)
    assert [row.kind for row in pair.rows] == 3 * ["exact"] + ["interpolated", "exact"]
    assert max(row.error for row in pair.exact) <= ROUNDING


# Arguments beside a layer of C4, or a module in its place and a size.
LAYER = soft_regular_layer()
PLAIN = OnTensors(LAYER)
PLAIN.unused = nn.Identity()
DIFFERENT_SIZES = (drawn(1, 1, SIDE, SIDE), VECTOR(drawn(1, 2, 3, 3)))
BAD: list[tuple[dict[str, Any], str]] = [
    ({}, "input_size or data, one of them"),
    ({"data": torch.zeros(1, 3, 5, 5)}, r"data must be \(batch, 4, H, W\)"),
    ({"input_size": 5, "layer": "body"}, "layer must be .* got 'body'; there are"),
    ({"module": PLAIN, "input_size": 5, "layer": "unused"}, "layer: 'unused' is not called"),
    ({"module": PLAIN, "input_size": 5}, "out_type: the output is a plain"),
    (
        {"module": Pair(), "input_size": 5, "in_type": LAYER.in_type},
        "the network returns a tuple: pick a tensor of it by",
    ),
    ({"input_size": 5, "output": lambda answer: ""}, "output: .* output gives a str$"),
    ({"input_size": 5, "elements": [small.gspace("C8").fibergroup.element(1)]}, "elements must be of C4"),
    ({"input_size": 5, "angles": [17.19]}, "fields of the input are of .* which holds no rotation 17.19°"),
    ({"input_size": 5, "shifts": [(0, 5)]}, r"smaller than the image, \(5, 5\)"),
    ({"input_size": 5, "elements": ()}, "nothing to measure: .* angles or shifts"),
    ({"module": Critic(), "data": (2.0, drawn(1, 1, 7, 7)), "in_type": IMAGE}, "data must be .*, got float"),
    (
        {"module": Critic(), "data": DIFFERENT_SIZES, "in_type": IMAGE},
        r"data\[1\] must have \(7, 7\) .* data\[0\] has, or",
    ),
]


@pytest.mark.parametrize(("given", "message"), BAD)
def test_bad_arguments_are_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        equivariance_error(**{"module": LAYER, **given})

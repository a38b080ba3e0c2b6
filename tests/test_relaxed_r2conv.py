"""RelaxedR2Conv as a module: in the place of R2Conv, state, modes, shapes, random offsets."""

from __future__ import annotations

import copy
import inspect

import battery
import pytest
import torch
from escnn.nn import EquivariantModule, FieldType, GeometricTensor, R2Conv
from layers import SOFT_PARTS, build, options_of, shake
from tolerances import ROUNDING
from transformations import relative_error

from escnn_relaxed import RelaxedR2Conv

EVERY_KERNEL = pytest.mark.parametrize("soft_part", SOFT_PARTS)
SOFT = {
    "strict": None,
    "default": "default",
    "soft rotation": {"rotation": 0.2},
    "soft translation": {"rotation": 0.2, "translation": (0.2, 0.4)},
}
EVERY_SOFTNESS = pytest.mark.parametrize("relax", SOFT.values(), ids=SOFT.keys())


def small_types() -> tuple[FieldType, FieldType]:
    return battery.types("C4", "regular + irreps -> irreps + regular")


def answer(layer: EquivariantModule, features: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return layer(layer.in_type(features)).tensor


def test_arguments_of_r2conv_come_first_in_its_order() -> None:
    expected = list(inspect.signature(R2Conv.__init__).parameters.values())
    found = list(inspect.signature(RelaxedR2Conv.__init__).parameters.values())
    assert [p.name for p in found[: len(expected)]] == [p.name for p in expected]
    assert [p.default for p in found[: len(expected)]] == [p.default for p in expected]
    assert all(p.kind is inspect.Parameter.KEYWORD_ONLY for p in found[len(expected) :])


GEOMETRIES = {
    "plain": {},
    "padding": {"padding": 1},
    "stride": {"padding": 1, "stride": 2},
    "dilation": {"padding": 2, "dilation": 2},
    "reflect": {"padding": 2, "padding_mode": "reflect"},
    "replicate": {"padding": 1, "padding_mode": "replicate"},
    "circular": {"padding": 2, "padding_mode": "circular", "stride": 3},
    "groups": {"groups": 2, "padding": 1},
    "no bias": {"bias": False},
    "kernel 4": {"kernel_size": 4, "padding": 1},
}


@EVERY_KERNEL
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_arguments_of_the_convolution_mean_what_they_mean_in_r2conv(geometry: str, soft_part: str) -> None:
    """R2Conv with the layer's filter bank and bias in its place gives the same answer."""
    in_type, out_type = battery.types("C4", "regular + regular -> trivial + irreps + trivial + irreps")
    arguments = {"kernel_size": 3, **GEOMETRIES[geometry]}
    layer = RelaxedR2Conv(in_type, out_type, relax={"rotation": 0.2}, **options_of(soft_part), **arguments)
    shake(layer)
    convolution = R2Conv(in_type, out_type, **arguments).eval()
    features = battery.random_input(in_type, 7, 8, dtype=torch.float32)
    with torch.no_grad():
        convolution.filter, bias = layer.expand_parameters()
        assert (bias is None) == (convolution.bias is None)
        convolution.expanded_bias = bias
        expected = convolution(in_type(features)).tensor
    assert torch.equal(answer(layer, features), expected)
    assert layer.evaluate_output_shape(tuple(features.shape)) == tuple(expected.shape)


@pytest.mark.usefixtures("uncalibrated")
@EVERY_KERNEL
@EVERY_SOFTNESS
@pytest.mark.parametrize(("kernel_size", "padding"), [(1, 0), (2, (1, 2)), (3, 0)])
def test_output_shape_is_evaluated_without_evaluating(kernel_size, padding, relax, soft_part) -> None:
    in_type, out_type = small_types()
    layer = RelaxedR2Conv(in_type, out_type, kernel_size, padding, stride=2, relax=relax, **options_of(soft_part))
    features = battery.random_input(in_type, 5, 8, dtype=torch.float32)
    output = layer(in_type(features))
    assert isinstance(output, GeometricTensor)
    assert output.type == out_type
    assert layer.evaluate_output_shape(features.shape) == tuple(output.shape)


@pytest.mark.usefixtures("uncalibrated")
@EVERY_KERNEL
@EVERY_SOFTNESS
def test_state_has_the_same_keys_in_both_modes_and_loads_into_another_draw(relax, soft_part: str) -> None:
    in_type, out_type = small_types()
    features = battery.random_input(in_type, 4, 4, dtype=torch.float32)
    arguments = {"kernel_size": 3, "relax": relax, "initial_softness": 0.3, **options_of(soft_part)}
    layer = RelaxedR2Conv(in_type, out_type, **arguments)
    shake(layer)
    trained = layer.train().state_dict()
    answer(layer, features)
    evaluated = layer.eval().state_dict()
    assert trained.keys() == evaluated.keys()
    assert all(torch.equal(trained[key], evaluated[key]) for key in trained)
    torch.manual_seed(1)
    other = RelaxedR2Conv(in_type, out_type, **arguments)
    assert not torch.allclose(answer(other, features), answer(layer, features))
    other.load_state_dict(trained)
    assert torch.equal(answer(other, features), answer(layer, features))
    assert torch.equal(answer(other.eval(), features), answer(layer.train(), features))


@pytest.mark.parametrize(
    ("space", "pair"), [("D4", "irreps -> irreps"), ("O(2)", "band-limited -> irreps"), ("C8", "induced -> quotient")]
)
@pytest.mark.parametrize("kernel_size", [1, 3])
def test_state_has_the_same_shapes_whatever_the_seed(space: str, pair: str, kernel_size: int) -> None:
    shapes = []
    for seed in range(3):
        torch.manual_seed(seed)
        relax = battery.subgroups(space, 0.2)
        layer = RelaxedR2Conv(*battery.types(space, pair), kernel_size, relax=relax, strict_kernel="continuous")
        shapes.append({name: value.shape for name, value in layer.state_dict().items()})
    assert all(shape == shapes[0] for shape in shapes)


@EVERY_KERNEL
def test_filter_bank_is_never_stale_in_evaluation(soft_part: str) -> None:
    """R2Conv keeps its filter in evaluation, whatever becomes of its weights."""
    in_type, out_type = small_types()
    layer = RelaxedR2Conv(in_type, out_type, 3, relax={"rotation": 0.2}, **options_of(soft_part)).eval()
    features = battery.random_input(in_type, 4, 4, dtype=torch.float32)
    before = answer(layer, features)
    shake(layer)
    changed = answer(layer, features)
    assert not torch.allclose(before, changed)
    layer.set_domain_frequency(rotation=0.0)
    assert not torch.allclose(answer(layer, features), changed)


@EVERY_KERNEL
@EVERY_SOFTNESS
def test_layer_can_be_copied_in_evaluation(relax, soft_part: str) -> None:
    """After eval(), R2Conv cannot."""
    in_type, out_type = small_types()
    layer = RelaxedR2Conv(in_type, out_type, 3, relax=relax, **options_of(soft_part)).eval()
    features = battery.random_input(in_type, 4, 4, dtype=torch.float32)
    expected = answer(layer, features)
    other = copy.deepcopy(layer)
    shake(layer)
    assert torch.equal(answer(other, features), expected)


def test_repr_says_types_arguments_and_softness() -> None:
    in_type, out_type = small_types()
    text = repr(RelaxedR2Conv(in_type, out_type, 3, padding=(1, 2), bias=False, relax={"rotation": 0.25}))
    for part in ("RelaxedR2Conv", str(in_type), str(out_type), "kernel_size=3", "padding=(1, 2)", "bias=False", "0.25"):
        assert part in text
    assert "stride=1" in text
    assert "dilation" not in text
    assert "strict" in repr(RelaxedR2Conv(in_type, out_type, 3, relax=None))


def test_default_softens_rotation_and_reflection_where_the_group_has_them() -> None:
    for space in battery.GSPACES:
        layer = RelaxedR2Conv(*battery.types(space, "trivial -> trivial"), 3)
        assert set(layer.domain_frequency) == set(battery.subgroups(space, 1.0))
        assert all((value > 0).all() for value in layer.domain_frequency.values())
        assert layer.is_stationary


def test_domain_frequency_is_a_parameter_only_where_it_is_learned() -> None:
    in_type, out_type = small_types()
    relax = {"translation": (0.1, 0.2), "rotation": 0.2}
    for learn in (False, True):
        layer = RelaxedR2Conv(in_type, out_type, 3, relax=relax, learn_relaxation=learn)
        assert {name: value.tolist() for name, value in layer.domain_frequency.items()} == {
            "translation": pytest.approx([0.1, 0.2]),
            "rotation": pytest.approx([0.2]),
        }
        parameters = {id(parameter) for parameter in layer.parameters()}
        assert all((id(value) in parameters) == learn for value in layer.domain_frequency.values())
        saved = [name for name in layer.state_dict() if name.startswith("_domain_frequency.")]
        assert len(saved) == 2


def test_setting_the_frequency_keeps_the_same_tensor() -> None:
    """An optimiser that holds it must go on to change it."""
    in_type, out_type = small_types()
    layer = RelaxedR2Conv(in_type, out_type, 3, relax={"rotation": 0.2}, learn_relaxation=True)
    before = layer.domain_frequency["rotation"]
    layer.set_domain_frequency(rotation=0.1)
    assert layer.domain_frequency["rotation"] is before
    assert before.item() == pytest.approx(0.1)


def test_layer_soft_in_translation_has_no_filter_bank() -> None:
    in_type, out_type = small_types()
    layer = RelaxedR2Conv(in_type, out_type, 3, relax={"translation": 0.2})
    assert not layer.is_stationary
    with pytest.raises(RuntimeError, match="soft in translation and has several filter banks, see region_banks"):
        layer.filter_bank()


@EVERY_KERNEL
def test_layer_soft_in_translation_has_a_bank_for_each_region(soft_part: str) -> None:
    """Fewer on small outputs; of equal regions the mean is that of all pixels, the same for each size."""
    in_type, out_type = battery.types("C4", "regular + regular -> irreps + irreps")
    relax = {"translation": (0.3, 0.5)}
    layer = build(in_type, out_type, 3, groups=2, relax=relax, soft_part=soft_part, initial_softness=0.3)
    means = []
    with torch.no_grad():
        for side, regions in ((5, 1), (8, 2), (12, 3), (16, 4), (20, 4)):
            banks = layer.region_banks((side, 16))
            assert banks.shape == (regions, 4, out_type.size, in_type.size // 2, 3, 3)
            assert relative_error(banks[0], banks[-1]) > 1e-2 or regions == 1
            means.append(banks.mean(dim=(0, 1)))
        assert all(relative_error(mean, means[0]) <= ROUNDING for mean in means)
        layer.harden("translation")
        assert relative_error(layer.filter_bank(), means[0]) <= ROUNDING
    with pytest.raises(RuntimeError, match="region_banks: this layer has one filter bank, see filter_bank"):
        layer.region_banks((16, 16))


@EVERY_KERNEL
def test_layer_that_may_become_soft_in_translation_by_learning_is_not_stationary(soft_part: str) -> None:
    in_type, out_type = battery.types("C4", "trivial -> regular")
    relax = {"translation": 0.0}
    assert RelaxedR2Conv(in_type, out_type, 3, relax=relax, **options_of(soft_part)).is_stationary
    layer = build(in_type, out_type, relax=relax, learn_relaxation=True, initial_softness=0.3, soft_part=soft_part)
    assert not layer.is_stationary
    layer(in_type(battery.random_input(in_type, 10, 11))).tensor.square().sum().backward()
    assert (layer.domain_frequency["translation"].grad.abs() > 1e-3).all()  # rounding would be 1e-15


@EVERY_KERNEL
@pytest.mark.parametrize("form", ["stationary", "soft in translation"])
def test_empty_batch_and_single_image(form: str, soft_part: str) -> None:
    in_type, out_type = small_types()
    relax = {"rotation": 0.2} if form == "stationary" else {"translation": 0.2}
    layer = build(in_type, out_type, padding=1, relax=relax, soft_part=soft_part)
    features = battery.random_input(in_type, 8, 8, batch=3)
    whole = answer(layer, features)
    assert relative_error(answer(layer, features[1:2]), whole[1:2]) <= ROUNDING
    assert answer(layer, features[:0]).shape == (0, *whole.shape[1:])


def test_arguments_of_the_convolution_can_be_read_as_of_r2conv() -> None:
    types = battery.types("C4", "regular -> regular")
    arguments = {"padding": 2, "stride": 2, "dilation": 2, "padding_mode": "circular", "groups": 1}
    layer, convolution = RelaxedR2Conv(*types, 3, **arguments), R2Conv(*types, 3, **arguments)
    for name in ("kernel_size", "stride", "dilation", "padding_mode", "groups"):
        assert getattr(layer, name) == getattr(convolution, name)
    assert layer.padding == (2, 2)

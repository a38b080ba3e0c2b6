"""``layer.export()`` for every geometry, and what escnn's own forgets; the rest of it is in the battery."""

from __future__ import annotations

import battery
import pytest
import torch
from escnn.nn import R2Conv
from forms import EVERY_MODE
from layers import EVERY_KERNEL, EVERY_KIND, relaxation, shake, soft_layer
from reference import Layer
from tolerances import ROUNDING, SINGLE
from torch import nn
from transformations import answer_to, relative_error

from escnn_relaxed import RelaxedR2Conv, RelaxedR2ConvTransposed, export_network
from escnn_relaxed.integral.plain_layers import RegionConvolution

PAIR = "regular + regular -> irreps + regular + irreps + regular"
GEOMETRIES: dict[str, dict[str, object]] = {
    "plain": {},
    "reflect": {"padding": 2, "padding_mode": "reflect"},
    "replicate": {"padding": (1, 3), "padding_mode": "replicate"},
    "circular": {"padding": (2, 0), "padding_mode": "circular"},
    "padding pair": {"padding": (1, 2)},
    "stride": {"padding": 1, "stride": 2},
    "dilation": {"padding": 2, "dilation": 2},
    "groups": {"groups": 2, "padding": 1},
    "no bias": {"bias": False},
    "kernel 1": {"kernel_size": 1},
    "kernel 4": {"kernel_size": 4, "padding": 1, "padding_mode": "circular"},
    "all at once": {"kernel_size": 2, "padding": (1, 2), "padding_mode": "reflect", "stride": 2, "groups": 2},
}
TRANSPOSED: dict[str, dict[str, object]] = {
    "output padding": {"padding": (0, 1), "stride": 3, "output_padding": (2, 0), "kernel_size": 2},
    "everything": {"padding": (1, 2), "stride": 2, "output_padding": (1, 0), "dilation": 2, "groups": 2},
}


def error_of_export(layer: Layer | R2Conv, exported: nn.Module, *size: int) -> float:
    """Relative, in eval mode."""
    features = battery.random_input(layer.in_type, *size, dtype=next(layer.parameters()).dtype)
    expected, found = answer_to(layer.eval(), features), exported(features).detach()
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    return relative_error(found, expected)


@EVERY_KIND
@pytest.mark.parametrize("geometry", [*GEOMETRIES, *(f"transposed, {name}" for name in TRANSPOSED)])
def test_exported_layer_computes_the_same_whatever_the_convolution(geometry: str, kind: str) -> None:
    is_transposed = geometry.startswith("transposed, ")
    make = {"make": RelaxedR2ConvTransposed} if is_transposed else {}
    arguments = TRANSPOSED[geometry.removeprefix("transposed, ")] if is_transposed else GEOMETRIES[geometry]
    layer = soft_layer("C4", PAIR, **relaxation(kind, {"rotation": 0.2}), **make, **arguments)
    exported = layer.export()
    convolution = nn.ConvTranspose2d if is_transposed else nn.Conv2d
    assert type(exported) is (convolution if kind == "stationary" else RegionConvolution)
    # On images of other numbers of regions, and of regions that are no cells, too.
    for size in ((20, 17), (8, 13)):
        assert error_of_export(layer, exported, *size) <= ROUNDING
    assert error_of_export(layer.float(), layer.export(), 13, 12) <= SINGLE


@pytest.mark.parametrize("regions", [1, 3, 5, 7])
def test_regions_that_do_not_divide_the_image_are_exported(regions: int) -> None:
    layer = soft_layer("C4", "regular -> irreps", padding=1, relax={"translation": (0.2, 0.4)}, regions=regions)
    exported = layer.export()
    for size in ((16, 22), (7, 31), (28, 28)):
        assert error_of_export(layer, exported, *size) <= ROUNDING


@EVERY_KERNEL
@pytest.mark.parametrize("subgroups", [("rotation",), ("translation",), ()], ids=str)
def test_exported_layer_is_hardened_as_the_layer_is(subgroups: tuple[str, ...], soft_part: str) -> None:
    relax = {"rotation": 0.2, "translation": (0.3, 0.5)}
    layer = soft_layer("C4", "regular -> regular", relax=relax, regions=2, soft_part=soft_part)
    soft = layer.export()
    layer.harden(*subgroups)
    exported = layer.export()
    assert isinstance(exported, RegionConvolution if subgroups == ("rotation",) else nn.Conv2d)
    # Regions of an image that are no cells, of a layer that is not soft in translation any more.
    for size in ((10, 11), (13, 18)):
        assert error_of_export(layer, exported, *size) <= ROUNDING
    assert error_of_export(layer, soft, 10, 11) > 1e-2


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.filterwarnings("ignore:`torch.jit.* is deprecated:DeprecationWarning")
@EVERY_KIND
@pytest.mark.parametrize("make", [RelaxedR2Conv, RelaxedR2ConvTransposed])
def test_trace_in_evaluation_holds_the_filter_bank(make: type[Layer], kind: str) -> None:
    layer = soft_layer("C4", "regular -> irreps", make=make, **relaxation(kind, {"rotation": 0.2}), stride=2).eval()

    class OnTensors(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, features: torch.Tensor) -> torch.Tensor:
            return self.layer(layer.in_type(features)).tensor

    features = battery.random_input(layer.in_type, 17, 17)
    traced = torch.jit.trace(OnTensors(), features)
    nodes = [node.kind() for node in traced.inlined_graph.nodes()]
    assert nodes.count("aten::_convolution") == 1
    # One product, which expands the bias.
    assert nodes.count("aten::matmul") <= 1
    other = torch.randn_like(features)
    assert relative_error(traced(other).detach(), answer_to(layer, other)) <= ROUNDING
    program = torch.export.export(layer.export(), (features,)).module()
    assert relative_error(program(other).detach(), answer_to(layer, other)) <= ROUNDING


@pytest.mark.parametrize("geometry", [name for name in GEOMETRIES if name != "all at once"])
@EVERY_MODE
def test_r2conv_is_exported_with_its_padding_mode_and_in_memory_of_its_own(geometry: str, mode: str) -> None:
    layer = R2Conv(*battery.types("C4", PAIR), **{"kernel_size": 3, **GEOMETRIES[geometry]})
    shake(layer)
    layer.train(mode == "train")
    exported = export_network(layer)
    assert layer.training == (mode == "train")
    assert error_of_export(layer, exported, 7, 8) <= SINGLE
    with torch.no_grad():
        exported.weight.zero_()
    assert error_of_export(layer, export_network(layer), 7, 8) <= SINGLE


# escnn's own, for the table in the docs.


@pytest.mark.parametrize("geometry", ["reflect", "circular"])
def test_export_of_r2conv_itself_forgets_the_padding_mode_and_shares_memory(geometry: str) -> None:
    layer = R2Conv(*battery.types("C4", PAIR), 3, **GEOMETRIES[geometry])
    exported = layer.export()
    assert error_of_export(layer, exported, 7, 7) > 1e-2
    assert exported.weight.data_ptr() == layer.filter.data_ptr()


@pytest.mark.parametrize("kernel_size", [2, 3])
def test_padding_pairs_and_even_kernels_are_no_trouble(kernel_size: int) -> None:
    """R2Conv cannot evaluate the shape for a pair, and has no basis for a kernel of size 2."""
    types, shape = battery.types("C4", "regular -> irreps"), (1, 4, 7, 8)
    layer = RelaxedR2Conv(*types, kernel_size, padding=(1, 2), relax=None)
    assert tuple(layer.evaluate_output_shape(shape)) == tuple(layer.export()(torch.randn(shape)).shape)
    if kernel_size == 2:
        with pytest.raises(ValueError, match="basis for the steerable filter is empty"):
            R2Conv(*types, kernel_size)
    else:
        with pytest.raises(TypeError):
            R2Conv(*types, kernel_size, padding=(1, 2)).evaluate_output_shape(shape)

"""Layers that have no soft form stay as they are in a network that is relaxed, and the summary lists them."""

import warnings

import pytest
import small
import torch
from errors import SINGLE, relative_error
from escnn import gspaces
from escnn import nn as enn
from small_networks import C4, answer, network
from torch import nn

from escnn_relaxed import RelaxedR2Conv, RelaxedR3Conv, checks, harden_network, relax_network, relaxation_summary
from escnn_relaxed.network.relaxed_layers import NO_SOFT_FORM, own_modules

ICO = enn.FieldType(gspaces.icoOnR3(), [gspaces.icoOnR3().trivial_repr] * 2)


class Gain(nn.Module):
    """A user's module with a weight of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(()))


class Gains(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gains = nn.ParameterList([torch.ones(2)])
        self.inside = nn.Linear(2, 2)


def volumes() -> enn.SequentialModule:
    return enn.SequentialModule(
        enn.R3IcoConv(ICO, ICO, 3, padding=1), enn.R3Conv(ICO, ICO, 3), enn.R3IcoConvTransposed(ICO, ICO, 3)
    )


@pytest.mark.usefixtures("warnings_not_yet_given")
def test_others_are_relaxed_and_a_warning_names_what_is_left() -> None:
    trained = volumes()
    checks._warned.clear()
    message = "leaves layers that have no soft form as they are: 0, R3IcoConv; 2, R3IcoConvTransposed$"
    with pytest.warns(UserWarning, match=message) as caught:
        relaxed = relax_network(trained)
    assert [each.filename for each in caught if each.category is UserWarning] == [__file__]
    assert [type(module) for module in relaxed] == [enn.R3IcoConv, RelaxedR3Conv, enn.R3IcoConvTransposed]
    assert relative_error(answer(relaxed), answer(trained)) <= SINGLE
    # Once; and a user who picks layers has left them out.
    relax_network(trained)
    checks._warned.clear()
    relax_network(trained, lambda name, layer: True)
    with pytest.raises(ValueError, match=r"network has none of .* to relax"):
        relax_network(trained[0])
    lines = str(relaxation_summary(relaxed)).splitlines()
    assert lines[-2:] == ["strict R3IcoConv: 0", "strict R3IcoConvTransposed: 2"]
    assert relaxation_summary(relaxed).own == {}


@pytest.mark.usefixtures("warnings_not_yet_given")
def test_layer_of_unequal_strides_is_left_and_others_are_relaxed() -> None:
    trained = enn.SequentialModule(enn.R2Conv(C4, C4, 3), enn.R2Conv(C4, C4, 3, stride=(2, 1)))
    checks._warned.clear()
    with pytest.warns(UserWarning, match=r"as they are: 1, R2Conv \(its strides differ\)"):
        relaxed = relax_network(trained)
    assert [type(module) for module in relaxed] == [RelaxedR2Conv, enn.R2Conv]
    with pytest.raises(ValueError, match=r"^1: stride must be .* of equal ones, got \(2, 1\).*`where` can leave"):
        relax_network(trained, lambda name, layer: name == "1")


@pytest.mark.usefixtures("warnings_not_yet_given")
@pytest.mark.skipif(not any(kind.__name__ == "TensorProductModule" for kind in NO_SOFT_FORM), reason="an older escnn")
def test_tensor_products_and_own_modules_with_weights_are_listed() -> None:
    fields = small.field_type("C4", "two regular")
    checks._warned.clear()
    trained = nn.ModuleDict({"product": enn.TensorProductModule(fields, fields), "head": nn.Linear(2, 2)})
    trained.update({"conv": enn.R2Conv(fields, fields, 3), "gain": Gain(), "again": Gain(), "gains": Gains()})
    with pytest.warns(UserWarning, match="as they are: product, TensorProductModule"):
        relaxed = relax_network(trained)
    summary = relaxation_summary(relaxed)
    assert summary.strict == {"TensorProductModule": ("product",)}
    assert summary.own == {"Gain": ("gain", "again"), "Gains": ("gains",)}
    *_, product, gain, gains = str(summary).splitlines()
    assert product == "strict TensorProductModule: product"
    assert [gain, gains] == ["your own Gain: gain, again", "your own Gains: gains"]


def test_parts_of_layers_and_modules_of_torch_are_not_the_users() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        relaxed = relax_network(network())
    assert own_modules(nn.ModuleList([relaxed, nn.Conv2d(1, 1, 3), harden_network(relaxed)])) == {}
    assert own_modules(Gain()) == {"Gain": ("network",)}

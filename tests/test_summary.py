"""The table of a network's layers, and what is logged of them, say what the layers say."""

import pytest
import small
import torch
from escnn import nn as enn
from small import build, soft_regular_layer, volume_type
from small_networks import Network, OnTensors, network_of
from torch import nn

from escnn_relaxed import RelaxedR2Conv, RelaxedR3Conv, equivariance_error, relax_network, relaxation_summary
from escnn_relaxed.baselines import PartialR2Conv
from escnn_relaxed.measure import relaxation_scalars


@pytest.fixture
def network() -> nn.Module:
    fields = small.field_type("D4", "two regular")
    soft = build(fields, fields, relax={"rotation": 0.2, "translation": (0.1, 0.3)})
    return nn.ModuleDict({"strict": build(fields, fields, relax=None), "soft": soft})


def test_every_relaxed_layer_has_a_row_with_its_own_numbers(network: nn.Module) -> None:
    strict, soft = relaxation_summary(network).rows
    assert (strict.name, strict.domain_frequency, strict.softness) == ("strict", {}, {"all": 0})
    assert strict.error is None
    assert soft.domain_frequency == {name: tuple(v.tolist()) for name, v in network["soft"].domain_frequency.items()}
    of = network["soft"].softness
    expected = {"translation": of("translation"), "rotation": of("rotation"), "all": of()}
    assert soft.softness == {name: value.item() for name, value in expected.items()}


def test_the_table_has_a_row_a_layer(network: nn.Module) -> None:
    header, *lines, below = str(relaxation_summary(network)).splitlines()
    assert header.split()[:2] == ["layer", "fields"]
    assert [line.split()[0] for line in lines if line[0] != " "] == ["strict", "soft"]
    # Too wide for one line, the row of the soft layer has a line for each subgroup.
    assert "rotation 0.2" in lines[-2]
    strict, soft = (sum(p.numel() for p in network[name].parameters()) for name in ("strict", "soft"))
    more = sum(p.numel() for p in network["soft"].soft_parameters())
    assert all(text in lines[-3] for text in ("2 regular ->", "translation 0.1 0.3", f" {soft:,} "))
    assert f" {more:,} soft" in lines[-2]
    assert below.startswith(f"parameters: {strict + soft - more:,} strict, {more:,} soft (")
    network["again"] = network["soft"]  # shared parameters are there once
    shared = build(network["soft"].in_type, network["soft"].out_type, relax=None)
    network["shared"], shared.weights = shared, network["strict"].weights
    more_bias = shared.bias.numel()
    below = str(relaxation_summary(network)).splitlines()[-1]
    assert below.startswith(f"parameters: {strict + soft - more + more_bias:,} strict, {more:,} soft (")


def test_layer_in_which_nothing_can_be_soft_says_so() -> None:
    """Between trivial fields a 1×1 kernel has nothing to tie softness to; it has the parameters of ``R2Conv``."""
    trivial = small.field_type("C4", "trivial")
    layer = RelaxedR2Conv(trivial, trivial, 1)
    (row,) = relaxation_summary(layer).rows
    assert row.cannot_be_soft == ("rotation",)
    assert (row.parameters, row.soft_parameters) == (sum(p.numel() for p in layer.parameters()), 0)
    assert "cannot be soft" in str(relaxation_summary(layer))


def test_what_is_kept_and_what_was_hardened_is_shown_and_no_frequency_of_it() -> None:
    regular = small.types("D4", "regular -> regular")
    relax = ("rotation", "reflection")
    layers = [RelaxedR2Conv(*regular, 3, relax=relax, keep=keep) for keep in (None, "C2", None)]
    network = enn.SequentialModule(*layers)
    assert not {"keep", "hardened"} & {*str(relaxation_summary(network[0])).splitlines()[0].split()}
    layers[1].harden()
    layers[2].harden("rotation")
    soft, kept, partly = relaxation_summary(network).rows
    assert [(row.keep, row.hardened) for row in (soft, kept, partly)] == [
        ("", ()),
        ("C2", ("rotation", "reflection", "translation")),
        ("", ("rotation",)),
    ]
    assert [list(row.domain_frequency) for row in (soft, kept, partly)] == [[*relax], [], ["reflection"]]
    assert [list(row.softness) for row in (soft, kept, partly)] == [[*relax, "all"], ["all"], ["reflection", "all"]]
    text = str(relaxation_summary(nn.ModuleList(layers[1:])))
    header, first, second, _ = text.splitlines()
    at = {name: header.index(name) for name in ("ω′", "keep", "hardened")}
    assert [first[at[name] :].split()[0] for name in at] == ["strict", "C2", "all"]
    assert second[at["ω′"] :].split()[:2] == ["reflection", "0.25"]
    assert second[at["hardened"] :].split()[0] == "rotation"


def test_what_relaxed_a_hardened_layer_otherwise_is_not_shown() -> None:
    layer = PartialR2Conv(*small.types("C4", "regular -> regular"), 3)
    assert relaxation_summary(layer).rows[0].relaxed_by.startswith("narrowing")
    layer.harden()
    (row,) = relaxation_summary(layer).rows
    assert row.relaxed_by == ""
    assert "strict" in str(relaxation_summary(layer))


def test_measured_errors_are_those_of_the_network_up_to_each_layer() -> None:
    network = Network().eval()
    summary = relaxation_summary(network, data=network.features)
    assert [row.name for row in summary.rows] == ["first", "body.0", "body.3", "strict"]
    for row in summary.rows:
        report = equivariance_error(network, data=network.features, layer=row.name)
        assert row.error == max(each.error for each in report.exact)
    assert "error so far" in str(summary).splitlines()[0]


def test_lines_of_mixed_fields_and_of_long_names_fit_on_a_screen_above_what_is_strict() -> None:
    space = small.gspace("D4")
    mixed = enn.FieldType(space, [space.regular_repr, *space.irreps, space.quotient_repr((None, 2))] * 2)
    relax = {"rotation": 0.2222, "reflection": 0.1234, "translation": (0.3333, 0.1111)}
    layers = {"stem": enn.R2Conv(mixed, mixed, 3), "wide_block": RelaxedR2Conv(mixed, mixed, 3, relax=relax)}
    network = nn.ModuleDict({**layers, "up": enn.R2ConvTransposed(mixed, mixed, 3)})
    *table, stem, up = str(relaxation_summary(network)).splitlines()
    assert [stem, up] == ["strict R2Conv: stem", "strict R2ConvTransposed: up"]
    assert f"regular + {len(mixed) - 1} more" in table[1]
    assert max(map(len, table)) <= 100
    assert relaxation_summary(relax_network(network)).strict == {}


LAYER_TYPE = small.field_type("C4", "regular")


def logged_network() -> enn.SequentialModule:
    layers = soft_regular_layer(), soft_regular_layer(relax={"rotation": 0.1, "translation": (0.3, 0.2)})
    return network_of(*layers)


def images(count: int = 3) -> torch.Tensor:
    return small.random_input(LAYER_TYPE, 5, 5, batch=count)


def test_numbers_are_those_of_the_layers() -> None:
    net = logged_network()
    expected = {
        **{"domain_frequency/0/rotation": 0.2, "domain_frequency/2/rotation": 0.1},
        **{"domain_frequency/2/translation_x": 0.3, "domain_frequency/2/translation_y": 0.2},
        **{"frequency_energy/0": 0.04, "frequency_energy/2": 0.01 + 0.09 + 0.04, "frequency_energy/total": 0.18},
        "softness/0": net[0].softness().item(),
        "softness/2": net[2].softness().item(),
    }
    assert relaxation_scalars(net) == pytest.approx(expected, rel=1e-6)  # ω′ is drawn up in float32
    volumes = volume_type("octahedral")
    found = relaxation_scalars(RelaxedR3Conv(volumes, volumes, 3, relax={"translation": (0.3, 0.2, 0.1)}))
    axes = {tag: value for tag, value in found.items() if tag.startswith("domain_frequency")}
    tag = "domain_frequency/network/translation"
    assert axes == pytest.approx({f"{tag}_x": 0.3, f"{tag}_y": 0.2, f"{tag}_z": 0.1}, rel=1e-6)


def test_numbers_by_tag_are_those_of_the_summary() -> None:
    net, data = logged_network(), images()
    assert relaxation_summary(net).scalars() == relaxation_scalars(net)
    summary, logged = relaxation_summary(net, data=data), relaxation_scalars(net, data)
    assert logged == summary.scalars() | {"equivariance_error/network": logged["equivariance_error/network"]}
    assert [row.error for row in summary.rows] == [logged["equivariance_error/0"], logged["equivariance_error/2"]]
    layer = soft_regular_layer()
    assert relaxation_summary(layer, data=data).scalars() == relaxation_scalars(layer, data)


def test_network_whose_output_is_no_tensor_has_a_summary() -> None:
    class InADict(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = soft_regular_layer()

        def forward(self, features: enn.GeometricTensor) -> dict[str, enn.GeometricTensor]:
            return {"features": self.body(features)}

    data = images()
    (row,) = relaxation_summary(InADict(), data=LAYER_TYPE(data)).rows
    assert row.error is not None
    assert row.error > 0.01


@pytest.mark.parametrize("typed", [False, True], ids=["tensor", "GeometricTensor"])
def test_errors_are_the_largest_exact_ones_up_to_each_layer(typed: bool) -> None:
    net, data = logged_network(), images()
    found = relaxation_scalars(net, net.in_type(data) if typed else data, shifts=[(1, 0)])
    for name in ("0", "2"):
        rows = equivariance_error(net, data=data, layer=name, shifts=[(1, 0)]).exact
        assert found[f"equivariance_error/{name}"] == max(row.error for row in rows)
    assert found["equivariance_error/network"] == found["equivariance_error/2"]


def test_errors_are_logged_where_they_are_known_and_exact() -> None:
    def errors(module: nn.Module, data: torch.Tensor) -> set[str]:
        return {tag for tag in relaxation_scalars(module, data) if tag.startswith("equivariance_error")}

    # A layer alone is the network; a plain output has no fields; nothing is exact where the group is trivial.
    assert errors(soft_regular_layer(), images()) == {"equivariance_error/network"}
    assert errors(OnTensors(logged_network()), images()) == {
        "equivariance_error/fields.0",
        "equivariance_error/fields.2",
    }
    layer = soft_regular_layer(space="trivial", relax={"translation": 0.3})
    data = small.random_input(layer.in_type, 8, 8)
    assert errors(layer, data) == set()
    assert relaxation_scalars(layer, data, shifts=[(1, 1)])["equivariance_error/network"] > 0.01

"""``export_network``: whole networks as plain PyTorch, with the same numbers; a forward of their own stays."""

import io
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import small
import small_networks as networks
import torch
from errors import BROKEN, SINGLE, SINGLE_REORDERED, relative_error
from escnn import gspaces
from escnn import nn as enn
from escnn.nn import EquivariantModule, FieldType, GeometricTensor, R2Conv
from small_networks import C4, Block, OnTensors, settled
from small_networks import layer_to_export as soft_layer
from torch import Tensor, nn

from escnn_relaxed import RelaxedR2Conv, RelaxedR2ConvTransposed, export_network, harden_network

pytestmark = networks.WHAT_EXPORTERS_WARN_OF


def assert_same(network: nn.Module, exported: nn.Module) -> None:
    expected, found = networks.answers(network, exported)
    assert relative_error(found, expected) <= SINGLE


@networks.EVERY_MODE
def test_network_that_mixes_strict_and_soft_layers_is_exported_and_left_as_it_was(mode: str) -> None:
    network = settled(networks.mixed_network()).train(mode == "train")
    network[1][0].train(mode != "train")
    with networks.left_alone(network, but="filter"):  # which R2Conv builds when the mode changes
        exported = export_network(network)
    assert not any(module.training or isinstance(module, EquivariantModule) for module in exported.modules())
    assert not {t.data_ptr() for t in networks.tensors_of(network)} & {
        t.data_ptr() for t in networks.tensors_of(exported)
    }
    assert_same(network, exported)
    assert [name for name, _ in exported.named_children()] == [name for name, _ in network.named_children()]


def test_export_of_a_sequential_module_itself_takes_our_layers_too() -> None:
    """escnn's own container calls each module's ``export()``."""
    network = settled(enn.SequentialModule(soft_layer(C4), enn.ReLU(C4), soft_layer(C4, soft_translation=True)))
    assert_same(network, network.export())


class Leave(nn.Module):
    def forward(self, features: Tensor | GeometricTensor) -> Tensor:
        return getattr(features, "tensor", features).mean((2, 3))


def doubled(module: nn.Module, *inputs: object) -> object:
    return inputs[-1] * 2.0 if len(inputs) > 1 else None


@networks.EVERY_MODE
def test_plain_modules_behind_the_fields_are_copied_with_their_hooks(mode: str) -> None:
    head = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 5), nn.Dropout(0.5))
    head[1].register_forward_hook(doubled)
    network = settled(nn.Sequential(enn.SequentialModule(soft_layer(C4), enn.GroupPooling(C4)), Leave(), head))
    network.in_type = C4
    network.train(mode == "train")
    exported = export_network(network)
    assert_same(network, exported)
    assert not any(module.training for module in exported.modules())
    assert head.training == (mode == "train")
    with torch.no_grad():
        head[1].weight.zero_()
    _, again = networks.answers(network, exported)
    assert not torch.allclose(again, again[:1].expand_as(again))


def test_module_that_appears_twice_is_applied_twice_and_stays_one() -> None:
    shared = soft_layer(C4)
    network = enn.SequentialModule(shared, enn.ReLU(C4), shared)
    exported = export_network(network)
    assert len(exported) == 3
    assert exported[0] is exported[2]
    assert_same(network, exported)


REGISTER = ("register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook")
PLACES = {
    "network": lambda network: network,
    "1.2": lambda network: network[1][2],
    "3": lambda network: network[3],
    "1.0.batch_norm_[4]": lambda network: network[1][0].get_submodule("batch_norm_[4]"),
}


@pytest.mark.parametrize(("place", "register"), [(place, REGISTER[n % 3]) for n, place in enumerate(PLACES)])
def test_hooks_that_would_be_lost_are_refused_by_name(place: str, register: str) -> None:
    network = settled(networks.mixed_network())
    handle = getattr(PLACES[place](network), register)(doubled)
    kind = register.removeprefix("register_").replace("full_", "")
    with pytest.raises(ValueError, match=rf"^{re.escape(place)} has {kind}s, which would be lost: remove them"):
        export_network(network)
    handle.remove()
    export_network(network)


def devices(module: nn.Module) -> set[str]:
    """Of every tensor in the attributes of modules, however deep in lists and dicts."""
    found: set[str] = set()
    # The float64 originals of constants, of which the buffers are made anew for each dtype, stay in main memory.
    originals = ("_masters", "_singles")
    waiting: list[object] = [v for part in module.modules() for k, v in vars(part).items() if k not in originals]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Tensor):
            found.add(value.device.type)
        elif isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, (list, tuple)):
            waiting += value
        elif not isinstance(value, nn.Module) and type(value).__module__.startswith("escnn_relaxed"):
            waiting.append(vars(value))
    return found


def test_every_tensor_of_what_is_exported_moves_with_it_and_indices_are_where_the_network_is() -> None:
    exported = export_network(settled(enn.SequentialModule(networks.mixed_network()[:-1], enn.NormPool(C4))))
    assert (devices(exported), devices(exported.to("meta"))) == ({"cpu"}, {"meta"})
    # A NormPool has no tensor that would say where.
    network = enn.SequentialModule(enn.InnerBatchNorm(C4), enn.NormPool(C4)).to("meta")
    assert devices(export_network(network)) == {"meta"}


def test_count_of_batches_is_exported() -> None:
    """On it the average rests where a batch norm without momentum goes on learning."""
    norm = enn.InnerBatchNorm(C4, momentum=None).train()
    for _ in range(3):
        norm(C4(torch.randn(2, C4.size, 4, 4)))
    (plain,) = export_network(enn.SequentialModule(norm))
    assert plain.num_batches_tracked == 3


NARROW = small.field_type("D4", "regular")
CIRCLE = gspaces.rot2dOnR2(-1, maximum_frequency=2)


def images(batch: int = 2, fields: FieldType = C4) -> Tensor:
    return small.random_input(fields, 8, 8, batch=batch, dtype=torch.float32)


def in_eval(network: nn.Module, features: Tensor) -> Tensor:
    with torch.no_grad():
        return network.eval()(features)


class Scaled(R2Conv):
    """A forward that is younger than what exports the layer."""

    def forward(self, features: GeometricTensor) -> GeometricTensor:
        return super().forward(features) * 2.0


class SequentialOfItsOwn(enn.SequentialModule):
    def forward(self, features: GeometricTensor) -> GeometricTensor:
        return features + super().forward(features)


WITHOUT_PLAIN_FORM = {
    "Scaled": lambda: Scaled(NARROW, NARROW, 3),
    "SequentialOfItsOwn": lambda: SequentialOfItsOwn(soft_layer(NARROW)),
    "InnerBatchNorm": lambda: enn.InnerBatchNorm(NARROW, track_running_stats=False),
    "IIDBatchNorm2d": lambda: enn.IIDBatchNorm2d(NARROW, track_running_stats=False),
    "GatedNonLinearity1": lambda: enn.GatedNonLinearity1(
        FieldType(CIRCLE, [CIRCLE.trivial_repr, CIRCLE.irrep(1)]), drop_gates=False
    ),
    "MultipleModule": lambda: enn.MultipleModule(
        NARROW + NARROW, ["one", "two"], [(Block(NARROW, NARROW), "one"), (enn.ELU(NARROW), "two")]
    ),
}


@pytest.mark.usefixtures("warnings_not_yet_given")
@pytest.mark.filterwarnings("default:export_network keeps the forward:UserWarning")
@pytest.mark.parametrize("name", WITHOUT_PLAIN_FORM)
def test_what_has_no_plain_form_stays_as_it_is_and_is_named(name: str) -> None:
    network = settled(OnTensors(WITHOUT_PLAIN_FORM[name]()))
    with pytest.warns(UserWarning, match=rf"keeps the forward of OnTensors, {name}, .*needs escnn"):
        exported = export_network(network)
    features = images(fields=network.fields.in_type)
    expected = in_eval(network, features)
    assert relative_error(in_eval(exported, features), expected) <= SINGLE
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
    assert relative_error(in_eval(exported, features), expected) <= SINGLE


class ByType(OnTensors):
    """Takes tensors and GeometricTensors, which it tells apart in a way that torch's FakeTensor escapes."""

    def forward(self, features: Tensor | GeometricTensor) -> Tensor:
        if type(features) is torch.Tensor:
            features = self.fields.in_type(features)
        return self.fields(features).tensor


@pytest.mark.skipif(torch.__version__.startswith("2.6."), reason="torch.export of 2.6 hands on plain tensors")
@pytest.mark.parametrize("is_exported", [False, True], ids=["of layers", "of plain parts"])
def test_network_that_asks_for_the_type_of_its_input_hears_of_it_in_torch_export(is_exported: bool) -> None:
    network = ByType(soft_layer(NARROW)).eval()
    program = export_network(network) if is_exported else network
    features = images(fields=NARROW)
    assert relative_error(in_eval(program, features), in_eval(network, features)) <= SINGLE
    with pytest.raises(
        TypeError, match=r"got FakeTensor; .* isinstance\(x, torch.Tensor\) is true while torch exports"
    ):
        torch.export.export(program, (features,))
    # Outside of torch.export the remedy is the usual one alone.
    with pytest.raises(TypeError, match=r"got Tensor; wrap a tensor with in_type\(tensor\)$"):
        program.fields(features)


@pytest.mark.parametrize("register", REGISTER[:2])
def test_hooks_of_what_keeps_its_forward_are_kept_and_others_refused(register: str) -> None:
    """Of a network, a block and a head; of fields their tensors are doubled."""
    fields = enn.SequentialModule(Block(NARROW, NARROW), enn.ELU(NARROW))
    network, features = settled(nn.Sequential(OnTensors(fields), nn.Conv2d(NARROW.size, 3, 1))), images(fields=NARROW)
    for kept in (network, fields[0], fields, network[1]):
        getattr(kept, register)(lambda module, inputs, output=None: (inputs[0] if output is None else output) * 2.0)
    exported = export_network(network)
    assert relative_error(in_eval(exported, features), in_eval(network, features)) <= SINGLE
    getattr(fields[0].conv, register)(doubled)
    with pytest.raises(ValueError, match=r"^0\.fields\.0\.conv has forward_(pre_)?hooks, which would be lost"):
        export_network(network)


class Levels(nn.Module):
    """Fields of several types, by name; a layer that appears twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = self.second = soft_layer(NARROW)
        self.pool = enn.GroupPooling(NARROW)

    def forward(self, features: Tensor) -> dict[str, GeometricTensor]:
        features = self.second(self.first(NARROW(features)))
        return {"fields": features, "pooled": self.pool(features)}


def test_network_that_returns_fields_by_name_is_exported_with_a_layer_that_appears_twice() -> None:
    network, features = settled(Levels()).eval(), images(5, NARROW)
    exported = export_network(network)
    assert exported.first is exported.second
    with torch.no_grad():
        expected, found = network(features), exported(features)
    for name, fields in expected.items():
        assert found[name].type == fields.type
        assert relative_error(found[name].tensor, fields.tensor) <= SINGLE


def test_shape_of_an_output_is_known_without_the_module() -> None:
    exported = export_network(OnTensors(soft_layer(NARROW, NARROW + NARROW, stride=2)))
    assert exported.fields.evaluate_output_shape((2, NARROW.size, 9, 9)) == (2, 2 * NARROW.size, 5, 5)


def in_translation(**arguments: object) -> RelaxedR2Conv:
    return soft_layer(C4, soft_translation=True, **{"padding": 0, **arguments})


FORMS: dict[str, Callable[[], EquivariantModule]] = {
    "stationary": lambda: soft_layer(C4, padding=0),
    "in translation": lambda: in_translation(padding=1, padding_mode="reflect"),
    "network": lambda: settled(networks.mixed_network()),
}


@torch.no_grad()
@pytest.mark.parametrize("form", FORMS)
def test_exported_module_is_a_trace_and_a_program_that_are_saved_and_loaded(form: str, tmp_path: Path) -> None:
    exported = export_network(FORMS[form]())
    torch.jit.save(torch.jit.trace(exported, images()), tmp_path / "trace.pt")
    program = torch.export.export(exported, (images(),), dynamic_shapes=({0: networks.BATCH},))
    torch.export.save(program, tmp_path / "program.pt2")
    for loaded in torch.jit.load(tmp_path / "trace.pt"), torch.export.load(tmp_path / "program.pt2").module():
        for batch in (1, 5):
            features = images(batch)
            assert relative_error(loaded(features), exported(features)) <= SINGLE


SIDES = [(8, 8), (5, 9), (12, 7), (6, 6)]


@pytest.mark.slow
@torch.no_grad()
def test_onnx_runtime_computes_the_same_for_images_of_any_size() -> None:
    """Factors at the pixels are made in the graph."""
    exported, sides = export_network(in_translation(padding=1, stride=2)), {2: torch.export.Dim.DYNAMIC}
    sides[3] = torch.export.Dim.DYNAMIC
    program = torch.onnx.export(exported, (images(),), dynamo=True, dynamic_shapes=(sides,), verbose=False)
    file = io.BytesIO()
    program.save(file)
    for size in SIDES:
        features = small.random_input(C4, *size, dtype=torch.float32)
        assert relative_error(networks.of_onnx_runtime(file, features), exported(features)) <= SINGLE_REORDERED


@pytest.mark.slow
@pytest.mark.parametrize("is_exported", [False, True], ids=["layer", "exported"])
def test_layer_soft_in_translation_is_not_compiled_for_each_size(is_exported: bool) -> None:
    torch.compiler.reset()
    layer = in_translation(padding=1)
    module = layer.export() if is_exported else OnTensors(layer)
    graphs = []

    def count(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., object]:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(module, fullgraph=True, backend=count)
    for size in SIDES:
        features = small.random_input(C4, *size, dtype=torch.float32)
        assert relative_error(compiled(features).detach(), module(features).detach()) <= SINGLE
    # One for the first size, and one for all others.
    assert len(graphs) <= 2


# Deprecated in favour of the other one, and in use.
@pytest.mark.filterwarnings("ignore:Constant folding:UserWarning")
@pytest.mark.parametrize("kind", [RelaxedR2Conv, RelaxedR2ConvTransposed])
@torch.no_grad()
def test_older_exporter_to_onnx_takes_layers_soft_in_translation(kind: type[RelaxedR2Conv]) -> None:
    layer = kind(C4, C4, 3, padding=1, relax={"translation": 0.25}, initial_softness=0.3)
    exported, features, file = layer.export(), torch.randn(1, C4.size, 7, 6), io.BytesIO()
    torch.onnx.export(exported, (features,), file, dynamo=False)
    assert relative_error(networks.of_onnx_runtime(file, features), exported(features)) <= SINGLE_REORDERED


LAYERS: dict[str, Callable[[], EquivariantModule]] = {
    "stationary": lambda: soft_layer(C4),
    "in translation": in_translation,
    "hardened": lambda: harden_network(soft_layer(C4)),
}


@pytest.mark.parametrize("layer", ["stationary", "in translation"])
def test_compiled_layer_sees_changes_in_evaluation(layer: str) -> None:
    torch.compiler.reset()
    module = OnTensors(LAYERS[layer]()).eval()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    features = images()
    with torch.no_grad():
        before = compiled(features)
        for parameter in module.parameters():
            parameter.mul_(1.5)
        assert relative_error(compiled(features), module(features)) <= SINGLE
        assert relative_error(compiled(features), before) > BROKEN


@pytest.mark.filterwarnings("ignore:.*(get_attr|does not reference):UserWarning")  # torch 2.6
@pytest.mark.parametrize("layer", LAYERS)
@torch.no_grad()
def test_layer_on_geometric_tensors_is_traced_and_a_graph_for_torch_export(layer: str) -> None:
    module = OnTensors(LAYERS[layer]()).eval()
    traced = torch.jit.trace(module, images())
    program = torch.export.export(module, (images(),), dynamic_shapes=({0: networks.BATCH},)).module()
    features = images(5)
    for found in traced(features), program(features):
        assert relative_error(found, module(features)) <= SINGLE

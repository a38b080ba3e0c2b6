"""Gates that did nothing without a word, that threads shared, and that the export of reference fields did not take."""

import copy
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
import small
import small_networks as forms
import torch
from errors import BROKEN, DECOMPOSED, ROUNDING, answer_to, relative_error
from escnn import nn as enn
from reference_networks import image_type, images, space_of, strict_network, with_values, with_vector
from small_networks import answer, features_of, layer_of
from torch import Tensor, nn

from escnn_relaxed import ReferenceField, RelaxedR2Conv, gate_softness, harden_network, relax_network
from escnn_relaxed.learning import annealed_gate
from escnn_relaxed.measure import softness_sweep
from escnn_relaxed.network import export_with_gate, write_gate

pytestmark = forms.WHAT_EXPORTERS_WARN_OF
GATES = (torch.tensor(0.3).double(), torch.tensor([0.0, 1.0, -0.5]).double())


def two_layers() -> Any:
    return forms.network_of(*[small.soft_regular_layer() for _ in range(2)])


# --- what did nothing without a word ----------------------------------------------------------------------------------


@pytest.mark.parametrize("gate", [0.0, 0.5, torch.rand(2, dtype=torch.float64)], ids=["0", "number", "each"])
def test_a_gate_is_not_written_under_any_gate(gate: Any) -> None:
    network = two_layers()
    before = copy.deepcopy(network.state_dict())
    with gate_softness(network, {"2": gate}), pytest.raises(RuntimeError, match=r"write_gate: a gate is on .* '2'"):
        write_gate(network, 0.5)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_a_gate_is_not_written_into_a_reference_field_under_a_gate() -> None:
    network = with_vector(strict_network("C8"))
    vector = network[0].reference.vector.detach().clone()
    with gate_softness(network, 0.0), pytest.raises(RuntimeError, match=r"a gate is on the softness of '0\.layer'"):
        write_gate(network, 0.5)
    assert torch.equal(network[0].reference.vector, vector)


def test_a_gate_on_what_nothing_is_soft_in_is_refused() -> None:
    layer = layer_of("soft")
    with pytest.raises(ValueError, match=r"soft in translation, got none: they are soft in rotation"):
        gate_softness(layer, 0.0, "translation")
    with pytest.raises(ValueError, match=r"soft in reflection or translation, got none"):
        gate_softness(layer, 0.0, "reflection", "translation")
    with pytest.raises(ValueError, match=r"gate must have names of relaxed layers, of \[''\], got an empty dict"):
        gate_softness(layer, {})
    network = forms.network_of(small.soft_regular_layer(), small.soft_regular_layer(relax={}))
    with pytest.raises(ValueError, match="gate must have the name of a layer that is soft in rotation, got none"):
        gate_softness(network, {"2": 0.5}, "rotation")
    assert network[0].gates == network[2].gates == layer.gates == ()
    hardened = harden_network(layer)
    with pytest.raises(ValueError, match="network must have a layer that is soft in rotation, got none: they are st"):
        gate_softness(hardened, 0.5, "rotation")
    # A gate on all that a network may be soft in does no harm to a strict one.
    with gate_softness(hardened, 0.5):
        assert torch.equal(answer(hardened), answer(harden_network(layer)))
    gate_softness(network, 0.5, "rotation").remove()


def test_a_sweep_over_what_nothing_is_soft_in_is_refused() -> None:
    space = small.gspace("C4")
    image, classes = (enn.FieldType(space, [space.trivial_repr] * count) for count in (1, 2))
    network, labels = RelaxedR2Conv(image, classes, 5), torch.arange(4) % 2
    with pytest.raises(ValueError, match="soft in translation, got none: they are soft in rotation"):
        softness_sweep(network, torch.randn(4, 1, 5, 5), labels, "translation")
    assert network.gates == ()


def test_a_handle_that_is_entered_again_sets_its_gate_anew() -> None:
    layer = layer_of("soft")
    whole = answer(layer)
    with gate_softness(layer, 0.5):
        expected = answer(layer)
    handle = gate_softness(layer, 0.5)
    for _ in range(2):
        with handle:
            assert len(layer.gates) == 1
            assert torch.equal(answer(layer), expected)
            with pytest.raises(RuntimeError, match="this handle is in a with block already"), handle:
                pass
            assert len(layer.gates) == 1
        assert layer.gates == ()
        assert torch.equal(answer(layer), whole)
        handle.remove()
    with handle, gate_softness(layer, 0.0):
        assert len(layer.gates) == 2


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_schedule_that_is_not_finite_is_refused(number: float) -> None:
    with pytest.raises(ValueError, match=f"schedule must return a finite number, got {number} at progress 0.5"):
        annealed_gate(0.5, lambda progress: number)


# --- weights that layers share ----------------------------------------------------------------------------------------


def test_soft_weights_that_layers_share_are_scaled_once() -> None:
    network = two_layers()
    first, second = network[0], network[2]
    second.kernel = first.kernel
    second.weights = first.weights
    with gate_softness(network, 0.5):
        expected, softness = answer(network), [first.softness().item(), second.softness().item()]
    write_gate(network, 0.5)
    assert relative_error(answer(network), expected) <= DECOMPOSED
    assert [first.softness().item(), second.softness().item()] == pytest.approx(softness, rel=1e-9)


def test_layers_that_share_a_part_of_their_soft_weights_are_refused_and_stay() -> None:
    """The layer of both factors needs another one than the layer of rotation alone."""
    types = small.types("C4", "regular -> regular")
    both = RelaxedR2Conv(*types, 3, padding=1, relax=("rotation", "translation"), initial_softness=0.3).double()
    alone = RelaxedR2Conv(*types, 3, padding=1, relax="rotation", initial_softness=0.3).double()
    shared = next(weights for group in alone.weight_groups() for weights, _ in group.entries)
    (owner, name), *_ = [
        (module, name)
        for module in both.kernel.modules()
        for name, value in module.named_parameters(recurse=False)
        if value.shape == shared.shape
    ]
    setattr(owner, name, shared)
    network = nn.ModuleList([alone, both])
    before = copy.deepcopy(network.state_dict())
    with pytest.raises(ValueError, match="gate cannot be written into '0', which shares some soft weights"):
        write_gate(network, 0.3)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


# --- threads ----------------------------------------------------------------------------------------------------------


def in_threads(work: Callable[[Any], Any], values: Any) -> list[Any]:
    """What a function returns, or raises, in a thread for each value."""
    found: list[Any] = [None] * len(values)

    def run(number: int) -> None:
        try:
            found[number] = work(values[number])
        except Exception as error:
            found[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(values))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def answers(exported: nn.Module, features: Tensor, gates: Any) -> list[Tensor]:
    """With two threads, each of which waits for the other behind the first layer."""
    barrier = threading.Barrier(2, timeout=60)

    def wait(*_: Any) -> None:
        barrier.wait()

    with exported.network[0].register_forward_hook(wait):
        return in_threads(lambda gate: exported(features, gate), gates)


@pytest.mark.parametrize("make", [lambda e: e, copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))])
def test_threads_call_an_exported_network_with_gates_of_their_own(make: Callable[[nn.Module], nn.Module]) -> None:
    network, gates = two_layers(), GATES[0] * torch.tensor([0.0, 1.0])
    exported, features = make(export_with_gate(network)), features_of(network)
    expected = [exported(features, gate) for gate in gates]
    assert relative_error(*expected) > BROKEN
    for found, wanted in zip(answers(exported, features, gates), expected, strict=True):
        assert torch.equal(found, wanted)


def test_a_part_alone_says_that_no_call_is_there_and_a_call_in_a_call_has_its_own_gate() -> None:
    network = two_layers()
    exported, features = export_with_gate(network), features_of(network)
    with pytest.raises(RuntimeError, match="this thread is in no call"):
        exported.network[0](features)
    expected, inner = exported(features, GATES[0]), exported(features, GATES[0] * 0)
    calls: list[Tensor] = []

    def call(*_: Any) -> None:
        if not calls:
            calls.append(features)
            calls.append(exported(features, GATES[0] * 0))

    with exported.network[0].register_forward_hook(call):
        assert torch.equal(exported(features, GATES[0]), expected)
    assert torch.equal(calls[1], inner)


@pytest.mark.slow
def test_an_exported_network_compiles_once_whatever_its_gate() -> None:
    network = two_layers()
    exported, features = export_with_gate(network), features_of(network)
    compiled, graphs = torch.compile(exported, backend="eager", fullgraph=True), []
    for number in (0.1, 0.2, 0.3):
        gate = torch.tensor(number, dtype=torch.float64)
        assert torch.equal(compiled(features, gate), exported(features, gate))
        graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert graphs[0] == graphs[-1]


# --- reference fields that are exported -------------------------------------------------------------------------------


def field_before_a_layer(relax: Any, of_field: Any = "default") -> nn.Module:
    space = space_of("C8")
    field, hidden = ReferenceField(image_type(space), relax=of_field), space.type(space.regular_repr)
    layer = RelaxedR2Conv(field.out_type, hidden, 3, padding=1, relax=relax, initial_softness=0.2)
    return with_values(enn.SequentialModule(field, layer, enn.ReLU(hidden)).double())


def referenced_soft_network() -> nn.Module:
    network = relax_network(strict_network("C8"), relax="rotation", initial_softness=0.1, reference="input")
    return with_values(network.double())


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "before a strict layer": lambda: field_before_a_layer(None),
    "before a soft layer": lambda: field_before_a_layer(("rotation", "translation")),
    "that differs by position": lambda: field_before_a_layer(None, ("rotation", "translation")),
    "in a layer": lambda: with_vector(strict_network("C8")),
    "in a soft layer": referenced_soft_network,
    "in a layer of volumes": lambda: with_vector(strict_network("SO(3)")),
    "in a linear map": lambda: with_vector(strict_network("C8 features")),
}


@torch.no_grad()
@pytest.mark.parametrize("name", NETWORKS)
def test_a_reference_field_is_exported_with_a_gate(name: str) -> None:
    network = NETWORKS[name]().eval()
    features = images("C8 features" if "linear" in name else "SO(3)" if "volumes" in name else "C8")
    exported = export_with_gate(network)
    maps = torch.rand(3, 1, *[4] * max(features.dim() - 2, 2)).double()
    for gate in (*GATES, maps, maps[:1]):
        with gate_softness(network, gate):
            expected = answer_to(network, features)
        assert relative_error(exported(features, gate), expected) <= ROUNDING
    strict = exported(features, torch.tensor(0.0).double())
    assert relative_error(strict, exported(features, torch.tensor(1.0).double())) > BROKEN


@torch.no_grad()
def test_a_gate_on_a_subgroup_of_a_reference_field_is_exported_under_a_constant_one() -> None:
    network = NETWORKS["that differs by position"]().eval()
    with gate_softness(network, 0.7):
        exported = export_with_gate(network, "translation")
        with gate_softness(network, GATES[1], "translation"):
            expected = answer_to(network, images("C8"))
    assert relative_error(exported(images("C8"), GATES[1]), expected) <= ROUNDING


@torch.no_grad()
@pytest.mark.slow
def test_programs_and_traces_with_a_reference_field_take_other_gates_and_batches() -> None:
    exported, few = export_with_gate(NETWORKS["in a soft layer"]().eval()), images("C8", batch=2)
    arguments, shapes = (few, torch.rand(2).double()), ({0: forms.BATCH}, {0: forms.BATCH})
    program = torch.export.export(exported, arguments, dynamic_shapes=shapes).module()
    for module in (program, torch.jit.trace(exported, arguments)):
        assert relative_error(module(images("C8"), GATES[1]), exported(images("C8"), GATES[1])) <= ROUNDING

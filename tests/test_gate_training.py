"""Training under a gate: over processes, in half precision, through all of torch, and what it leaves behind."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import small
import small_networks as forms
import torch
from errors import BROKEN, ROUNDING, relative_error
from small_networks import answer, features_of, layer_of
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from two_processes import PROCESSES, in_two_processes

from escnn_relaxed import SoftnessEvidence, gate_softness
from escnn_relaxed.measure import symmetry_profile
from escnn_relaxed.network import gate as gates

FORMS = ("soft", "soft in translation", "soft, continuous", "linear")
A_FEW = pytest.mark.parametrize("form", FORMS)


class Gated(nn.Module):
    """A network on plain tensors whose gate a small network makes of a context."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.layer = layer_of(form)
        with torch.random.fork_rng():
            torch.manual_seed(1)
            self.gate = nn.Sequential(nn.Linear(3, 1), nn.Sigmoid()).double()

    def forward(self, features: Tensor, context: Tensor) -> Tensor:
        with gate_softness(self.layer, self.gate(context).squeeze(1)):
            found: Tensor = self.layer(self.layer.in_type(features)).tensor
        return found


def context_of(count: int) -> Tensor:
    return torch.linspace(-2, 2, 3 * count, dtype=torch.float64).view(count, 3)


def gradients_of(model: nn.Module, features: Tensor, context: Tensor) -> dict[str, Tensor]:
    """The gradient of every parameter for the mean square of the answer, with the answer itself."""
    model.zero_grad()
    output = model(features, context)
    output.square().mean().backward()
    found = {name.removeprefix("module."): value.grad.clone() for name, value in model.named_parameters()}
    return {"output": output.detach(), **found}


# --- over processes ---------------------------------------------------------------------------------------------------

BATCH = 4


def _train_a_part(rank: int, models: dict[str, nn.Module]) -> dict[str, list[dict[str, Tensor]]]:
    found = {}
    for form, shared in models.items():
        # torch sends tensors to processes as memory that they share.
        model: Any = copy.deepcopy(shared)
        inputs = [value.chunk(PROCESSES)[rank] for value in (features_of(model.layer, batch=BATCH), context_of(BATCH))]
        together = DistributedDataParallel(model)
        found[form] = [gradients_of(together, *inputs)]
        # A number from outside, as a schedule gives it, and the end of one.
        for number in (0.3, 0.0):
            with gate_softness(together, number):
                found[form].append(gradients_of(together, *inputs))
        assert model.layer.gates == ()
    return found


@pytest.fixture(scope="module")
def of_processes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, list[dict[str, Tensor]]]]:
    """Return what each process found: form → gradients without a gate from outside, with 0.3 and with 0."""
    models = {form: Gated(form) for form in FORMS}
    return in_two_processes(_train_a_part, tmp_path_factory.mktemp("distributed"), models)


@pytest.mark.slow
@A_FEW
def test_two_processes_have_the_gradients_of_one_with_the_joined_batch(form: str, of_processes: Any) -> None:
    model = Gated(form)
    inputs = features_of(model.layer, batch=BATCH), context_of(BATCH)
    for number, *parts in zip((1.0, 0.3, 0.0), *(found[form] for found in of_processes), strict=True):
        with gate_softness(model, number):
            expected = gradients_of(model, *inputs)
        outputs = torch.cat([part.pop("output") for part in parts])
        assert relative_error(outputs, expected.pop("output")) <= ROUNDING
        for name, gradient in expected.items():
            assert torch.equal(parts[0][name], parts[1][name])
            assert (parts[0][name] - gradient).norm() <= ROUNDING * max(1, gradient.norm())
            assert number == 0 or gradient.any(), name


# --- through torch ----------------------------------------------------------------------------------------------------


@A_FEW
def test_gradients_under_autocast_are_those_in_single_precision_rounded(form: str) -> None:
    model = Gated(form).float()
    inputs = features_of(model.layer, batch=BATCH), context_of(BATCH).float()
    expected = gradients_of(model, *inputs)
    with torch.autocast("cpu", torch.bfloat16):
        output = model(*inputs)
    assert output.dtype == torch.bfloat16
    model.zero_grad()
    output.float().square().mean().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.dtype == torch.float32
        # Products are rounded to 8 bits each, and the sums of those of a gate, of K − PK, cancel by a factor of 8.
        assert relative_error(parameter.grad, expected[name]) <= 2**-4, name


@A_FEW
def test_gradients_for_each_input_by_vmap_are_those_of_each_alone(form: str) -> None:
    model = Gated(form)
    features, context = features_of(model.layer, batch=3), context_of(3)
    parameters = {name: value.detach() for name, value in model.named_parameters()}

    def loss(parameters: dict[str, Tensor], features: Tensor, context: Tensor) -> Tensor:
        return functional_call(model, parameters, (features[None], context[None])).square().mean()

    found = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, features, context)
    for number in range(3):
        expected = gradients_of(model, features[number, None], context[number, None])
        for name, gradients in found.items():
            assert (gradients[number] - expected[name]).norm() <= ROUNDING * max(1, expected[name].norm()), name


@A_FEW
def test_a_checkpoint_around_the_block_makes_the_gate_again(form: str) -> None:
    model = Gated(form)
    inputs = features_of(model.layer, batch=BATCH), context_of(BATCH)
    expected = gradients_of(model, *inputs)
    found = gradients_of(Checkpointed(model), *inputs)
    for name, gradient in expected.items():
        key = name if name == "output" else f"model.{name}"
        assert (found[key] - gradient).norm() <= ROUNDING * max(1, gradient.norm()), name
    assert model.layer.gates == ()


class Checkpointed(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: Tensor) -> Tensor:
        found: Tensor = checkpoint(self.model, *inputs, use_reentrant=False)
        return found


@pytest.mark.skipif(torch.__version__.startswith("2.6."), reason="this compiler does not know all of a layer")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize("form", ["soft", "soft in translation"])
def test_numbers_of_a_schedule_as_tensors_compile_once(form: str) -> None:
    """A number changes in each epoch, by its value alone."""
    torch.compiler.reset()
    layer, graphs = layer_of(form), []

    def count(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., object]:
        graphs.append(graph)
        return graph.forward

    features = features_of(layer)
    compiled = torch.compile(lambda features: layer(layer.in_type(features)).tensor, backend=count, fullgraph=True)
    for number in (1.0, 0.7, 0.5, 0.0):
        with gate_softness(layer, torch.tensor(number, dtype=torch.float64)):
            assert relative_error(compiled(features).detach(), answer(layer, features)) <= ROUNDING
    assert len(graphs) == 1
    torch.compiler.reset()


@A_FEW
def test_programs_with_the_block_in_a_forward_take_any_batch(form: str) -> None:
    if form == "soft, continuous":
        pytest.skip("the kernel is drawn in training, and has no graph of its own")
    model = Gated(form).eval()
    batch = torch.export.Dim("batch")
    inputs = features_of(model.layer, batch=2), context_of(2)
    program = torch.export.export(model, inputs, dynamic_shapes=({0: batch}, {0: batch}), strict=False).module()
    more = features_of(model.layer, batch=5), context_of(5)
    with torch.no_grad():
        assert relative_error(program(*more), model(*more)) <= ROUNDING


# --- what is left behind, and what is refused -------------------------------------------------------------------------


@A_FEW
def test_states_are_those_without_a_gate_and_load_under_one(form: str) -> None:
    layer, other = layer_of(form), forms.another_draw(form)
    before = copy.deepcopy(layer.state_dict())
    gate = torch.rand(2, dtype=torch.float64, requires_grad=True)
    with gate_softness(layer, gate), gate_softness(other, 0.5):
        assert list(layer.state_dict()) == list(before)
        assert not any(value.data_ptr() == gate.data_ptr() for value in layer.state_dict().values())
        other.load_state_dict(layer.state_dict())
        assert len(other.gates) == 1
    assert torch.equal(answer(other), answer(layer))
    assert [*layer.parameters()] == [value for value in layer.parameters() if value is not gate]


def test_an_exception_in_a_layer_leaves_no_gate_anywhere() -> None:
    network = forms.network_of(*[small.soft_regular_layer() for _ in range(2)])
    before = answer(network)

    def fail(*_: object) -> None:
        raise RuntimeError("of the user")

    hook = network[2].register_forward_hook(fail)
    for gate in (0.5, torch.rand(2, dtype=torch.float64), {"0": 0.1, "2": 0.2}):
        with (
            pytest.raises(RuntimeError, match="of the user"),
            gate_softness(network, 0.5),
            gate_softness(network, gate),
        ):
            answer(network)
        assert network[0].gates == network[2].gates == ()
    hook.remove()
    assert torch.equal(answer(network), before)


def test_nested_gates_of_every_kind_multiply() -> None:
    layer = layer_of("soft")
    features, each = features_of(layer), torch.tensor([0.5, -2.0], dtype=torch.float64)
    maps = torch.rand(2, 1, 8, 8, dtype=torch.float64)
    with gate_softness(layer, each[:, None, None, None] * maps * 0.3):
        expected = answer(layer, features)
    with gate_softness(layer, 0.3), gate_softness(layer, each), gate_softness(layer, maps):
        assert relative_error(answer(layer, features), expected) <= ROUNDING
        with gate_softness(layer, torch.tensor(0.5, dtype=torch.float64)):
            assert relative_error(answer(layer, features), expected) > BROKEN


@pytest.mark.parametrize("gate", [0.5, torch.tensor([0.5, 0.2], dtype=torch.float64)], ids=["number", "each"])
def test_what_describes_the_weights_of_the_data_refuses_gates(gate: Any) -> None:
    """The evidence and the profile."""
    network = forms.network_of(*[small.soft_regular_layer() for _ in range(2)])
    evidence = SoftnessEvidence(network, 100)
    with gate_softness(network, {"2": gate}):
        for call in (
            lambda: SoftnessEvidence(network, 100),
            lambda: evidence.update(features_of(network, batch=10)),
        ):
            with pytest.raises(ValueError, match=r"network: a gate is on the softness of '2', .* remove it first"):
                call()
        with pytest.raises(RuntimeError, match="element_errors: a gate is on the softness"):
            symmetry_profile(network)


@pytest.mark.parametrize(
    ("gate", "error", "message"),
    [
        (-float("inf"), ValueError, "gate must be finite, got -inf"),
        (float("nan"), ValueError, "gate must be finite, got nan"),
        (1j, TypeError, "gate must be a number, got 1j"),
        ([0.5, 0.5], TypeError, r"gate must be a number, got \[0.5, 0.5\]"),
        (torch.tensor([True, False]), TypeError, "gate must be a floating-point tensor, got one of torch.bool"),
        (torch.ones(2, dtype=torch.complex64), TypeError, "floating-point tensor, got one of torch.complex64"),
        (torch.tensor(float("inf")), ValueError, r"gate must be finite, got a tensor of shape \(\) that is not"),
        ({"": 0.5}, ValueError, r"names of relaxed layers, of \['0', '2'\], got ''"),
        ({0: 0.5}, ValueError, r"names of relaxed layers, of \['0', '2'\], got 0"),
        (torch.tensor([0.5, float("inf")]), ValueError, r"gate must be finite, got a tensor of shape \(2,\)"),
        (torch.ones(2, 1), ValueError, r"with one channel, got a tensor of shape \(2, 1\)"),
        ({"0": torch.ones(2, 2)}, ValueError, r"with one channel, got a tensor of shape \(2, 2\)"),
        ({"0": {"2": 0.5}}, TypeError, "gate must be a number, got {'2': 0.5}"),
    ],
)
def test_more_gates_of_another_kind_are_refused(gate: Any, error: type[Exception], message: str) -> None:
    network = forms.network_of(*[small.soft_regular_layer() for _ in range(2)])
    with pytest.raises(error, match=message):
        gate_softness(network, gate)
    assert network[0].gates == network[2].gates == ()


@pytest.mark.parametrize("form", ["soft", "linear"])
def test_a_gate_on_another_device_is_refused_by_the_call(form: str) -> None:
    layer = layer_of(form)
    for shape in ((2,), (2, 1, 8, 8)):
        message = "gate must be on the device of the features, cpu, got one on meta"
        with gate_softness(layer, torch.rand(shape, device="meta")), pytest.raises(ValueError, match=message):
            answer(layer)
    assert layer.gates == ()


def test_gates_for_fewer_inputs_are_refused_and_one_in_a_batch_is_for_all() -> None:
    layer = layer_of("soft")
    features = features_of(layer, batch=3)
    with gate_softness(layer, torch.rand(2)), pytest.raises(ValueError, match="one for each of the 3 inputs"):
        answer(layer, features)
    for shape in ((1,), (1, 1, 8, 8)):
        gate = torch.rand(shape, dtype=torch.float64)
        with gate_softness(layer, gate):
            found = answer(layer, features)
        with gate_softness(layer, gate.expand(3, *shape[1:])):
            assert relative_error(found, answer(layer, features)) <= ROUNDING


def test_gates_on_an_accelerator_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading a value waits for the device."""
    layer, gate = layer_of("soft"), torch.tensor([float("nan"), 0.5])
    monkeypatch.setattr(gates, "reads_without_waiting", lambda *tensors: False)
    gate_softness(layer, gate).remove()
    assert layer.gates == ()


def test_copies_of_what_a_network_made_share_no_memory_with_it() -> None:
    layer = layer_of("soft")
    gate = torch.rand(2, dtype=torch.float64, requires_grad=True) * 1
    with gate_softness(layer, gate):
        other = copy.deepcopy(layer)
    assert other.gates[0].value.data_ptr() != gate.data_ptr()
    assert torch.equal(other.gates[0].value, gate)

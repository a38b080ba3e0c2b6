"""Networks that still learn are to train longer, in place of softness that helps."""

from collections.abc import Callable

import pytest
import small
import torch
from torch import Tensor, nn

from escnn_relaxed import RelaxedR2Conv
from escnn_relaxed.learning import TrainingTrials, which_softness_helps
from escnn_relaxed.measure import PoseReport, PoseRow


class Learner(nn.Module):
    """A network that counts its trainings."""

    def __init__(self, relax: str = "rotation") -> None:
        super().__init__()
        names = ("rotation", "reflection") if relax == "both" else relax
        image = small.field_type("D4", "trivial")
        self.layer = RelaxedR2Conv(image, image, 3, relax=names)
        self.register_buffer("trainings", torch.zeros(()))


def train(network: nn.Module) -> None:
    assert network.training
    network.trainings += 1
    network.eval()


def trials_of(curve: Callable[[Learner], float], relax: str = "rotation", noise: float = 0.0) -> TrainingTrials:
    """Trials with a loss of each of a hundred inputs that depends on the trainings and on what is strict."""

    def losses(network: nn.Module) -> Tensor:
        signs = torch.tensor([-1.0, 1.0]).repeat(50)
        return curve(network) + noise * signs * network.trainings

    return which_softness_helps(Learner(relax), train, losses)


@pytest.mark.parametrize(
    ("strict", "soft", "verdict"),
    [
        # The losses of the copies after one training and after another.
        ((1.2, 1.2), (1.0, 1.0), "helps"),
        ((1.2, 1.0), (1.0, 1.0), "train longer"),  # the strict one is late
        ((1.2, 1.0), (1.0, 0.8), "train longer"),  # both learn
        ((1.2, 1.2), (1.0, 0.8), "train longer"),  # what the soft one still learns is as much as the rise
        ((1.2, 1.15), (1.0, 0.99), "helps"),  # the falls are small beside the rise
        ((1.2, 1.5), (1.0, 1.3), "helps"),  # a loss that grows, as where the images are learned by heart
        ((1.0, 0.5), (1.0, 0.5), "not needed"),
    ],
)
def test_softness_helps_where_the_losses_have_settled(
    strict: tuple[float, float], soft: tuple[float, float], verdict: str
) -> None:
    found = trials_of(lambda network: (strict if network.layer.hardened else soft)[int(network.trainings) - 1])
    (row,) = found.rows
    assert (row.verdict, row.cells()[-1]) == (verdict, verdict)
    assert (row.helps, row.still_falls) == (verdict == "helps", verdict == "train longer")
    assert found.helps == {"rotation": {"helps": True, "not needed": False, "train longer": None}[verdict]}
    assert found.trainings == (2 if verdict == "not needed" else 4)
    assert found.network.layer.hardened == (("rotation",) if verdict == "not needed" else ())
    # The copy that is kept was trained once, as it was compared.
    assert found.network.trainings == 1


def test_a_fall_within_its_error_is_none() -> None:
    """Losses of the second training differ from those of the first by ± 2.5: an error of 0.25."""
    found = [
        trials_of(
            lambda network, fall=fall: 1.2 + 0.25 * bool(network.layer.hardened) - fall * network.trainings, noise=2.5
        )
        for fall in (0.24, 0.9)
    ]
    assert [trials.rows[0].verdict for trials in found] == ["helps", "train longer"]


def test_each_subgroup_has_its_verdict_in_all_its_rows() -> None:
    def curve(network: Learner) -> float:
        hardened = network.layer.hardened
        late = 0.5 if "reflection" in hardened and network.trainings == 1 else 0.0
        return 1 + late + ("rotation" in hardened)

    found = trials_of(curve, "both")
    assert found.helps == {"rotation": True, "reflection": None}
    assert [row.verdict for row in found.rows] == ["helps", "train longer"]
    assert found.trainings == 6

    found = trials_of(lambda network: curve(network) - ("rotation" in network.layer.hardened), "both")
    assert found.helps == {"rotation": False, "reflection": None}
    assert [(row.subgroup, row.verdict) for row in found.rows] == [
        ("rotation", "not needed"),
        ("reflection", "train longer"),
        ("reflection", "train longer"),
    ]
    assert found.network.layer.hardened == ("rotation",)
    verdicts = PoseReport((PoseRow("reflection", 0.5, 0.1, True),)).verdicts(found.helps)
    assert verdicts == {"reflection": "train longer: the network still learns"}


def test_a_real_network_that_still_learns_is_to_train_longer() -> None:
    """Targets with a way up, so that the last verdict is right; a few steps cannot show it."""
    torch.manual_seed(1)
    image = small.field_type("C4", "trivial")
    layer = RelaxedR2Conv(image, image, 5, initial_softness=1e-6)
    images = torch.randn(600, 1, 5, 5)
    targets = images[:, 0, :2].mean((1, 2))

    def losses(network: nn.Module, first: int = 300, last: int = 600) -> Tensor:
        return (network(image(images[first:last])).tensor.flatten() - targets[first:last]).square()

    def train_for(steps: int) -> Callable[[nn.Module], None]:
        def train(network: nn.Module) -> None:
            optimiser = torch.optim.Adam(network.parameters(), 0.05)
            for _ in range(steps):
                optimiser.zero_grad()
                losses(network, 0, 300).mean().backward()
                optimiser.step()

        return train

    trials = [which_softness_helps(layer, train_for(steps), losses) for steps in (25, 300)]
    assert [each.helps["rotation"] for each in trials] == [None, True]

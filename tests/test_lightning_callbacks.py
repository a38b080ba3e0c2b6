"""The Lightning callbacks that log: what is logged is what the layers say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from escnn_relaxed.measure import relaxation_scalars

pytest.importorskip("lightning")

from lightning.pytorch.loggers.logger import DummyLogger
from lightning_runs import BATCHES, QUIET, Classifier, SaveAfterEpoch, loader, trainer

from escnn_relaxed.learning.lightning_callbacks import LogRelaxation, _is_image, _tensors

pytestmark = QUIET


class Keep(DummyLogger):
    """A logger that keeps what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.logged: dict[str, list[float]] = {}

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        for tag, value in metrics.items():
            self.logged.setdefault(tag, []).append(value)


def test_softness_of_a_run_is_logged_at_the_start_and_after_each_epoch_and_changes_nothing() -> None:
    module, callback, logger = Classifier(), LogRelaxation(), Keep()
    first_images = next(iter(loader()))[0]
    before = relaxation_scalars(module, first_images)
    trainer(callback, max_epochs=2, logger=logger).fit(module, loader())
    after = relaxation_scalars(module, first_images)
    assert before.keys() == after.keys() == callback.history.keys() == logger.logged.keys() - {"epoch"}
    for tag, value in before.items():
        assert callback.history[tag][0] == (0, value)
        assert callback.history[tag][2] == (2 * BATCHES, after[tag])
        assert [step for step, _ in callback.history[tag]] == [0, BATCHES, 2 * BATCHES]
        assert logger.logged[tag] == pytest.approx([of for _, of in callback.history[tag]], rel=1e-6)  # in float32
    assert after["softness/network.0"] != before["softness/network.0"]
    # 4 images of 5×5 pixels in C4 fields, all of whose turns are exact: the layers are soft.
    assert after["equivariance_error/network.3"] > 0.01
    plain = Classifier()
    trainer(max_epochs=2).fit(plain, loader())
    assert all(torch.equal(value, plain.state_dict()[name]) for name, value in module.state_dict().items())


IMAGES, VOLUMES = torch.ones(2, 4, 5, 5), torch.ones(2, 4, 5, 5, 5)


@pytest.mark.parametrize(
    ("batch", "images"),
    [
        (IMAGES, IMAGES),
        ([torch.zeros(2, dtype=torch.long), IMAGES], IMAGES),
        ({"label": torch.zeros(2), "more": ({"image": IMAGES}, "name")}, IMAGES),
        ([VOLUMES, torch.zeros(2)], VOLUMES),
    ],
)
def test_images_are_found_in_a_batch(batch: Any, images: Tensor) -> None:
    (found,) = filter(_is_image, _tensors(batch))
    assert found is images


def test_history_goes_on_from_a_checkpoint_without_errors_if_not_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "middle.ckpt"
    whole, resumed = LogRelaxation(measure=False), LogRelaxation(measure=False)
    trainer(whole, SaveAfterEpoch(path, 1)).fit(Classifier(), loader())
    trainer(resumed).fit(Classifier(), loader(), ckpt_path=path)
    assert "softness/network.0" in whole.history
    for tag, values in whole.history.items():
        assert not tag.startswith("equivariance_error")
        assert [step for step, _ in resumed.history[tag]] == [BATCHES * epoch for epoch in range(5)]
        assert dict(resumed.history[tag]) == pytest.approx(dict(values), rel=1e-9)

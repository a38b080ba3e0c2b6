"""Each way at its best settings: what is chosen is the best on validation, and what is compared is alike."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.accuracy import ways
from benchmarks.shared.run_log import Log


@pytest.fixture(scope="module")
def networks() -> dict[str, torch.nn.Module]:
    return {name: ways.build(way, way.settings[0]) for name, way in ways.WAYS.items()}


def test_ways_have_as_many_parameters_within_a_tenth(networks: dict[str, torch.nn.Module]) -> None:
    counts = {
        name: sum(parameter.numel() for parameter in network.parameters() if parameter.requires_grad)
        for name, network in networks.items()
    }
    assert max(counts.values()) / min(counts.values()) < 1.1, counts


def test_every_convolution_of_a_way_is_its_layer(networks: dict[str, torch.nn.Module]) -> None:
    for name, network in networks.items():
        layers = [module for module in network.modules() if type(module) is ways.WAYS[name].layer]
        assert len(layers) == 4


def test_rate_and_setting_are_those_of_the_best_validation(tmp_path: Path) -> None:
    log = Log(tmp_path / "log.jsonl")
    search = ways.Search("turned", 64, "weighted", log)
    for run, validation in zip(search.rates(), (50.0, 70.0, 60.0), strict=True):
        log.add(str(run), {"validation": validation, "test": 100 - validation})
    for run, validation in zip(search.settings()[1:], (65.0, 72.0), strict=True):
        assert run.rate == ways.RATES[1]
        log.add(str(run), {"validation": validation, "test": 0.0})
    chosen = search.chosen(seeds=3)
    assert {run.rate for run in chosen} == {ways.RATES[1]}
    assert chosen[0].setting is ways.WAYS["weighted"].settings[2]
    assert [run.seed for run in chosen] == [0, 1, 2]


def test_run_is_trained_and_tested_on_images_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ways, "EPOCHS", 1)
    monkeypatch.setattr(ways, "VALIDATION", 64)
    seen: list[torch.Tensor] = []
    measured = ways.accuracy

    def accuracy(network: torch.nn.Module, data: tuple[torch.Tensor, torch.Tensor]) -> float:
        seen.append(data[0])
        return measured(network, (data[0][:32], data[1][:32]))

    def fit(network: torch.nn.Module, data: tuple[torch.Tensor, torch.Tensor], *arguments: object, **more) -> None:
        seen.append(data[0])
        trained(network, data, *arguments, **more)

    trained = ways.fit
    monkeypatch.setattr(ways, "accuracy", accuracy)
    monkeypatch.setattr(ways, "fit", fit)
    run = ways.Run("upright", 64, "residual", ways.Setting(deviation=0.1), 1e-2, 0)
    threads = torch.get_num_threads()
    try:
        result = ways.train(run, None)
    finally:
        torch.set_num_threads(threads)
    assert set(result) == {"validation", "test", "parameters", "seconds"}
    known, held_out, test = seen
    assert len(known) == len(held_out) == 64
    for one, other in ((known, held_out), (known, test), (held_out, test)):
        assert not any((image == other).flatten(1).all(1).any() for image in one)

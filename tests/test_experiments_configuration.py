"""Rows as files: the paper's numbers in them, overrides, and what is refused."""

from __future__ import annotations

import dataclasses

import pytest

from experiments.configuration import Configuration, override, read_row, row_names

ROWS = row_names()
LEARNED = [name for name in ROWS if "learned" in name]


def test_there_is_a_row_for_each_of_the_papers_tables() -> None:
    of_paper = [name for name in ROWS if read_row(name).published]
    # 11 of the first table, the toy problem's 3, and 6 values of λ for T(2) and three numbers of rotations.
    assert len(of_paper) == 11 + 3 + 6 * 4
    assert len([name for name in ROWS if "seconds" in read_row(name).published]) == 11
    assert len(LEARNED) == 6 * 4


def test_defaults_are_the_published_settings() -> None:
    configuration = read_row("se2-16-soft").configuration
    settings = configuration.epochs, configuration.warmup_epochs, configuration.batch_size
    assert settings == (300, 5, 64)
    assert (configuration.learning_rate, configuration.weight_decay) == (1e-3, 1e-4)
    assert configuration.fields == (32, 64)


@pytest.mark.parametrize(
    ("name", "task", "published"),
    [
        ("t2-strict", "cifar10", [81.80, 0.48]),
        ("se2-4-partial", "cifar100", [46.69, 1.02]),
        ("se2-8-soft", "cifar100-augmented", [60.83, 0.43]),
        ("se2-16-strict", "cifar10-augmented", [87.15, 0.02]),
        ("se2-4-learned-0.1", "cifar10", [83.70, 0.16]),
        ("t2-learned-5", "cifar100", [47.00, 0.07]),
        ("se2-16-learned-0.001", "cifar100-augmented", [57.22, 0.18]),
    ],
)
def test_published_accuracies_are_those_of_the_paper(name: str, task: str, published: list[float]) -> None:
    assert read_row(name).published[task] == published


@pytest.mark.parametrize("name", LEARNED)
def test_rows_of_a_learned_frequency_say_so(name: str) -> None:
    configuration = read_row(name).configuration
    assert configuration.learn_relaxation
    assert configuration.penalty_weight == float(name.rpartition("-")[2])


@pytest.mark.parametrize("rotations", [4, 8, 16])
def test_the_corrected_strict_row_differs_from_the_soft_one_in_its_frequency_alone(rotations: int) -> None:
    soft, strict = (read_row(f"se2-{rotations}-{word}").configuration for word in ("soft", "strict-corrected"))
    assert strict.relax == {"rotation": 0.0}
    assert dataclasses.replace(strict, relax=soft.relax) == soft


def test_an_override_replaces_one_value() -> None:
    before = read_row("se2-4-soft").configuration
    after = override(before, ["relax.rotation=0.5", "epochs=7", "fields=[8, 16]"])
    assert after == dataclasses.replace(before, relax={"rotation": 0.5}, epochs=7, fields=(8, 16))


def test_digests_tell_configurations_apart() -> None:
    digests = {read_row(name).configuration.digest() for name in ROWS}
    assert len(digests) == len(ROWS)
    assert read_row("t2-soft").configuration.digest() == read_row("t2-soft").configuration.digest()


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("epoch=3", "got 'epoch'"),
        ("epochs", "got 'epochs'"),
        ("epochs=0", "epochs must be"),
        ("epochs=5", "warmup_epochs must be below epochs=5, got 5"),
        ('task="svhn"', "task must be"),
        ('layer="loose"', "layer must be"),
        ("learning_rate=-1", "learning_rate must be finite and >= 0, and fit into float32; got -1"),
        ("relax.rotation=nan", "relax.rotation must be finite"),
        ('relax="none"', "got 'none'"),
        ('penalty_weight=1.0\nlayer="partial"', "layer='partial' does not have: set penalty='softness'"),
    ],
)
def test_wrong_values_are_named(assignment: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        override(Configuration(rotations=4, relax={"rotation": 1.0}), [assignment])


@pytest.mark.parametrize("assignment", ["learning_rate=true", "augment=1", "batch_size=1.5", 'weight_decay="x"'])
def test_wrong_types_are_named(assignment: str) -> None:
    with pytest.raises(TypeError, match=assignment.partition("=")[0]):
        override(Configuration(rotations=4), [assignment])


def test_an_unknown_row_is_named_beside_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"t2-strict.*got 'so3'"):
        read_row("so3")

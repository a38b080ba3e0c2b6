"""Batches: each image once an epoch, the same whenever the epoch is run, over one process or several."""

from __future__ import annotations

import torch

from experiments.batches import Batches, Examples

COUNT = 22


def examples() -> Examples:
    labels = torch.arange(COUNT)
    return Examples(labels.to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 2, 2), labels)


def labels_of(batches: Batches) -> list[int]:
    return [label for _, labels in batches for label in labels.tolist()]


def test_images_stay_with_their_labels() -> None:
    for images, labels in Batches(examples(), 5, seed=0):
        assert torch.equal(images[:, 0, 0, 0].long(), labels)


def test_an_epoch_is_the_same_whatever_was_drawn_before() -> None:
    first, again = Batches(examples(), 5, seed=3), Batches(examples(), 5, seed=3)
    again.set_epoch(1)
    other = labels_of(again)
    torch.rand(7)
    again.set_epoch(0)
    assert labels_of(first) == labels_of(again) != other
    assert labels_of(Batches(examples(), 5, seed=4)) != labels_of(first)


def test_training_has_whole_batches_and_no_image_twice() -> None:
    batches = Batches(examples(), 5, seed=0)
    drawn = labels_of(batches)
    assert len(batches) == 4
    assert len(drawn) == len(set(drawn)) == 20


def test_evaluation_has_every_image_once_over_all_processes() -> None:
    parts = [Batches(examples(), 5, rank=rank, world_size=3) for rank in range(3)]
    assert sorted(label for part in parts for label in labels_of(part)) == list(range(COUNT))
    assert [len(list(part)) for part in parts] == [len(part) for part in parts]


def test_processes_train_on_different_images_in_as_many_steps() -> None:
    parts = [Batches(examples(), 2, seed=0, rank=rank, world_size=3) for rank in range(3)]
    drawn = [label for part in parts for label in labels_of(part)]
    assert len(set(drawn)) == len(drawn)
    assert {len(list(part)) for part in parts} == {3}

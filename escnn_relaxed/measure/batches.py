"""Images with labels, given as two tensors or as a DataLoader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import torch
from escnn.nn import GeometricTensor
from torch import Tensor, nn
from torch.utils.data import DataLoader, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from ..network.relaxed_layers import first_input, input_chunks, tensor_of

Batches: TypeAlias = "DataLoader[Any]"
_RANDOM = RandomSampler, SubsetRandomSampler, WeightedRandomSampler


def labelled_chunks(
    names: tuple[str, str], data: Any, labels: Any, size: int, device: torch.device | None
) -> Iterator[tuple[tuple[Any, ...], Tensor]]:
    """Yield chunks of network arguments and labels; those of a loader are moved to the device."""
    pairs = _pairs(names, data, labels) if isinstance(data, DataLoader) else [(data, labels)]
    for images, some in pairs:
        is_moved = isinstance(data, DataLoader) and device is not None
        given, wanted = (images.to(device), some.to(device)) if is_moved else (images, some)
        yield from zip(input_chunks(given, size), wanted.split(size), strict=True)


def joined_pairs(names: tuple[str, str], data: Any, labels: Any, device: torch.device | None) -> tuple[Any, Tensor]:
    """Return the given images with labels, or those of all batches of a loader, on the device."""
    if not isinstance(data, DataLoader):
        if not isinstance(labels, Tensor):
            raise TypeError(f"{names[1]} must be a tensor, got {type(labels).__name__}")
        return data, labels
    pairs = list(_pairs(names, data, labels))
    if not pairs:
        raise ValueError(f"{names[0]} must have a batch, got an empty DataLoader")
    first = pairs[0][0]
    images = torch.cat([tensor_of(images) for images, _ in pairs]).to(device or "cpu")
    answers = torch.cat([some for _, some in pairs]).to(device or "cpu")
    return first.type(images) if isinstance(first, GeometricTensor) else images, answers


def _pairs(names: tuple[str, str], loader: Batches, labels: Any) -> Iterator[tuple[Tensor | GeometricTensor, Tensor]]:
    """Yield the pairs of a loader, checked."""
    if labels is not None:
        raise ValueError(f"{names[1]} must be left out where {names[0]} is a DataLoader, whose batches have them")
    for batch in loader:
        yield pair_of(names[0], batch)


def in_order(name: str, loader: Batches) -> None:
    """Raise a ``ValueError`` for a shuffling loader where other arguments follow the order of its images."""
    # A loader with a batch sampler of its own has a sequential one that it does not use.
    samplers = (loader.sampler, getattr(loader.batch_sampler, "sampler", None))
    is_shuffled = any(isinstance(sampler, _RANDOM) or getattr(sampler, "shuffle", False) for sampler in samplers)
    if is_shuffled:
        raise ValueError(f"{name} must be in the order of the images: the DataLoader must have shuffle=False")


def images_of(name: str, batch: Any) -> Tensor:
    """Return the images of a loader's batch, which may have labels beside them."""
    if isinstance(batch, Tensor):
        return batch
    if isinstance(batch, (tuple, list)) and len(batch) == 1:
        return tensor_of(batch[0], f"{name}: the images of a batch")
    return tensor_of(pair_of(name, batch)[0], f"{name}: the images of a batch")


def pair_of(name: str, batch: Any) -> tuple[Any, Tensor]:
    """Return the images and labels of a loader's batch, checked to be equally many."""
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        if isinstance(batch, Mapping):
            got = f"a dict of {list(batch)}"
        elif isinstance(batch, (tuple, list)):
            got = f"a {type(batch).__name__} of {len(batch)}"
        else:
            got = f"a {type(batch).__name__}"
        raise TypeError(f"{name}: batches of the DataLoader must be (images, labels), got {got}: use a collate_fn")
    images, labels = batch
    what = f"{name}: the images of a batch"
    count = len(first_input(tensor_of(images, what), what))
    if not isinstance(labels, Tensor):
        raise TypeError(f"{name}: the labels of a batch must be a tensor, got {type(labels).__name__}")
    if not labels.dim() or len(labels) != count:
        raise ValueError(f"{name}: a batch must have a label for each of {count} images, got {tuple(labels.shape)}")
    return images, labels


def device_of(network: nn.Module) -> torch.device | None:
    """Return the device of a network's first parameter or buffer; None without any."""
    return next((tensor.device for tensor in (*network.parameters(), *network.buffers())), None)

"""A pretended GPU, so that tests for a second device run on a machine that has none.

Two mistakes show on a GPU alone: a layer mixes tensors of both devices, which torch refuses, or it asks for a number
(``.item()``, ``if tensor:``), so that the CPU waits in every step. Within :func:`pretend` both show on the CPU.

Every tensor lies on the CPU. :class:`PretendDevice` sees each call of a torch function before torch does, remembers the
memory of tensors on ``DEVICE``, raises torch's error where a call mixes the two, and counts the calls that wait. What
torch calls inside of one function, as in a backward pass, it does not see.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, UntypedStorage
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._device import _device_constructors
from torch.utils._pytree import tree_leaves

# torch has optimisers and autocast for this kind of device, though it may have been built without it.
DEVICE = torch.device("xpu", 0)
CPU = torch.device("cpu")

# The host needs the result of these methods.
WAITS = {"item", "tolist", "__bool__", "__float__", "__int__", "__index__", "__complex__", "cpu"}
WAITS |= {"nonzero", "argwhere", "equal", "allclose", "is_nonzero", "unique", "unique_consecutive", "masked_select"}
# These take tensors of several devices, also with dimensions.
MIXES = {"copy_", "to", "type_as", "__get__", "__set__", "set_", "_has_compatible_shallow_copy_type"}
MIXES |= {"__getitem__", "__setitem__", "index_put", "index_put_"}
# These take no tensor of another device, not even a number.
STRICT = {"cat", "stack", "matmul", "mm", "bmm", "dot", "mv", "einsum", "conv2d", "equal", "index_select", "gather"}


# The memory on the device, by identity, and kept: a freed one would give its place to another. It outlives a device, as
# constants do that a package keeps for each device.
_STORAGES: dict[int, UntypedStorage] = {}


class PretendDevice(TorchFunctionMode):
    """The device, with how often each function waited for it."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[str] = Counter()
        self._storages = _STORAGES

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, arguments: tuple[Any, ...] = (), keywords: Any = None
    ) -> Any:
        keywords = keywords or {}
        name = getattr(function, "__name__", "")
        # The memo of copies holds tensors of anywhere.
        given = arguments[:1] if name == "__deepcopy__" else (arguments, keywords)
        tensors = [leaf for leaf in tree_leaves(given) if isinstance(leaf, Tensor)]
        here = [tensor for tensor in tensors if self.has(tensor)]
        if name == "__get__" and here and (answer := _attribute(function)) is not None:
            return answer
        self._refuse_mixtures(name, tensors, here)
        self._count_waits(name, here, arguments)
        target = self._target(function, name, arguments, keywords, bool(here))
        if name in ("to", "cpu", "cuda", "type_as") and target is not None:
            moved = self._moved(arguments, keywords, name, target)
            return self._adopted(moved, tensors) if target == DEVICE else moved
        if target is not None and ("device" in keywords or function in _device_constructors()):
            if keywords.get("generator") is not None and target == DEVICE:
                raise RuntimeError(f"Expected a '{DEVICE.type}' device type for generator but found 'cpu'")
            keywords = {**keywords, "device": CPU}
        result = function(*arguments, **keywords)
        on_device = bool(here) if target is None else target == DEVICE
        return self._adopted(result, tensors) if on_device else result

    def has(self, tensor: Tensor) -> bool:
        """Whether a tensor is on this device."""
        return not tensor.is_meta and tensor.untyped_storage()._cdata in self._storages

    def _adopted(self, result: Any, given: list[Tensor]) -> Any:
        """The result, of which new storages are on this device."""
        known = {tensor.untyped_storage()._cdata for tensor in given}
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and not tensor.is_meta:
                storage = tensor.untyped_storage()
                if storage._cdata not in known:
                    self._storages[storage._cdata] = storage
        return result

    def _refuse_mixtures(self, name: str, tensors: list[Tensor], here: list[Tensor]) -> None:
        others = [t for t in tensors if not (self.has(t) or t.is_meta) and (t.dim() or name in STRICT)]
        if here and others and name not in MIXES:
            shapes = [tuple(tensor.shape) for tensor in others]
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but {name} found {DEVICE}, and the CPU for {shapes}"
            )

    def _count_waits(self, name: str, here: list[Tensor], arguments: tuple[Any, ...]) -> None:
        if not here:
            return
        if name in ("numpy", "__array__"):
            raise TypeError(f"can't convert {DEVICE} device type tensor to numpy")
        to_cpu = name == "to" and _device_of(arguments[1:], {}) == CPU
        indices = tree_leaves(arguments[1:2]) if name in ("__getitem__", "__setitem__") else []
        by_mask = any(isinstance(index, Tensor) and index.dtype == torch.bool for index in indices)
        if name in WAITS or to_cpu or by_mask:
            self.waits[name] += 1

    def _target(
        self, function: Any, name: str, arguments: tuple[Any, ...], keywords: dict[str, Any], is_here: bool
    ) -> torch.device | None:
        """Return the device of the result, or None where it is that of the tensors of which it is made."""
        if name == "cpu":
            return CPU
        if name == "to":
            asked = _device_of(arguments[1:], keywords)
            others = [a for a in (*arguments[1:], *keywords.values()) if isinstance(a, Tensor)]
            return self._of(others[0]) if others else asked or (DEVICE if is_here else CPU)
        if name == "type_as":
            return self._of(arguments[1])
        if (asked := keywords.get("device")) is not None:
            return _known(torch.device(asked))
        if function in _device_constructors() and not name.endswith("_like"):
            return _known(torch.utils._device.CURRENT_DEVICE or CPU)
        return None

    def _of(self, tensor: Tensor) -> torch.device:
        return DEVICE if self.has(tensor) else tensor.device

    def _moved(self, arguments: tuple[Any, ...], keywords: dict[str, Any], name: str, target: torch.device) -> Tensor:
        source = arguments[0]
        if target.type == "meta":
            return source.to("meta")
        if name in ("cpu", "type_as"):
            moved = source.to(arguments[1].dtype) if name == "type_as" else source
        else:
            moved = source.to(*_on_cpu(arguments[1:]), **_on_cpu(keywords))
        is_view = moved.untyped_storage()._cdata == source.untyped_storage()._cdata
        return moved.clone() if is_view and self._of(source) != target else moved


def _known(device: torch.device) -> torch.device:
    return DEVICE if device.type == DEVICE.type else device


def _device_of(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> torch.device | None:
    """The device that ``Tensor.to`` is asked for."""
    for value in (*arguments[:1], keywords.get("device")):
        if isinstance(value, (str, torch.device)):
            return _known(torch.device(value))
    return None


def _on_cpu(values: Any) -> Any:
    """The same arguments with the CPU in place of this device."""

    def replaced(value: Any) -> Any:
        return CPU if isinstance(value, (str, torch.device)) else value

    if isinstance(values, dict):
        return {name: replaced(value) for name, value in values.items()}
    return tuple(map(replaced, values))


def _attribute(function: Callable[..., Any]) -> Any:
    """Return an attribute of a tensor that names its device, or None for other attributes."""
    return {"device": DEVICE, "is_cpu": False, "is_xpu": True}.get((resolve_name(function) or "").split(".")[-2])


@contextlib.contextmanager
def pretend() -> Iterator[PretendDevice]:
    """Provide the pretended device in a ``with`` block."""
    parse = torch._C._nn._parse_to

    def parse_to(*arguments: Any, **keywords: Any) -> Any:
        """Parse arguments as ``Module.to`` does, which reads a tensor's device where nothing can be pretended."""
        if arguments and isinstance(arguments[0], Tensor) and device.has(arguments[0]):
            arguments = DEVICE, arguments[0].dtype, *arguments[1:]
        return parse(*arguments, **keywords)

    with PretendDevice() as device, patch.object(torch._C._nn, "_parse_to", parse_to):
        yield device
    for number in [number for number in _STORAGES if torch._C._storage_Use_Count(number) == 1]:
        del _STORAGES[number]


@contextlib.contextmanager
def another_device() -> Iterator[torch.device]:
    """Provide a device that is not the CPU in a ``with`` block: a GPU, or a pretended one."""
    if torch.cuda.is_available():
        yield torch.device("cuda", 0)
        return
    with pretend():
        yield DEVICE

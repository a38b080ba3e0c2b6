"""The one store of results that are kept between calls, with one rule for when they are still right."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from .. import torch_modes
from ..torch_modes import has_no_values, has_tangents, has_values, is_captured, is_traced

__all__ = ["Remembered", "StateTensors"]

Result = TypeVar("Result")

# Whether values may be read from an accelerator, for a result and for the results that it is made of.
_may_wait: ContextVar[bool] = ContextVar("_may_wait", default=False)
# A layer keeps some features and points for each hardened subgroup, and others for each size of images.
_SIZE = 16


class Remembered:
    """Results of functions of tensors, each kept as long as the tensors that it was made of have the same values.

    Values are compared, so no way to write to a tensor escapes: ``.data``, ``.numpy()``, fused optimisers and
    collectives raise no version counter. Reading values from an accelerator waits for it, which a training step must
    not do. There, unless ``may_wait`` is set, tensors count as unchanged while they are the same objects in the same
    memory with the same version.

    The store is bounded: the result that was made longest ago goes first. It is not state: copies and pickles of it
    are empty.

    Args:
        size: the number of results that are kept at most.

    Example:
        >>> remembered = Remembered()
        >>> angles = torch.zeros(2)
        >>> remembered.get("waves", lambda: angles.cos(), [angles]) is remembered.get(
        ...     "waves", lambda: angles.sin(), [angles]
        ... )
        True
        >>> angles.data += 1
        >>> remembered.get("waves", lambda: angles.cos(), [angles])
        tensor([0.5403, 0.5403])
    """

    def __init__(self, size: int = _SIZE) -> None:
        self._size = size
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()

    def get(
        self, key: Hashable, build: Callable[[], Result], sources: Sequence[Tensor], may_wait: bool = False
    ) -> Result:
        """Return the result of ``build``, kept or made now; always made now where a gradient of a source is wanted.

        Args:
            key: the name of the result, and all that it depends on beside the sources.
            build: makes the result, a tensor or a tuple, of the sources.
            sources: all tensors that it depends on.
            may_wait: whether values may be read from an accelerator.
        """
        if has_no_values() or has_tangents() or is_traced():
            return build()
        may_wait = may_wait or _may_wait.get()
        if may_wait and sources and not torch_modes.reads_without_waiting(sources[0]):
            if is_captured():
                return build()
            # Values are read once, not tensor by tensor.
            key, sources = (key, *(source.shape for source in sources)), _packed(sources)
        wants_gradient = torch.is_grad_enabled() and any(source.requires_grad for source in sources)
        entry = self._entries.get(key)
        if not wants_gradient and entry is not None and _are_unchanged(entry.seen, sources, may_wait):
            return entry.result
        if wants_gradient or not all(map(has_values, sources)):
            return build()
        # Normal tensors, even where inference_mode is on: they may be used outside of it later.
        with torch.inference_mode(False), torch.no_grad():
            seen = [_Seen.of(source, may_wait) for source in sources]
            token = _may_wait.set(may_wait)
            try:
                result = build()
            finally:
                _may_wait.reset(token)
            if entry is not None and _are_equal(entry.result, result):
                # A captured CUDA graph reads results by their address: equal ones stay where they are.
                result = entry.result
        self._entries[key] = _Entry(seen, result)
        self._entries.move_to_end(key)
        if len(self._entries) > self._size:
            self._entries.popitem(last=False)
        return result

    def drop(self) -> None:
        """Make each result again when it is asked for; one that comes out the same stays where it is."""
        for key, entry in list(self._entries.items()):
            self._entries[key] = _Entry(None, entry.result)

    def clear(self) -> None:
        """Forget all results."""
        self._entries.clear()

    def __reduce__(self) -> tuple[type[Remembered], tuple[int]]:
        return Remembered, (self._size,)


class _Seen(NamedTuple):
    """A tensor as it was seen: its values, or its version where values must not be read.

    Attributes:
        source: the tensor.
        values: its values on an accelerator, None elsewhere.
        memory: its values in main memory as an array over the same memory, None elsewhere.
        image: a copy of the bytes of ``memory``.
        address: where ``memory`` starts.
        version: the version of ``source``; -1 in inference mode, where tensors have none.
    """

    source: Tensor
    values: Tensor | None
    memory: NDArray[Any] | None
    image: bytes
    address: int
    version: int

    @staticmethod
    def of(source: Tensor, may_wait: bool) -> _Seen:
        if torch_modes.reads_without_waiting(source):
            memory = _memory(source)
            return _Seen(source, None, memory, memory.tobytes(), source.data_ptr(), 0)
        values = source.detach().clone() if may_wait else None
        return _Seen(source, values, None, b"", 0, -1 if source.is_inference() else source._version)

    def is_same(self, source: Tensor, may_wait: bool) -> bool:
        """Whether another tensor, or this one now, is as it was seen."""
        if self.memory is not None:
            kind = source.dtype, source.shape, source.device
            same_kind = has_values(source) and kind == (self.source.dtype, self.source.shape, self.source.device)
            return same_kind and _memory(source).tobytes() == self.image
        if self.values is not None:
            return source.dtype == self.values.dtype and torch.equal(self.values, source)
        return not may_wait and source is self.source and self.version >= 0 and self.version == source._version


class _Entry(NamedTuple):
    """A result, and its sources as they were seen, None after a drop."""

    seen: list[_Seen] | None
    result: Any


def _are_unchanged(seen: Sequence[_Seen] | None, sources: Sequence[Tensor], may_wait: bool) -> bool:
    """Whether tensors are as they were seen: a plain loop, since it runs in every call of every layer."""
    if seen is None or len(seen) != len(sources):
        return False
    for known, source in zip(seen, sources, strict=False):
        if known.memory is not None and source is known.source and source.data_ptr() == known.address:
            if known.memory.tobytes() != known.image:
                return False
        elif not known.is_same(source, may_wait):
            return False
    return True


def _memory(source: Tensor) -> NDArray[Any]:
    """The values of a tensor in main memory as an array over the same memory."""
    values = source.detach()
    # NumPy has no bfloat16.
    return (values.view(torch.int16) if values.dtype == torch.bfloat16 else values).numpy()


def _packed(sources: Sequence[Tensor]) -> list[Tensor]:
    """Return the values of tensors one after the other, in one tensor for each dtype."""
    by_dtype: dict[torch.dtype, list[Tensor]] = {}
    for source in sources:
        by_dtype.setdefault(source.dtype, []).append(source.reshape(-1))
    return [torch.cat(parts) for parts in by_dtype.values()]


def _are_equal(known: object, new: object) -> bool:
    if isinstance(known, tuple) and isinstance(new, tuple):
        return len(known) == len(new) and all(map(_are_equal, known, new))
    if isinstance(known, Tensor) and isinstance(new, Tensor):
        same_kind = (known.dtype, known.device) == (new.dtype, new.device)
        return same_kind and not known.is_meta and torch.equal(known, new)
    return bool(known == new)


class StateTensors:
    """The tensors of a module and its submodules that can change: found once, and read anew at each call.

    Constants, which are buffers outside of the state dict, are not among them. Tensors in the place of parameters
    (``torch.func.functional_call``, pruning, parametrisations) are.

    Args:
        tables: the tables of a module in which tensors are looked for.

    Example:
        >>> layer, tensors = nn.Linear(2, 1), StateTensors()
        >>> len(tensors(layer))
        2
        >>> layer.weight = nn.Parameter(torch.ones(1, 2))
        >>> tensors(layer)[0] is layer.weight
        True
    """

    def __init__(self, tables: tuple[str, ...] = ("_parameters", "_buffers", "__dict__")) -> None:
        self._tables = tables
        # One object, replaced whole: threads see the old one or the new one.
        self._found: _Places | None = None

    def __call__(self, module: nn.Module) -> list[Tensor]:
        """Return the tensors as they are now."""
        found = self._found
        tensors = None if found is None or found.module is not module else found.tensors()
        if tensors is None:
            found = self._found = _Places.of(module, self._tables)
            tensors = found.tensors() or []
        return tensors

    def __reduce__(self) -> tuple[type[StateTensors], tuple[tuple[str, ...]]]:
        return StateTensors, (self._tables,)


class _Places(NamedTuple):
    """The tables in which a module holds its tensors and the modules inside, with their names."""

    module: nn.Module
    values: list[tuple[dict[str, Any], str]]
    names_inside: list[tuple[dict[str, Any], str]]
    inside: list[nn.Module | None]

    @staticmethod
    def of(module: nn.Module, tables: tuple[str, ...]) -> _Places:
        values: list[tuple[dict[str, Any], str]] = []
        names_inside: list[tuple[dict[str, Any], str]] = []
        for part in module.modules():
            names_inside += [(part._modules, name) for name in part._modules]
            for table in (getattr(part, name) for name in tables):
                constant = part._non_persistent_buffers_set if table is part._buffers else ()
                names = [name for name, value in table.items() if isinstance(value, Tensor) and name not in constant]
                values += [(table, name) for name in names]
        return _Places(module, values, names_inside, [table[name] for table, name in names_inside])

    def tensors(self) -> list[Tensor] | None:
        """The tensors, None where the module has not the same parts any more."""
        if [table.get(name) for table, name in self.names_inside] != self.inside:
            return None
        tensors = [table.get(name) for table, name in self.values]
        return tensors if all(isinstance(tensor, Tensor) for tensor in tensors) else None  # type: ignore[return-value]

"""Shapes of tensors in annotations: Float[Tensor, "n 3"] is n rows of three real numbers.

Within one dataclass, and within one call, a letter stands for one number. `shaped` checks that where the environment
variable LAMINA_CHECK_SHAPES is 1, as it is under pytest; elsewhere it costs nothing, and jaxtyping need not be there.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_type_hints

from torch import Tensor

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int, Shaped
else:
    try:
        from jaxtyping import Bool, Float, Int, Shaped
    except ImportError:

        class Shaped:
            """Stands for jaxtyping's where that is not installed: the annotation of a plain tensor."""

            def __class_getitem__(cls, item: tuple[Any, str]) -> Any:
                return item[0]

        Bool = Float = Int = Shaped

__all__ = ["Bool", "Float", "Int", "Shaped", "shaped"]

CHECKED = os.environ.get("LAMINA_CHECK_SHAPES") == "1"
T = TypeVar("T", bound=Callable[..., Any])


def shaped(thing: T) -> T:
    """A function whose arguments and result, or a dataclass whose fields, have the shapes that their annotations say.

    Raises TypeError, where shapes are checked, for a tensor of another shape or kind.
    """
    if not CHECKED:
        return thing
    return _shaped_class(thing) if inspect.isclass(thing) else _shaped_function(thing)


def _shaped_class(cls: Any) -> Any:
    build = cls.__init__

    @functools.wraps(build)
    def checked(self: Any, *arguments: Any, **named: Any) -> None:
        build(self, *arguments, **named)
        _check(cls.__name__, _hints(cls), {f.name: getattr(self, f.name) for f in dataclasses.fields(cls)})

    cls.__init__ = checked
    return cls


def _shaped_function(function: Any) -> Any:
    signature = inspect.signature(function)

    @functools.wraps(function)
    def checked(*arguments: Any, **named: Any) -> Any:
        given = signature.bind(*arguments, **named).arguments
        result = function(*arguments, **named)
        _check(function.__qualname__, _hints(function), {**given, "return": result})
        return result

    return checked


@functools.cache
def _hints(thing: Any) -> Mapping[str, Any]:
    return get_type_hints(thing)


def _check(name: str, hints: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Raise TypeError if a tensor among the values is none of those that its annotation names."""
    from jaxtyping import jaxtyped

    with jaxtyped("context"):
        for key, value in values.items():
            known = list(_tensors(hints.get(key)))
            if known and isinstance(value, Tensor) and not any(isinstance(value, kind) for kind in known):
                expected = " or ".join(f"{kind.__name__}" for kind in known)
                raise TypeError(f"{key} of {name} is {value.dtype} of shape {tuple(value.shape)}; expected {expected}.")


def _tensors(hint: Any) -> Iterator[Any]:
    """The annotations with a shape among the alternatives of a hint."""
    for kind in get_args(hint) or (hint,):
        if getattr(kind, "array_type", None) is Tensor:
            yield kind

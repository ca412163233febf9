"""Overrides ``aten`` operators in PyTorch's dispatcher, below autograd, while :func:`enabled` or :func:`install` holds.

Overriding the dispatcher covers calls from Python, C++, autograd and compiled programs at one place, for about a
microsecond a call. Replacing functions such as ``torch.nn.functional.linear`` would miss most of these.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import sys
import threading
import warnings
from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace
from typing import Any

import torch

from gemmill.library.errors import CaptureError, GemmillError, OperandError, UnsupportedProblemError
from gemmill.runtime.api import fast_path
from gemmill.runtime.torch.takeover import stats
from gemmill.runtime.torch.takeover.aten import ROWS, Row, Unserved, flops, overload, tf32_is_allowed
from gemmill.runtime.torch.takeover.kernel_backend import Backend, Compute, kernels
from gemmill.runtime.torch.takeover.stats import Route, Run

_MOST_ROUTES = 8
"""The most signatures in a bucket, that is, with the same numbers of elements. One more clears all routes."""
_SIGNATURES = 1024
"""The most buckets of an operator. One more clears all routes."""


class Override:
    """An overridden operator. It recognises calls with an earlier call's signature by PyTorch's own guards."""

    def __init__(self, name: str, row: Row, takeover: Takeover) -> None:
        schema = overload(name)._schema
        self.name = name
        self._row = row
        self._takeover = takeover
        self._keyset = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, takeover.key))
        self._names = [x.name for x in schema.arguments]
        leading = [str(x.type) == "Tensor" for x in schema.arguments]
        self._tensors = leading.index(False) if False in leading else len(leading)
        """How many leading arguments are tensors."""
        self._routes: dict[Hashable, tuple[Route, ...]] = {}
        self._lock = threading.Lock()
        self._original = _original(name, takeover.key)

    def register(self, library: torch.library.Library) -> None:
        """Register this override in the dispatcher; fallbacks call the kernel that it replaces."""
        library.impl(self.name, self._kernel(), self._takeover.key, allow_override=True)

    def _kernel(self) -> Callable[..., Any]:
        routes_of, leading, meet, takeover = self._routes, self._tensors, self._meet, self._takeover

        def kernel(*positional: Any, **keywords: Any) -> Any:
            if not takeover.entries:
                return self._run_original(positional, keywords)
            values: Hashable = None
            if not keywords and len(positional) <= leading:
                tensors = positional
            elif len(keywords) == 1 and "out" in keywords and len(positional) <= leading:  # how compiled programs call
                tensors = (*positional, keywords["out"])
            else:
                arguments = (*positional, *keywords.values())
                tensors = tuple([x for x in arguments if isinstance(x, torch.Tensor)])
                values = tuple(keywords), tuple([x for x in arguments if not isinstance(x, torch.Tensor)])
            bucket = tensors[0].numel(), tensors[1].numel(), len(tensors), values
            for route in routes_of.get(bucket, ()):
                if route.matches(*tensors):
                    route.calls += 1
                    return route.run(positional, keywords, tensors)
            return meet(bucket, positional, keywords, tensors)

        return kernel

    def _meet(self, bucket: Hashable, positional: tuple[Any, ...], keywords: dict[str, Any], tensors: Any) -> Any:
        """Compute a call with a new signature, and keep its route for the next ones."""
        named = dict(zip(self._names, positional, strict=False)) | keywords
        names = [name for name, x in named.items() if isinstance(x, torch.Tensor)]
        route = Route(self.name, "", False, flops(self._row, named), self._run_original, _matcher(tensors))
        try:
            compute, route.by = self._takeover.backend(self._row.read(self._row, named), named, names)
            route.is_served, route.run = True, self._run_served(route, compute)
        except (Unserved, GemmillError) as error:
            route.by = _reason(error)
            if isinstance(error, CaptureError) or (isinstance(error, Unserved) and not error.always):
                return self._leave(route, positional, keywords)
        with self._lock:
            routes = self._routes.get(bucket, ())
            if len(routes) >= _MOST_ROUTES or len(self._routes) >= _SIGNATURES:
                stats.forget([x for routes_of_bucket in self._routes.values() for x in routes_of_bucket])
                self._routes.clear()
                routes = ()
            self._routes[bucket] = (*routes, route)
            stats.add(route)
        route.calls += 1
        return route.run(positional, keywords, tensors)

    def _run_original(self, positional: tuple[Any, ...], keywords: dict[str, Any], _: Any = None) -> Any:
        return self._original.call_boxed(self._keyset, *positional, **keywords)

    def _run_served(self, route: Route, compute: Compute) -> Run:
        def run(positional: tuple[Any, ...], keywords: dict[str, Any], tensors: tuple[Any, ...]) -> Any:
            try:
                return compute(tensors)
            except (Unserved, GemmillError) as error:
                route.calls -= 1
                return self._leave(replace(route, by=_reason(error)), positional, keywords)

        return run

    def _leave(self, route: Route, positional: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Run one call on PyTorch, for a reason that may not hold for the next call with this signature."""
        stats.count(self.name, route.by, route.flops)
        return self._run_original(positional, keywords)


@functools.cache
def _original(name: str, key: str) -> Any:
    """PyTorch's own kernel, as it was at the first override. Reading it again later could return one of gemmill's
    kernels that passes calls on, and two such kernels would call each other forever."""
    return torch.library.get_kernel(f"aten::{name}", key)


class Takeover:
    """The overrides of one dispatch key, and how many ``enabled`` blocks are active.

    After the last block, the overrides pass all calls on to PyTorch's kernels. Removing them from the dispatcher frees
    them, so no other thread may be about to call one. They are therefore removed on an exit at which no other thread
    has a Python frame. Threads that wait in C++, for a gradient for example, have one too. At the end of the process
    they are removed before Python tears down the modules that they use.
    """

    def __init__(self, key: str = "CUDA", backend: Backend = kernels) -> None:
        self.key = key
        self.backend = backend
        self.entries = 0
        self._lock = threading.Lock()
        self._library: torch.library.Library | None = None

    @functools.cached_property
    def _overrides(self) -> list[Override]:
        """One for each operator that this PyTorch has. They keep their routes between ``enabled`` blocks."""
        return [
            Override(name, row, self)
            for name, row in ROWS.items()
            if torch._C._dispatch_has_computed_kernel_for_dispatch_key(f"aten::{name}", self.key)
        ]

    def enter(self) -> None:
        """Count one more block, and override the operators unless they already are."""
        with self._lock:
            if self._library is None:
                library = torch.library.Library("aten", "IMPL")
                try:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")  # PyTorch warns of each overridden kernel
                        for override in self._overrides:
                            override.register(library)
                except BaseException:
                    library._destroy()
                    raise
                self._library = library
                atexit.register(self._end)
            self.entries += 1

    def leave(self) -> None:
        """Count one block less; after the last, restore PyTorch's kernels."""
        with self._lock:
            self.entries -= 1
            if not self.entries:
                self._take_out()

    def _end(self) -> None:
        with self._lock:
            self.entries = 0
            self._take_out()

    def _take_out(self) -> None:
        if self._library is not None and len(sys._current_frames()) == 1:
            self._library._destroy()
            self._library = None
            atexit.unregister(self._end)

    @contextlib.contextmanager
    def within(self) -> Iterator[None]:
        """Override the operators while a block runs."""
        self.enter()
        try:
            yield
        finally:
            self.leave()


_CUDA = Takeover()


@contextlib.contextmanager
def enabled() -> Iterator[None]:
    """Run PyTorch's matmuls of CUDA tensors on gemmill while the ``with`` block runs.

    gemmill overrides ``mm``, ``addmm``, ``bmm``, ``baddbmm``, ``_scaled_mm`` and ``_grouped_mm``. ``linear``,
    ``matmul``, ``@`` and their gradients are made of these, so they use gemmill too, also inside compiled programs.
    Programs that Inductor compiles within the block call gemmill's operators, with the pointwise operations that
    follow fused into the epilogue.

    Everything else falls back to PyTorch: float32 unless the program allows tf32, float64, integers, and layouts that
    gemmill's kernels are slow for. :func:`stats` counts fallbacks by reason. Errors are PyTorch's own.

    The block applies to all threads and can be nested. Entering and leaving it changes PyTorch's dispatcher, which
    takes about a millisecond: put it around a loop, not inside, and enter it before other threads call operators. If
    other Python threads exist when the last block ends, each matmul stays 2 to 3 microseconds slower until a block
    ends without them.

    The first call of each problem (shapes, strides, dtypes) selects a kernel, and compiles it if the store lacks it.
    Run a warm-up before you capture a CUDA graph: a problem that is new during a capture falls back to PyTorch.
    """
    from gemmill.runtime.torch.inductor.installation import passes  # importing Inductor takes a second

    with passes(), _CUDA.within():
        yield


@functools.cache
def install() -> None:
    """Run PyTorch's matmuls of CUDA tensors on gemmill, as :func:`enabled` does, until the process ends.

    Further calls do nothing.
    """
    from gemmill.runtime.torch.inductor import installation

    installation.install()
    _CUDA.enter()


def _matcher(tensors: tuple[Any, ...]) -> Callable[..., bool]:
    """A check of whether other tensors match these; for float32, also whether the tf32 setting is the same. With
    ``GEMMILL_WARM_CALLS=0`` nothing matches."""
    if not fast_path.is_on():
        return lambda *others: False
    check = fast_path.matcher(tensors)
    if tensors[1].dtype is not torch.float32:
        return check
    allowed = tf32_is_allowed()
    return lambda *others: tf32_is_allowed() == allowed and check(*others)


def _reason(error: Unserved | GemmillError) -> str:
    """The reason of a fallback, as :func:`stats` counts it."""
    match error:
        case Unserved():
            return error.reason
        case CaptureError():
            return "new problem during a CUDA graph capture"
        case UnsupportedProblemError():
            return "no kernel supports the problem"
        case OperandError():
            return "the operands are not supported"
    return f"{type(error).__name__}: {error}"

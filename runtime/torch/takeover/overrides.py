"""Kernels of ``aten`` operators overridden in the dispatcher, below autograd, as long as somebody asks for it.

The dispatcher was chosen over functions such as ``torch.nn.functional.linear`` in place of PyTorch's: it is one place
for what Python, C++, autograd and compiled programs call, and costs a call a microsecond.
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
"""Signatures that may have operands of as many elements; one more, and all are forgotten."""
_SIGNATURES = 1024
"""Sets of such signatures that an operator may have."""


class Override:
    """An operator with a kernel of ours, which recognises calls like one before by PyTorch's own guards."""

    def __init__(self, name: str, row: Row, takeover: Takeover) -> None:
        schema = overload(name)._schema
        self.name = name
        self._row = row
        self._takeover = takeover
        self._keyset = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, takeover.key))
        self._names = [x.name for x in schema.arguments]
        leading = [str(x.type) == "Tensor" for x in schema.arguments]
        self._tensors = leading.index(False) if False in leading else len(leading)
        """How many tensors come first."""
        self._routes: dict[Hashable, tuple[Route, ...]] = {}
        self._lock = threading.Lock()
        self._original = _original(name, takeover.key)

    def register(self, library: torch.library.Library) -> None:
        """Take the place of the kernel that is there, and leave calls to it."""
        library.impl(self.name, self._kernel(), self._takeover.key, allow_override=True)

    def _kernel(self) -> Callable[..., Any]:
        routes_of, leading, meet, takeover = self._routes, self._tensors, self._meet, self._takeover

        def kernel(*positional: Any, **keywords: Any) -> Any:
            if not takeover.entries:
                return self._run_original(positional, keywords)
            values: Hashable = None
            if not keywords and len(positional) <= leading:
                tensors = positional
            elif len(keywords) == 1 and "out" in keywords and len(positional) <= leading:  # as compiled programs call
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
        """Compute a call of a signature that is new, and keep what becomes of the next."""
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
        """One call to PyTorch, for a reason that does not hold for all like it."""
        stats.count(self.name, route.by, route.flops)
        return self._run_original(positional, keywords)


@functools.cache
def _original(name: str, key: str) -> Any:
    """PyTorch's own kernel, as it was when first overridden: what stands there later may be one of ours that passes
    calls on, and two of these would pass them to each other."""
    return torch.library.get_kernel(f"aten::{name}", key)


class Takeover:
    """The overrides of one dispatch key, and how many are within them.

    Once nobody is, they pass calls on to PyTorch's kernels, and are taken out of the dispatcher as soon as no other
    thread can be on its way into one, which PyTorch would free under it: when somebody leaves and no other thread has
    a Python frame, as those have too that wait in C++, for a gradient perhaps; or at the end of the process, before
    modules are torn down that they are made of.
    """

    def __init__(self, key: str = "CUDA", backend: Backend = kernels) -> None:
        self.key = key
        self.backend = backend
        self.entries = 0
        self._lock = threading.Lock()
        self._library: torch.library.Library | None = None

    @functools.cached_property
    def _overrides(self) -> list[Override]:
        """Kept from one time to the next, with all signatures. Not of operators that this PyTorch lacks."""
        return [
            Override(name, row, self)
            for name, row in ROWS.items()
            if torch._C._dispatch_has_computed_kernel_for_dispatch_key(f"aten::{name}", self.key)
        ]

    def enter(self) -> None:
        """Override, unless somebody has."""
        with self._lock:
            if self._library is None:
                library = torch.library.Library("aten", "IMPL")
                try:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")  # it says that kernels are overridden
                        for override in self._overrides:
                            override.register(library)
                except BaseException:
                    library._destroy()
                    raise
                self._library = library
                atexit.register(self._end)
            self.entries += 1

    def leave(self) -> None:
        """Have PyTorch's kernels back, if nobody else is within."""
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
        """Override meanwhile."""
        self.enter()
        try:
            yield
        finally:
            self.leave()


_CUDA = Takeover()


@contextlib.contextmanager
def enabled() -> Iterator[None]:
    """While inside, PyTorch's own products of CUDA tensors run on gemmill's kernels: ``mm``, ``addmm``, ``bmm``,
    ``baddbmm``, ``_scaled_mm`` and ``_grouped_mm``, and so ``linear``, ``matmul``, ``@`` and their gradients, also
    where a compiled program calls them; and what Inductor compiles meanwhile has gemmill's operators in their place,
    with what follows them folded in. What is not served (float32 unless the program allows tf32, float64, layouts
    that kernels are slow for) runs as before, and :func:`stats` says why.

    It holds for all threads, and may be nested. The first entry and the last exit change PyTorch's dispatcher: that
    takes a millisecond, so enter once, around a loop, and for the first time before other threads call operators. An
    exit while there are other threads leaves kernels behind that pass calls on, until an exit without, or the end of
    the process. A product that is new is selected, and compiled if need be, when it is first met: warm up
    before a CUDA graph is captured, as what is first met in a capture is left to PyTorch.
    """
    from gemmill.runtime.torch.inductor.installation import passes  # which takes a second to import

    with passes(), _CUDA.within():
        yield


@functools.cache
def install() -> None:
    """:func:`enabled` from here to the end of the process. Further calls do nothing."""
    from gemmill.runtime.torch.inductor import installation

    installation.install()
    _CUDA.enter()


def _matcher(tensors: tuple[Any, ...]) -> Callable[..., bool]:
    """Whether other tensors are as these; of float32, while as much precision is asked for. None under
    ``GEMMILL_WARM_CALLS=0``."""
    if not fast_path.is_on():
        return lambda *others: False
    check = fast_path.matcher(tensors)
    if tensors[1].dtype is not torch.float32:
        return check
    allowed = tf32_is_allowed()
    return lambda *others: tf32_is_allowed() == allowed and check(*others)


def _reason(error: Unserved | GemmillError) -> str:
    match error:
        case Unserved():
            return error.reason
        case CaptureError():
            return "first met while a stream is captured"
        case UnsupportedProblemError():
            return "no kernel serves it"
        case OperandError():
            return "operands that kernels do not take"
    return f"{type(error).__name__}: {error}"

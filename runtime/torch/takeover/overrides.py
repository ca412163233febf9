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

from gemmill.library.bits import ANY
from gemmill.library.errors import CaptureError, GemmillError, OperandError, UnsupportedProblemError
from gemmill.runtime.api import fast_path
from gemmill.runtime.torch.takeover import stats
from gemmill.runtime.torch.takeover.aten import REFUSED, ROWS, Row, Unserved, f32_precision, flops, overload
from gemmill.runtime.torch.takeover.blocks import ENABLED, Block, Blocks, Setting
from gemmill.runtime.torch.takeover.kernel_backend import Backend, Compute, kernels
from gemmill.runtime.torch.takeover.stats import Route, Run

_MOST_ROUTES = 8
"""The most signatures in a bucket, that is, with the same numbers of elements. One more clears all routes."""
_SIGNATURES = 1024
"""The most buckets of an operator. One more clears all routes."""
Bucket = tuple[Setting, Any, Any, bool, int, Hashable]
"""Calls that are compared with each other: the setting that holds, the numbers of elements of the first two tensors and
whether they begin at one address, the number of tensors, and all other arguments."""


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
        self._routes: dict[Bucket, tuple[Route, ...]] = {}
        self._lock = threading.Lock()
        self._original = _original(name, takeover.key)

    def register(self, library: torch.library.Library) -> None:
        """Register this override in the dispatcher; fallbacks call the kernel that it replaces."""
        library.impl(self.name, self._kernel(), self._takeover.key, allow_override=True)

    def _kernel(self) -> Callable[..., Any]:
        routes_of, leading, meet, blocks = self._routes, self._tensors, self._meet, self._takeover.blocks

        def kernel(*positional: Any, **keywords: Any) -> Any:
            if not blocks.active:
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
            first, second = tensors[0], tensors[1]
            is_one = first.data_ptr() == second.data_ptr()
            bucket = blocks.setting, first.numel(), second.numel(), is_one, len(tensors), values
            for route in routes_of.get(bucket, ()):
                if route.matches(*tensors):
                    route.calls += 1
                    return route.run(positional, keywords, tensors)
            return meet(bucket, positional, keywords, tensors)

        return kernel

    def _meet(self, bucket: Bucket, positional: tuple[Any, ...], keywords: dict[str, Any], tensors: Any) -> Any:
        """Compute a call with a new signature, and keep its route for the next ones."""
        setting = bucket[0]
        bits = setting.bits
        named = dict(zip(self._names, positional, strict=False)) | keywords
        names = [name for name, x in named.items() if isinstance(x, torch.Tensor)]
        route = Route(self.name, "", False, flops(self._row, named), self._run_original, _matcher(tensors, setting))
        try:
            compute, route.by = self._takeover.backend(self._row.read(self._row, named, setting), named, names)
            route.is_served, route.run = True, self._run_served(route, compute, bits)
        except (Unserved, GemmillError) as error:
            _check_fallback(self.name, error, bits)
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

    def _run_served(self, route: Route, compute: Compute, bits: str) -> Run:
        def run(positional: tuple[Any, ...], keywords: dict[str, Any], tensors: tuple[Any, ...]) -> Any:
            try:
                return compute(tensors)
            except (Unserved, GemmillError) as error:
                route.calls -= 1
                _check_fallback(self.name, error, bits)
                return self._leave(replace(route, by=_reason(error)), positional, keywords)

        return run

    def _leave(self, route: Route, positional: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Run one call on PyTorch, for a reason that may not hold for the next call with this signature."""
        stats.count(self.name, route.by, route.flops)
        return self._run_original(positional, keywords)


def _check_fallback(name: str, error: Unserved | GemmillError, bits: str) -> None:
    """Raise the error for a call that must not fall back to PyTorch, because ``bits`` promises the bits of its sums."""
    if bits == ANY or (isinstance(error, Unserved) and not error.sums):
        return
    if isinstance(error, CaptureError):
        raise error
    raise _refusal(name, bits, _reason(error) if isinstance(error, Unserved) else str(error)) from error


def _refusal(name: str, bits: str, why: str) -> UnsupportedProblemError:
    return UnsupportedProblemError(
        f"gemmill does not compute this aten::{name} with bits={bits!r}, and PyTorch may sum in another order: {why}. "
        'To let PyTorch compute it, call it in gemmill.torch.enabled(bits="any")'
    )


def _register_refused(library: torch.library.Library, name: str, takeover: Takeover) -> None:
    """Override an operator of :data:`REFUSED`: raise an error where ``bits`` must hold, else call PyTorch's kernel."""
    original, blocks = _original(name, takeover.key), takeover.blocks
    keyset = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, takeover.key))

    def kernel(*positional: Any, **keywords: Any) -> Any:
        if blocks.bits != ANY:
            raise _refusal(name, blocks.bits, REFUSED[name])
        return original.call_boxed(keyset, *positional, **keywords)

    library.impl(name, kernel, takeover.key, allow_override=True)


@functools.cache
def _original(name: str, key: str) -> Any:
    """PyTorch's own kernel, as it was at the first override. Reading it again later could return one of gemmill's
    kernels that passes calls on, and two such kernels would call each other forever."""
    return torch.library.get_kernel(f"aten::{name}", key)


class Takeover:
    """The overrides of one dispatch key, and its active ``enabled`` blocks.

    After the last block, the overrides pass all calls on to PyTorch's kernels. Removing them from the dispatcher frees
    them, so no other thread may be about to call one. They are therefore removed on an exit at which no other thread
    has a Python frame. Threads that wait in C++, for a gradient for example, have one too. At the end of the process
    they are removed before Python tears down the modules that they use.
    """

    def __init__(self, key: str = "CUDA", backend: Backend = kernels, blocks: Blocks | None = None) -> None:
        self.key = key
        self.backend = backend
        self.blocks = Blocks() if blocks is None else blocks
        self._lock = threading.Lock()
        self._library: torch.library.Library | None = None

    @functools.cached_property
    def _overrides(self) -> list[Override]:
        """One for each operator that this PyTorch has. They keep their routes between ``enabled`` blocks."""
        return [Override(name, row, self) for name, row in ROWS.items() if self._has(name)]

    def _has(self, name: str) -> bool:
        operator = f"aten::{name}"
        known = torch._C._dispatch_has_kernel(operator)  # older PyTorch lacks some
        return bool(known and torch._C._dispatch_has_computed_kernel_for_dispatch_key(operator, self.key))

    def enter(self, bits: str | None = None, f32: str | None = None) -> Block:
        """Add a block, and override the operators unless they already are."""
        with self._lock:
            block = self.blocks.enter(bits, f32)
            if self._library is None:
                library = torch.library.Library("aten", "IMPL")
                try:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")  # PyTorch warns of each overridden kernel
                        for override in self._overrides:
                            override.register(library)
                        for name in filter(self._has, REFUSED):
                            _register_refused(library, name, self)
                except BaseException:
                    self.blocks.leave(block)
                    library._destroy()
                    raise
                self._library = library
                atexit.register(self._end)
            return block

    def leave(self, block: Block) -> None:
        """Remove a block; after the last, restore PyTorch's kernels."""
        with self._lock:
            self.blocks.leave(block)
            if not self.blocks.active:
                self._take_out()

    def _end(self) -> None:
        with self._lock:
            self.blocks.clear()
            self._take_out()

    def _take_out(self) -> None:
        if self._library is not None and len(sys._current_frames()) == 1:
            self._library._destroy()
            self._library = None
            atexit.unregister(self._end)

    @contextlib.contextmanager
    def within(self, bits: str | None = None, f32: str | None = None) -> Iterator[None]:
        """Override the operators while a ``with`` block runs."""
        block = self.enter(bits, f32)
        try:
            yield
        finally:
            self.leave(block)


_CUDA = Takeover(blocks=ENABLED)


@contextlib.contextmanager
def enabled(bits: str | None = None, f32: str | None = None) -> Iterator[None]:
    """Run PyTorch's matmuls of CUDA tensors on gemmill while the ``with`` block runs.

    gemmill overrides ``mm``, ``addmm``, ``bmm``, ``baddbmm``, ``_scaled_mm`` and ``_grouped_mm``. ``linear``,
    ``matmul``, ``@`` and their gradients are made of these, so they use gemmill too, also inside compiled programs.
    Programs that Inductor compiles within the block call gemmill's operators, with the pointwise operations that
    follow fused into the epilogue.

    Everything else falls back to PyTorch: float32 unless ``f32`` is passed or the program allows tf32, complex64 unless
    ``f32`` is passed, float64, integers, and layouts that gemmill's kernels are slow for. :func:`stats` counts
    fallbacks by reason. Errors are PyTorch's own.

    The block applies to all threads and can be nested. Entering and leaving it changes PyTorch's dispatcher, which
    takes about a millisecond: put it around a loop, not inside, and enter it before other threads call operators. If
    other Python threads exist when the last block ends, each matmul stays 2 to 3 microseconds slower until a block
    ends without them.

    The first call of each problem (shapes, strides, dtypes) selects a kernel, and compiles it if the store lacks it.
    Run a warm-up before you capture a CUDA graph: a problem that is new during a capture falls back to PyTorch.

    With ``bits``, no product falls back. float32, float64, slow layouts and unaligned addresses run on gemmill too. A
    product that gemmill does not compute is an error, for example of vectors (``mv``, ``dot``), and so is compilation
    with ``max_autotune``. Convolutions, fused attention, sparse products and reductions remain PyTorch's. PyTorch
    computes the gradient of a column-major A as a transpose, whose N is the number of rows, so its bits can depend on
    that number. A function that was compiled before the block keeps its bits until ``torch.compiler.reset()``.

    Args:
        bits: the order of sums, as in :func:`gemmill.matmul`: ``"any"``, ``"invariant"``, ``"cublas"`` or the name of
            an arithmetic. It also holds for :class:`gemmill.torch.Linear`. None (default) keeps that of the block
            around this one, or ``"any"``. The block that was entered last decides.
        f32: how float32 and complex64 are multiplied: ``precision`` of :func:`gemmill.matmul`, such as ``"bf16x6"``,
            whatever PyTorch's settings say. None (default) keeps that of the block around this one. Without any,
            ``torch.set_float32_matmul_precision`` decides: ``"highest"`` leaves float32 to PyTorch, ``"high"`` and
            ``"medium"`` are tf32.

    Raises:
        OperandError: ``bits`` or ``f32`` has an invalid value.
    """
    from gemmill.runtime.torch.inductor.installation import passes  # importing Inductor takes a second

    with passes(), _CUDA.within(bits, f32):
        yield


_installed: list[Block] = []
"""The block of :func:`install`, if it was called."""


def install(bits: str | None = None, f32: str | None = None) -> None:
    """Run PyTorch's matmuls of CUDA tensors on gemmill, as :func:`enabled` does, until the process ends.

    A further call replaces the ``bits`` and ``f32`` that it passes.
    """
    from gemmill.runtime.torch.inductor import installation

    if _installed:
        setting = _installed[-1].setting
        bits, f32 = setting.bits if bits is None else bits, setting.f32 if f32 is None else f32
        if setting == (bits, f32):
            return
    block = _CUDA.enter(bits, f32)
    if _installed:
        _CUDA.leave(_installed.pop())
    else:
        installation.install()
    _installed.append(block)


def _matcher(tensors: tuple[Any, ...], setting: Setting) -> Callable[..., bool]:
    """A check of whether other tensors match these; for float32, also whether PyTorch's settings give the same
    precision. With ``GEMMILL_WARM_CALLS=0`` nothing matches."""
    if not fast_path.is_on():
        return lambda *others: False
    check = fast_path.matcher(tensors)
    if tensors[1].dtype is not torch.float32:
        return check
    precision = f32_precision(setting)
    return lambda *others: f32_precision(setting) == precision and check(*others)


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

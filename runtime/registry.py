"""The registry: every kernel that a program may use, from the cheapest source, and the selector over them.

A registry of packs alone needs no NVRTC, headers, manifests or store: it imports modules for them on demand.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from gemmill.library.arch import Gpu, serving
from gemmill.library.bits import ANY, required_arithmetic
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import formats, kernel_name, parse_name, present_name
from gemmill.library.dtypes import DTYPES, SPLIT, compatible_types
from gemmill.library.errors import (
    CompileError,
    ConfigError,
    ManifestError,
    PackError,
    ProblemError,
    UnsupportedProblemError,
)
from gemmill.library.input.keywords import strict
from gemmill.library.problem import REGIMES, GemmProblem, Regime
from gemmill.runtime.host_gpu import detect
from gemmill.runtime.registry_inputs import (
    check_files,
    check_remote,
    checked_gpu,
    checked_place,
    checked_problem,
    kernel_named,
    kernel_sets,
    opened_packs,
    remote_of,
)
from gemmill.runtime.select.choice import Candidate, Choice, warn_of_quick
from gemmill.runtime.select.decisions import Decision, read_decisions, usable, warn_of_absent
from gemmill.runtime.settings import Settings
from gemmill.runtime.storage.artifact import Artifact
from gemmill.runtime.storage.single_flight import SingleFlight

if TYPE_CHECKING:
    from gemmill.library.arithmetic import Arithmetic
    from gemmill.library.manifest.kernelset import KernelSet
    from gemmill.runtime.compile.pool import Outcome
    from gemmill.runtime.kernel_provider import KernelProvider
    from gemmill.runtime.select.selector import Selector
    from gemmill.runtime.select.table_chooser import TableChooser
    from gemmill.runtime.storage.pack import Pack
    from gemmill.runtime.storage.remote.client import Remote
    from gemmill.runtime.storage.store import Store


_registries: WeakSet[Registry] = WeakSet()


class Registry:
    """Kernels of manifests and packs, and the selector over them. Threads may share one.

    Example:
        >>> registry = gemmill.Registry(packs=["model.pack"])
        >>> gemmill.matmul(a, b, registry=registry)
        >>> registry.select(gemmill.GemmProblem(m=4096, n=4096, k=4096)).why

    Args:
        manifests: kernel sets: files, names of shipped manifests, or loaded sets. Default: all shipped manifests, or
            none if there are packs.
        packs: files of compiled kernels, opened packs, or references such as ``oci://HOST/NAME:TAG`` to packs in OCI
            registries. Default: ``GEMMILL_PACKS`` if no manifests are given. The first pack with a kernel provides it.
            If ``GEMMILL_TRUSTED_KEYS`` is set, one of those keys must have signed each that is not opened yet.
        store: folder of compiled kernels, or a Store. Default: the user's store (``GEMMILL_STORE``).
        gpu: the GPU to select for, or its name, such as "H200". Default: GPU 0, or an H200 where there is no GPU.
        records: files of measurements, which the selector prefers to its model.
        model: folder of models from `gemmill train`. Default: ``GEMMILL_MODEL``, or the shipped models.
        remote: URL of a server or bucket of compiled kernels, or a Remote. Default: ``GEMMILL_REMOTE``. Other settings
            of the remote come from the environment (docs/service/client.md).

    Raises:
        ManifestError, PackError, RecordError: a file is missing, invalid or damaged.
        TrustError: a pack is not signed by a trusted key.
        RemoteError: a registry does not provide a pack.
    """

    @strict
    def __init__(
        self,
        manifests: Iterable[str | Path | KernelSet] | None = None,
        packs: Iterable[str | Path | Pack] | None = None,
        store: Store | str | Path | None = None,
        gpu: Gpu | str | None = None,
        records: Iterable[str | Path] = (),
        model: str | Path | None = None,
        remote: Remote | str | None = None,
    ) -> None:
        check_remote(remote)
        check_files(manifests=manifests, packs=packs, records=records)
        if packs is None:
            packs = (Settings.read().packs or ()) if manifests is None else ()
        self.packs = opened_packs(packs, checked_place(store))
        self._ships = manifests is None and not self.packs
        if not self._ships:  # report their errors now
            self.kernel_sets = tuple(kernel_sets(manifests)) if manifests else ()
        self._store, self._remote = store, remote
        self._gpu = checked_gpu(gpu)
        self._model = Path(model) if model is not None else None
        self.recorded = read_decisions(files) if (files := [Path(path) for path in records]) else []
        """The measurements in the given records, of any GPU."""
        self._loaded: dict[str, Artifact] = {}
        self._selectors: dict[frozenset[str], Selector] = {}
        self._choosers: dict[tuple[Regime, str], tuple[TableChooser | None, str]] = {}
        self._renew_locks()
        _registries.add(self)

    def __repr__(self) -> str:
        """Name its sources of kernels, without loading any."""
        named = "" if self._ships else ", ".join(kernel_set.name for kernel_set in self.kernel_sets)
        sets = "the shipped manifests" if self._ships else named or "no manifest"
        packs = "".join(f", {pack.path}" for pack in self.packs)
        gpu = self._gpu.name if self._gpu else "the GPU of this machine"
        remote = self.__dict__.get("remote") or self._remote
        return f"<Registry of {sets}{packs} for {gpu}{f', and {remote}' if remote else ''}>"

    @cached_property
    def kernel_sets(self) -> tuple[KernelSet, ...]:
        """The kernel sets of the manifests: the shipped ones, unless others were named."""
        return tuple(kernel_sets(None))

    @cached_property
    def gpu(self) -> Gpu:
        """The GPU to select for, with its model.

        Raises:
            RecordError: the model folder has no model of it.
        """
        gpu = self._gpu or detect()
        if not (model := self._model or (None if gpu.model else Settings.read().model)):
            return gpu
        from gemmill.runtime.select.model_file import with_model

        return with_model(gpu, model)

    @cached_property
    def _decisions(self) -> list[Decision]:
        """Measurements from packs and records."""
        packed = [decision for pack in self.packs for decision in pack.decisions]
        return packed + self._usable

    @cached_property
    def _usable(self) -> list[Decision]:
        """The given records that apply: of supported kernels, on this GPU."""
        return usable(self.recorded, self.gpu)

    @cached_property
    def store(self) -> Store:
        """The store of compiled kernels."""
        from gemmill.runtime.storage.store import Store

        return self._store if isinstance(self._store, Store) else Store(self._store)

    @cached_property
    def remote(self) -> Remote | None:
        """The remote that is searched for kernels that neither packs nor the store have.

        Raises:
            SettingError: an environment variable has an invalid value.
        """
        return remote_of(self._remote)

    def configs(self) -> dict[str, GemmConfig]:
        """Return every kernel by name: those of the packs, then those of the manifests. Manifests are expanded once."""
        return dict(self._configs)

    @cached_property
    def _configs(self) -> dict[str, GemmConfig]:
        with self._lock:
            configs: dict[str, GemmConfig] = {}
            for pack in self.packs:
                configs |= pack.configs()
            for kernel_set in self.kernel_sets:
                configs |= {kernel_name(config): config for config in kernel_set.expand()}
            return configs

    @cached_property
    def selector(self) -> Selector:
        """The selector over all kernels that run on this GPU."""
        return self._selector_of(DTYPES, self._selectable(DTYPES) or self._configs)

    def _selectable(self, types: Collection[str]) -> Mapping[str, GemmConfig]:
        """Return the kernels for this GPU with A and B of some types. Manifests declare kernels for every architecture;
        those for others are not expanded."""
        targets = [arch.name for arch in serving(self.gpu.capability)]

        def expanded() -> Iterator[GemmConfig]:
            where = f"arch in {targets} and a.dtype in {[*types]} and b.dtype in {[*types]}"
            for kernel_set in kernel_sets(None, types) if self._ships else self.kernel_sets:
                with suppress(ManifestError):  # the set has no such kernel
                    yield from kernel_set.expand(where=where)

        if targets and self._ships:
            from gemmill.runtime.storage.declared_kernels import declared_kernels

            return declared_kernels(self.store, targets, types, expanded)
        configs: dict[str, GemmConfig] = {}
        for pack in self.packs:
            configs |= pack.configs(lambda name: (parts := formats(name))[0] in targets and {*parts[1:]} <= {*types})
        if targets:
            configs |= {kernel_name(config): config for config in expanded()}
        return configs

    @strict
    def select(
        self,
        problem: GemmProblem,
        sm_count: int | None = None,
        bits: str = ANY,
        quick: bool = False,
        objective: Regime = "sustained",
    ) -> Choice:
        """Return the kernel for a problem, and the reason.

        Args:
            problem: the problem.
            sm_count: most SMs that the launch may use; None: all.
            bits: as in :func:`gemmill.matmul`: ``"any"``, ``"invariant"``, ``"cublas"`` or the name of an arithmetic.
            quick: deprecated, has no effect.
            objective: ``"sustained"`` for the fastest kernel in programs that run for seconds, where measurements show
                how the power limit slows kernels; ``"burst"`` for a single launch.

        Raises:
            UnsupportedProblemError: no kernel supports it; names the constraint and the nearest kernel.
        """
        if quick:
            warn_of_quick()
        if objective not in REGIMES:
            raise ProblemError(f"objective is {objective!r:.80}; it must be {' or '.join(map(repr, REGIMES))}")
        original = checked_problem(problem)
        problem, arithmetic = original.with_narrow_a, self.arithmetic(original, bits)
        chooser, why_not = self._chooser(sm_count, bits, objective)
        if chooser:
            return chooser.choose(problem, arithmetic)
        choice = self._by_selector(problem, bits, sm_count, arithmetic, objective)
        if why_not:
            choice = replace(choice, explain=partial(_join, why_not, choice.explain))
        return choice if problem is original else choice.of_transposed

    def _chooser(self, sm_count: int | None, bits: str, objective: Regime) -> tuple[TableChooser | None, str]:
        """Return what chooses by the choice tables of packs; or None, and why where the packs have tables. Manifests,
        records and models that the caller passes decide instead."""
        if not self.packs or self.kernel_sets or self.recorded or self.gpu.model:
            return None, ""
        key = objective, bits
        if (chooser := self._choosers.get(key)) is None:  # concurrent threads would make the same one
            from gemmill.runtime.select.table_chooser import chooser_of

            chooser = self._choosers[key] = chooser_of(self.packs, self.gpu.name, *key)
        if sm_count is not None and not (type(sm_count) is int and sm_count >= self.gpu.sms):
            return None, chooser[1] or "choice tables are for all SMs"
        return chooser

    def _by_selector(
        self, problem: GemmProblem, bits: str, sm_count: int | None, arithmetic: Arithmetic | None, objective: Regime
    ) -> Choice:
        """Return the kernel that measurements or the model pick."""
        options = sm_count, arithmetic, objective
        exact = self._in_f32(problem, *options) if problem.a_dtype in SPLIT and bits == ANY else None
        try:
            choice = self.selector_for(problem).select(problem, *options)
        except UnsupportedProblemError:
            if exact:
                return exact
            # All kernels are searched, so that the error names what the nearest of them needs.
            choice = self.selector.select(problem, *options)
        return exact if exact and exact.predicted_us < choice.predicted_us else choice

    def _in_f32(self, problem: GemmProblem, *options: Any) -> Choice | None:
        """Return the kernel for split f32 that multiplies f32 as it is; None if there is none. It is more precise, and
        with few rows it is faster."""
        whole = problem.but(a_dtype="f32", b_dtype="f32", promote=0)
        with suppress(UnsupportedProblemError):
            choice = self.selector_for(whole).select(whole, *options)
            return replace(choice, explain=lambda: f"{choice.explain()}; it multiplies f32 as it is", problem=problem)
        return None

    @strict
    def candidates(
        self, problem: GemmProblem, count: int, sm_count: int | None = None, bits: str = ANY
    ) -> list[Candidate]:
        """Return the best kernels for a problem: :meth:`Selector.candidates`."""
        original = checked_problem(problem)
        problem, arithmetic = original.with_narrow_a, self.arithmetic(original, bits)
        with suppress(UnsupportedProblemError):
            return self.selector_for(problem).candidates(problem, count, sm_count, arithmetic)
        return self.selector.candidates(problem, count, sm_count, arithmetic)

    def arithmetic(self, problem: GemmProblem, bits: str) -> Arithmetic | None:
        """Return the arithmetic that a value of ``bits`` requires on this GPU, None for any:
        :func:`~gemmill.library.bits.required_arithmetic`."""
        if bits == ANY:
            return None
        targets = serving(self.gpu.capability)
        arch = targets[0].name if targets else ""
        return required_arithmetic(bits, problem, arch)

    def selector_for(self, problem: GemmProblem) -> Selector:
        """Return the selector over the kernels for the types of A and B of a problem, whose narrow operand, if it has
        one, is A."""
        types = frozenset((problem.a_dtype, problem.b_dtype))
        if (selector := self._selectors.get(types)) is None:  # concurrent threads would make the same one
            with_others = {compatible for dtype in types if dtype in DTYPES for compatible in compatible_types(dtype)}
            selector = self._selectors[types] = self._selector_of(with_others, self._selectable(with_others))
            warn_of_absent(self._usable, selector.configs, types)
        return selector

    def _selector_of(self, types: Collection[str], configs: Mapping[str, GemmConfig]) -> Selector:
        """Return a selector over the kernels with A and B of some types. Kernels of packs alone run as they are;
        kernels of manifests may be varied."""
        keep = None
        if self._ships:
            from gemmill.runtime.select.kernels.kept_tables import kept_table
            from gemmill.runtime.storage.declared_kernels import origin

            keep = partial(kept_table, self.store, origin(), types, self.gpu)
        from gemmill.runtime.select.selector import Selector  # programs that choose by tables start faster

        varies = self._ships or bool(self.kernel_sets)
        return Selector(configs, self.gpu, self._decisions, varies=varies, keep=keep)

    def get(self, kernel: str | GemmConfig) -> Artifact:
        """Return a compiled kernel by name or config: a loaded one, or one from a pack, the store or the remote;
        otherwise compile it.

        Any legal kernel works, whether or not a manifest declares it.

        Raises:
            ConfigError: the name does not parse, or the config breaks a rule.
            ToolchainError: it must be compiled, and NVRTC or headers are missing, conflict, or no longer support its
                target.
            RemoteError: the mode of the remote is ``only``, and it does not have the kernel.
            CompileError: it does not compile.
            PackError: the pack that holds it is damaged.
        """
        name, _ = present_name(kernel_named(kernel))
        if (artifact := self._loaded_or_packed(name)) is not None:
            return artifact
        return self._single_flight.get(name, lambda: self._stored_or_compiled(name))[0]

    def add_source(self, config: str | GemmConfig, text: str) -> Artifact:
        """Compile and check an edited CUDA C++ source, and load its kernel.

        The kernel is launched like the one that the config emits, so it must have that kernel's symbol, export the same
        constants, and use the same threads, parameters and shared memory. Its name is the config's name followed by a
        digest of the source (:mod:`gemmill.library.config.edited`). The selector never picks it; you name it:
        ``gemmill.matmul(a, b, kernel=artifact.name, registry=registry)``.

        Args:
            config: the kernel whose source was edited, by name or config.
            text: the edited source, from :func:`gemmill.emitters.emit.emit`.

        Raises:
            ConfigError: the name does not parse, or the config breaks a rule.
            ToolchainError: NVRTC or headers are missing, conflict, or no longer support its target.
            CompileError: it does not compile, or its launch differs from that of the config's kernel.
        """
        from gemmill.emitters.edited_page import edited

        config = parse_name(config if isinstance(config, str) else kernel_name(config))
        artifact = self._provider.provide(edited(config, text), config)
        self.add(artifact)
        return artifact

    def add(self, artifact: Artifact) -> None:
        """Load a compiled kernel, which takes precedence over packs and the store."""
        with self._lock:
            self._loaded[artifact.name] = artifact

    @strict
    def warm(
        self,
        kernels: Iterable[str | GemmConfig | GemmProblem],
        jobs: int | None = None,
        on_done: Callable[[Outcome], None] | None = None,
    ) -> list[Artifact]:
        """Compile kernels in parallel before they are needed, for example before a stream capture.

        Args:
            kernels: names, configs or problems; a problem stands for the kernel selected for it.
            jobs: worker processes (:func:`~gemmill.runtime.compile.pool.compile_many`).
            on_done: called for each kernel that packs do not hold, as it finishes.

        Returns:
            The kernels, in order.

        Raises:
            CompileError: some did not compile; names each. The others are loaded nevertheless.
            ToolchainError, ConfigError, PackError, UnsupportedProblemError: as for :meth:`get` and :meth:`select`.
        """
        if isinstance(kernels, str | GemmConfig | GemmProblem):
            raise ConfigError(f"kernels is {kernels!r:.200}; it must be a list: pass [kernel]")
        names = [self._name(kernel) for kernel in kernels]
        if missing := [parse_name(name) for name in dict.fromkeys(names) if self._loaded_or_packed(name) is None]:
            artifacts, errors = self._provider.provide_many(missing, jobs, on_done)
            self._loaded |= artifacts
            if errors:
                raise CompileError(f"{len(errors)} of {len(missing)} kernels did not compile:\n" + "\n".join(errors))
        return [self.get(name) for name in names]

    def _name(self, kernel: str | GemmConfig | GemmProblem) -> str:
        if isinstance(kernel, GemmProblem):
            return self.select(kernel).name
        return present_name(kernel_named(kernel))[0]

    def _loaded_or_packed(self, name: str) -> Artifact | None:
        """Return a kernel that is loaded, or that the first pack has undamaged."""
        if (artifact := self._loaded.get(name)) is not None:
            return artifact
        damage: PackError | None = None
        with self._lock:
            for pack in self.packs:
                if name in pack:
                    try:
                        return self._loaded.setdefault(name, pack.get(name))
                    except PackError as error:
                        damage = error
        if damage is not None:
            raise damage
        return None

    def _stored_or_compiled(self, name: str) -> Artifact:
        """Return the compiled kernel of a config, unless another thread has loaded it in the meantime."""
        if (artifact := self._loaded.get(name) or self._provider.find(name)) is None:
            from gemmill.emitters.emit import emit

            config = parse_name(name)
            artifact = self._provider.provide(emit(config), config)
        return self._loaded.setdefault(name, artifact)

    @cached_property
    def _provider(self) -> KernelProvider:
        from gemmill.runtime.kernel_provider import KernelProvider

        return KernelProvider(self.store, self.remote, self._gpu or detect(), len(self.packs))

    def _renew_locks(self) -> None:
        self._lock, self._single_flight = threading.RLock(), SingleFlight[Artifact]()


def _join(start: str, explain: Callable[[], str]) -> str:
    return f"{start}; {explain()}"


def _renew_locks() -> None:
    """Renew locks in a forked process, where nobody would release a lock that another thread held."""
    for registry in _registries:
        registry._renew_locks()


os.register_at_fork(after_in_child=_renew_locks)

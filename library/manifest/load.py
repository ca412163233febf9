"""Loading of manifests: YAML -> schema -> kernel set, with the location of every fault."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gemmill.library.errors import ExpressionError, ManifestError
from gemmill.library.file_kinds import wrong_kind
from gemmill.library.files import ending, read_given, read_regular, shipped
from gemmill.library.input.keywords import strict
from gemmill.library.legality.rules import legal as is_legal
from gemmill.library.legality.rules import verdicts
from gemmill.library.manifest import resolve
from gemmill.library.manifest.document import INVALID, Document, Location, read_document
from gemmill.library.manifest.kernelset import Candidates, KernelSet, Preset
from gemmill.library.manifest.renamed import rename
from gemmill.library.manifest.schema import FilteredSet, Manifest, PresetSpec
from gemmill.library.manifest.validation import validated
from gemmill.library.wording import suggest


@dataclass(frozen=True, slots=True)
class TypeFilter:
    """A filter of the sets of a manifest by the types of A and B."""

    types: frozenset[str]
    """The types of A and B."""
    defaults: tuple[object, ...] = ()
    """The unparsed defaults of the sets, highest precedence first."""

    def within(self, defaults: object) -> TypeFilter:
        """The filter for sets with further defaults of lower precedence."""
        return replace(self, defaults=(*self.defaults, defaults))

    def has(self, item: object) -> bool:
        """Whether an unparsed set can have A and B of these types."""
        return all(not self.types.isdisjoint(_types((item, *self.defaults), operand)) for operand in ("a", "b"))


def _types(mappings: tuple[object, ...], operand: str) -> set[object]:
    """The types that an operand can have: those of the mappings up to the first one whose choices all give types."""
    dtypes: set[object] = set()
    for mapping in mappings:
        choices = _listed(mapping.get(operand)) if isinstance(mapping, dict) else []
        types_of_choices = [_listed(choice.get("dtype")) if isinstance(choice, dict) else [] for choice in choices]
        dtypes.update(dtype for types in types_of_choices for dtype in types if isinstance(dtype, str))
        if types_of_choices and all(types_of_choices):
            break
    return dtypes


def _listed(value: object) -> list[object]:
    return value if isinstance(value, list) else [] if value is None else [value]


SHIPPED = Path(__file__).parents[2] / "manifests"
"""The folder of the built-in manifests."""
YAML = (".yaml", ".yml")
"""Endings of the names of other manifests."""


MAX_FILES = 16
"""Most files in a chain of manifests in which each extends the next."""
MAX_SETS = 300
"""Most sets of a manifest, including inherited ones. Each is compared with all earlier ones."""
MAX_PARTS = 100_000
"""Most pairs of a set with a preset or one of its matches. Each pair is evaluated."""


def shipped_manifests() -> list[str]:
    """The names of the built-in manifests."""
    return sorted(path.stem for path in shipped(SHIPPED).glob("*.yaml"))


def shipped_manifest(name: str) -> Path:
    """The file of a built-in manifest. Raises ManifestError for any other name."""
    names = shipped_manifests()
    if name not in names:
        hint = suggest(name, names) or ";"
        raise ManifestError(f"there is no built-in manifest {name!r}{hint} built-in manifests: {', '.join(names)}")
    return SHIPPED / f"{name}.yaml"


@strict
def load_manifest(path: str | Path, legal: bool = True) -> KernelSet:
    """The kernel set that a manifest declares.

    Args:
        path: a YAML file, or the name of a built-in manifest as a string, such as ``bf16``.
        legal: reject sets and presets without a legal kernel. Pass False to find out which rules refuse them.

    Raises:
        ManifestError: the manifest is invalid; the message has a ``file:line:column: field: ...`` line for each fault.
    """
    ships = isinstance(path, str) and path in shipped_manifests()
    file = shipped_manifest(str(path)) if ships else Path(path)
    try:
        return _load(file, legal)
    except ManifestError:
        if says := wrong_kind(file, "manifest", only_ours=True):
            raise ManifestError(f"{file}:1:1: manifest: {says}") from None
        raise


def _load(file: Path, legal: bool) -> KernelSet:
    source = _read(file, ())
    sets = tuple(_candidates(source, legal))
    source.document.check()  # presets can only be checked with all sets
    kernel_set = KernelSet(source.head.name, source.head.description, sets, dict(_presets(source, sets, legal)))
    source.document.check()
    return kernel_set


def shipped_sets(types: Collection[str]) -> Iterator[KernelSet]:
    """The kernel sets of all built-in manifests, without presets, limited to sets that can have A and B of some types.

    The types are checked before the rest of a set is parsed. Legal kernels are not checked for: tests do that.
    """
    for name in shipped_manifests():
        source = _read(shipped_manifest(name), (), TypeFilter(frozenset(types)))
        sets = tuple(_candidates(source, legal=False))
        source.document.check()
        yield KernelSet(source.head.name, source.head.description, sets, {})


@dataclass
class _Source:
    """One file: its head, and its valid sets and presets."""

    document: Document
    head: Manifest
    sets: dict[int, FilteredSet] = field(default_factory=dict)
    presets: dict[str, PresetSpec] = field(default_factory=dict)
    parent: _Source | None = None

    def lineage(self) -> list[_Source]:
        """The files that it extends, the farthest ancestor first, and itself."""
        return [*(self.parent.lineage() if self.parent else ()), self]


def _read(path: Path, chain: tuple[Path, ...], types: TypeFilter | None = None) -> _Source:
    """Read a file and the files that it extends. With ``types``, skip presets, and sets that the filter rejects.

    Faults within sets and presets are recorded in the document. Any other fault is raised as a ManifestError, together
    with all recorded ones.
    """
    document = read_document(path, read_regular if chain else read_given)
    rename(document)
    data = document.data
    if not isinstance(data, dict):
        if not document.faults:
            document.fault(
                (), f"is not a manifest; it must be a mapping with the keys {', '.join(Manifest.model_fields)}"
            )
        document.check()
        raise AssertionError("a document without a mapping has a fault")
    rest = {key: value for key, value in data.items() if key not in ("sets", "presets")}
    head = validated(document, Manifest, rest, ())
    if head is None:  # the keys that affect sets can still be valid
        with suppress(ValidationError):
            inherited = {key: rest[key] for key in ("extends", "defaults") if key in rest}
            head = Manifest.model_validate({"name": "?", **inherited})
    source = _Source(document, head or Manifest(name="?"))
    types = types.within(rest.get("defaults")) if types else None
    for name, item in _items(document, data, "sets", list):
        if types and not types.has(item):
            continue
        if part := validated(document, FilteredSet, item, ("sets", name)):
            source.sets[name] = part
    for name, item in () if types else _items(document, data, "presets", dict):
        if preset := validated(document, PresetSpec, item, ("presets", name)):
            source.presets[name] = preset
    if "extends" not in rest and not data.get("sets"):
        document.fault(("sets",), "the manifest has no sets; add sets, or extend another manifest")
    target = _extended(document, rest.get("extends"), (*chain, path))
    if target:
        try:
            source.parent = _read(target, (*chain, path), types)
            source.parent.document.check()
        except ManifestError as error:
            document.fault(("extends",), f"{target} is invalid")
            raise ManifestError(f"{error}\n{document.report()}") from None
    if head is None or (head.extends is not None and target is None):
        document.check()
    return source


def _items(document: Document, data: dict[str, object], key: str, kind: type[Any]) -> Iterable[tuple[Any, object]]:
    value = data.get(key, kind())
    if isinstance(value, kind):
        return value.items() if isinstance(value, dict) else enumerate(value)
    if value is not INVALID:
        document.fault((key,), f"must be a {'list' if kind is list else 'mapping'}")
    return ()


def _extended(document: Document, name: object, chain: tuple[Path, ...]) -> Path | None:
    """The file that a manifest extends; None, with a recorded fault, if there is no such file."""
    if not isinstance(name, str):  # it extends none, or the schema has recorded the fault
        return None
    if name in shipped_manifests():
        target = shipped_manifest(name)
    elif "/" in name or ending(name) in YAML:
        target = document.path.parent / name
    else:
        shipped = shipped_manifests()
        hint = suggest(name, shipped) or ";"
        message = (
            f"there is no built-in manifest {name!r}{hint} built-in manifests: {', '.join(shipped)}; the name of a "
            "file must end in .yaml"
        )
        document.fault(("extends",), message)
        return None
    if len(chain) >= MAX_FILES:
        document.fault(("extends",), f"the chain of extended manifests has more than {MAX_FILES} files")
        return None
    try:
        circular = target.resolve(strict=True) in [path.resolve() for path in chain]
    except (OSError, ValueError, RuntimeError) as error:  # the latter: a loop of links
        document.fault(("extends",), f"{str(target)!r} cannot be read: {getattr(error, 'strerror', None) or error}")
        return None
    if circular:
        circle = " -> ".join(path.name for path in (*chain, target))
        document.fault(("extends",), f"manifests extend each other in a cycle: {circle}")
        return None
    return target


def _candidates(source: _Source, legal: bool) -> Iterator[Candidates]:
    """The sets of a manifest and of the manifests that it extends; contradictions become faults of the manifest."""
    lineage, document = source.lineage(), source.document
    if (number := sum(len(ancestor.sets) for ancestor in lineage)) > MAX_SETS:
        document.fault(("sets",), f"there are {number:,} sets including inherited ones; the limit is {MAX_SETS}")
        return
    try:
        heads = [ancestor.head.defaults for ancestor in lineage]
        defaults = reduce(lambda general, declared: resolve.merged(declared, general), heads, resolve.BASE)
    except resolve.TooManyError as error:
        document.fault(("defaults",), str(error))
        return
    for depth, ancestor in enumerate(lineage):
        outer = tuple(p for heir in lineage[depth:] for p in resolve.filters(heir.head.where))
        for index, declared in ancestor.sets.items():
            at: Location = ("sets", index) if ancestor is source else ("extends",)
            which = "" if ancestor is source else f"sets[{index}] of {ancestor.document.path.name}: "
            try:
                spec = resolve.merged(declared, defaults)
            except resolve.TooManyError as error:
                document.fault(at, f"{which}{error}")
                continue
            if open_fields := resolve.missing(spec):
                document.fault(at, f"{which}missing {', '.join(open_fields)}; set a value here or in defaults")
                continue
            if crowd := resolve.crowded(spec):
                document.fault(at, f"{which}{crowd}")
                continue
            if reason := resolve.contradiction(spec):
                document.fault(_place_of_key(document, at, "epilogue"), f"{which}{reason}")
                continue
            parts = [Candidates(grid, resolve.filters(declared.where)) for grid in resolve.grids(spec)]
            whole = [Candidates(part.grid, (*part.where, *outer)) for part in parts] if outer else parts
            if ancestor is not source:
                yield from whole
            elif _sound(document, parts, at, legal):
                if outer and _is_emptied(whole):
                    document.fault(("where",), f"no candidate of sets[{index}] passes")
                else:
                    yield from whole


def _is_emptied(parts: Sequence[Candidates]) -> bool:
    """Whether filters leave no candidate; False if they cannot be evaluated, which is a separate fault."""
    with suppress(ExpressionError):
        return not any(part.any(rules=False) for part in parts)
    return False


def _place_of_key(document: Document, at: Location, key: str) -> Location:
    """The location of a key of a set, or of the set if the key is inherited."""
    return (*at, key) if (*at, key) in document.values else at


def _sound(document: Document, parts: Sequence[Candidates], at: Location, legal: bool) -> bool:
    """Whether sets contain a candidate or, with ``legal``, a legal kernel. Otherwise a fault states the reason."""
    filter_location = _place_of_key(document, at, "where")
    try:
        passing = [part for part in parts if part.any(rules=False)]
        if not passing:
            document.fault(filter_location, "no candidate passes the filter")
        elif not legal:
            return True
        else:  # the first candidate of most sets is legal, so check it before all others
            first = next(KernelSet("", "", (passing[0],), {}).expand(legal=False))
            if is_legal(first) or any(part.any() for part in parts):
                return True
            document.fault(at, f"no candidate is legal; the first one breaks {verdicts(first)[0]}")
    except ExpressionError as error:
        document.fault(filter_location, str(error))
    return False


def _presets(source: _Source, sets: tuple[Candidates, ...], legal: bool) -> Iterator[tuple[str, Preset]]:
    """The presets of a manifest, and inherited ones that contain a kernel. A preset of the manifest without kernels is
    a fault."""
    document, kernels = source.document, KernelSet("", "", sets, {})
    if not _sound(document, sets, (), legal):
        return
    specs = {name: spec for ancestor in source.lineage() for name, spec in ancestor.presets.items()}
    if (pairs := len(sets) * sum(1 + len(spec.match or ()) for spec in specs.values())) > MAX_PARTS:
        document.fault(("presets",), f"presets and sets make {pairs:,} pairs; the limit is {MAX_PARTS:,}")
        return
    for name, spec in specs.items():
        at: Location = ("presets", name)
        preset = resolve.preset(spec)
        try:
            if not legal or kernels.holds(preset):
                yield name, preset
            elif name in source.presets:
                document.fault(at, "the preset contains no kernel of the manifest")
            for index, alternative in enumerate(preset.alternatives if legal and name in source.presets else ()):
                if not kernels.holds(Preset(alternatives=(alternative,))):
                    document.fault((*at, "match", index), "this match contains no kernel of the manifest")
        except ExpressionError as error:
            document.fault((*at, "where") if name in source.presets else ("extends",), f"preset {name}: {error}")

"""validate, list, explain: the kernels that manifests declare, and the rules that reject configs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from gemmill.cli import completion, output
from gemmill.cli.app import app
from gemmill.cli.options import Kernel, KernelFilter, argument, kernel, manifest_path
from gemmill.cli.output import Status, UsageError, usage
from gemmill.library.arithmetic import Arithmetic, arithmetic_of, parse_arithmetic
from gemmill.library.config.fields import fields_of
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import kernel_name, present_name
from gemmill.library.decompositions.decomposition import decomposition_of
from gemmill.library.decompositions.sliced_kernel import check_slices
from gemmill.library.errors import ConfigError, ManifestError
from gemmill.library.legality.coverage import OK, schedules, tables
from gemmill.library.legality.explanation import explanation, resources_of
from gemmill.library.legality.rules import Verdict, broken, verdicts
from gemmill.library.manifest.kernelset import Count
from gemmill.library.manifest.load import SHIPPED, load_manifest, shipped_manifests


def _schema(show: bool) -> None:
    if show:
        typer.echo(SHIPPED / "schema.json")
        raise typer.Exit


@app.command()
def validate(
    files: Annotated[
        list[str],
        argument("MANIFEST", "Manifest files, or names of shipped manifests.", completion.manifests),
    ],
    schema: Annotated[
        bool,
        typer.Option(
            "--schema", callback=_schema, is_eager=True, help="Print the path of the JSON Schema for editors."
        ),
    ] = False,
) -> None:
    """Check manifests, and print every error as file:line:column.

    Prints the number of kernels and the presets of each valid manifest. Exits with 1 if a manifest has an error.

    \b
    Examples:
      gemmill validate my_kernels.yaml
      gemmill validate bf16 f16 --json
      gemmill validate --schema
    """
    checked: list[_Validation] = []
    absent: list[str] = []
    for file in files:
        try:
            checked.append(_Validation.of(manifest_path(file)))
        except UsageError as error:
            absent.append(str(error))
    if output.is_json():
        if not absent:  # a missing file is itself reported as JSON
            output.print_json("validate", [asdict(found) for found in checked])
    else:
        for found in checked:
            if found.errors:
                output.complain("\n".join(found.errors))
            else:
                typer.echo(f"{found.file}: ok: {found.kernels} kernels; presets: {', '.join(found.presets) or 'none'}")
    if absent:
        raise UsageError("; ".join(absent))
    if any(found.errors for found in checked):
        raise typer.Exit(Status.WRONG)


@dataclass(frozen=True, slots=True)
class _Validation:
    """The result of `validate` for one file."""

    file: str
    errors: list[str]
    kernels: int = 0
    presets: Sequence[str] = ()

    @classmethod
    def of(cls, path: Path) -> _Validation:
        try:
            kernels = load_manifest(path)
        except ManifestError as error:
            return cls(str(path), str(error).splitlines())
        return cls(str(path), [], kernels.count().legal, tuple(kernels.presets))


@app.command(name="list")
def list_(
    kernels: KernelFilter,
    manifest: Annotated[
        str | None,
        argument("MANIFEST", "Manifest file or shipped name. Without it: list the manifests.", completion.manifests),
    ] = None,
    count: Annotated[
        bool, typer.Option("--count", help="Print only counts: candidates, rejected by each rule, kernels.")
    ] = False,
    refused: Annotated[
        bool, typer.Option("--refused", help="List the rejected configs with the rules that reject them.")
    ] = False,
    bits: Annotated[
        str | None,
        typer.Option(
            metavar="CLASS",
            autocompletion=completion.arithmetics,
            help="List only kernels with this arithmetic, such as k16 or k16/8.",
        ),
    ] = None,
    coverage: Annotated[
        bool, typer.Option("--coverage", help="Print which types, majornesses and schedules gemmill supports.")
    ] = False,
) -> None:
    """List the kernels of a manifest, or the shipped manifests.

    Prints one kernel name per line; with --json also the fields of the config and its arithmetic (`gemmill explain`).

    \b
    Examples:
      gemmill list
      gemmill list bf16 --preset quick
      gemmill list bf16 --where "tile.m == 256 and cluster.m == 2" --json
      gemmill list bf16 --bits k16/8
      gemmill list my_kernels.yaml --count
      gemmill list --coverage
    """
    options = {"--count": count, "--refused": refused, "--bits": bits is not None}
    if len(given := [name for name, is_given in options.items() if is_given]) > 1:
        raise UsageError(f"both {given[0]} and {given[1]} are given; pass only one")
    if coverage:
        if manifest is not None or kernels.given or given:
            raise UsageError("--coverage is for all manifests; omit MANIFEST and all options except --json")
        _print_coverage()
        return
    if manifest is None:
        if kernels.given or given:
            raise UsageError("--preset, --where, --bits, --count and --refused need a manifest; pass MANIFEST")
        _list_shipped()
        return
    declared = kernels.checked(load_manifest(manifest_path(manifest), legal=not (count or refused)))
    if count:
        _print_count(declared.count(kernels.preset, kernels.where))
    elif refused:
        _list_refused(manifest, declared.expand(kernels.preset, kernels.where, legal=False))
    else:
        configs = [*declared.expand(kernels.preset, kernels.where)]
        if bits is not None:
            configs = _of_arithmetic(bits, configs)
        rows = [
            {"name": kernel_name(config), "arithmetic": str(arithmetic_of(config, 0)), **fields_of(config)}
            for config in configs
        ]
        output.print_result("list", rows, "\n".join(map(kernel_name, configs)))


def _of_arithmetic(name: str, configs: Sequence[GemmConfig]) -> list[GemmConfig]:
    """The kernels with an arithmetic, some of them only with its number of slices; UsageError if there is none."""
    with usage(ConfigError):
        wanted = parse_arithmetic(name)
    if found := [config for config in configs if _has(config, wanted)]:
        return found
    present = Counter(str(arithmetic_of(config, 0)) for config in configs)
    classes = ", ".join(f"{each} ({count:,})" for each, count in present.most_common())
    raise ManifestError(f"no kernel has the arithmetic {name}; these {len(configs):,} kernels have: {classes}")


def _has(config: GemmConfig, wanted: Arithmetic) -> bool:
    """Whether a kernel has an arithmetic with one of its numbers of slices."""
    decomposition = decomposition_of(config)
    if decomposition.has_slices and wanted.slices and wanted.slices not in decomposition.slices:
        return False
    return arithmetic_of(config, wanted.slices) == wanted


def _list_shipped() -> None:
    sets = {name: load_manifest(name) for name in shipped_manifests()}
    rows = [(name, kernels.count().legal, list(kernels.presets), kernels.description) for name, kernels in sets.items()]
    cells = [(name, legal, ", ".join(presets), description) for name, legal, presets, description in rows]
    output.print_result(
        "list",
        [dict(zip(("name", "kernels", "presets", "description"), row, strict=True)) for row in rows],
        lambda: output.print_table(("manifest", ">kernels", "presets", "description"), cells),
    )


def _print_coverage() -> None:
    views = tables()
    if output.is_json():
        given = {table.title: [{**row.given, "schedules": dict(row.cells)} for row in table.rows] for table in views}
        output.print_json("list", given)
        return
    for table in views:
        labels = len(table.columns)
        rows = [(*row[:labels], *_support(row[labels:])) for row in table.merged()]
        output.print_table((*table.columns, "supported by", "excluded by"), rows, title=table.title)


def _support(cells: Sequence[str]) -> tuple[str, str]:
    """The schedules that support a row of coverage; and the rules that exclude the others, each with its schedules."""
    by_cell: dict[str, list[str]] = {}
    for schedule, cell in zip(schedules(), cells, strict=True):
        by_cell.setdefault(cell, []).append(schedule)
    supported = ", ".join(by_cell.pop(OK, ()))
    return supported, "; ".join(f"{rule}: {', '.join(excluded)}" for rule, excluded in by_cell.items())


def _list_refused(manifest: str, configs: Iterable[GemmConfig]) -> None:
    if output.is_json():
        refused = [(kernel_name(config), broken_rules) for config in configs if (broken_rules := verdicts(config))]
        output.print_json("list", [{"name": name, "verdicts": [*map(_verdict, rules)]} for name, rules in refused])
        return
    is_empty = True
    for config in configs:
        if rules := broken(config):
            typer.echo(f"{kernel_name(config)}  {'; '.join(f'{rule.id}: {says}' for rule, says in rules)}")
            is_empty = False
    if is_empty:
        output.complain(
            f"{manifest}: no rule rejects a config; `gemmill list {manifest} --count` counts all candidates"
        )


def _print_count(count: Count) -> None:
    refused = [(f"rejected by {rule}", number) for rule, number in count.refused_by_rule.items()]
    rows = [
        ("candidates", count.candidates),
        ("excluded by filters", count.filtered),
        *refused,
        ("duplicates", count.duplicates),
        ("kernels", count.legal),
    ]
    output.print_result(
        "list",
        {**asdict(count), "refused_by_rule": dict(count.refused_by_rule)},
        lambda: output.print_table(("", ">configs"), [(what, f"{number:,}") for what, number in rows]),
    )


@app.command()
def explain(
    name_or_file: Kernel,
    slices: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Number of K slices of a launch of a split-K kernel.")
    ] = None,
) -> None:
    """Describe a kernel, or the rule that rejects it.

    Prints the fields of the config, its arithmetic and the resources that it needs. The arithmetic is the order in
    which a launch adds products; kernels of the same arithmetic give the same bits. If a rule rejects the config,
    prints the rule and the nearest legal change, and exits with 1.

    \b
    Examples:
      gemmill explain sm90a_bf16k16_bf16k16_f32_none_bf16n16_128x256x64_2x1_cooperative_s4_m8_k1_linear
      gemmill explain one_config.yaml --json
      gemmill explain sm90a_f16k16_f16k16_f32_none_f16n2_64x128x64_1x1_pingpong_s8_m8_splitk_linear --slices 8
    """
    with usage(ConfigError):
        name, slices = present_name(name_or_file, slices)
        config = kernel(name)
        if slices is not None:
            check_slices(config, slices)
    broken = verdicts(config)
    report: dict[str, object] = {"name": kernel_name(config), "legal": not broken, "fields": fields_of(config)}
    if broken:
        report["verdicts"] = [_verdict(verdict) for verdict in broken]
    else:
        arithmetic = arithmetic_of(config, slices or 0)
        report |= {"arithmetic": str(arithmetic), "sums": arithmetic.in_words(), "needs": resources_of(config)}
    output.print_result("explain", report, explanation(config, broken, slices or 0))
    if broken:
        raise typer.Exit(Status.WRONG)


def _verdict(verdict: Verdict) -> dict[str, object]:
    return {
        "rule": verdict.rule,
        "fields": list(verdict.fields),
        "says": verdict.message,
        "fix": None if verdict.fix is None else dict(verdict.fix),
    }

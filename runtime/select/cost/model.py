"""The model: predicts the time of many kernels for one problem.

The analytic part uses the rates of the GPU. The tiles of a problem take waves on the SMs, a family gives the time of a
tile (:mod:`~gemmill.runtime.select.cost.families`), and DRAM and power bound the whole. For GPUs with measurements, a
network fitted to them corrects the kernels that may be the fastest (:mod:`~gemmill.runtime.select.cost.network`). For
sustained load, the energy term (:mod:`~gemmill.runtime.select.cost.energy`) predicts how the power limit slows kernels.
All are array operations over the kernels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gemmill.library.arch import L2_SECTOR, Gpu
from gemmill.library.config.batchings import GROUPED_EXTENT, MASKED
from gemmill.library.config.model import GemmConfig
from gemmill.library.dtypes import DTYPES, DTypeName
from gemmill.library.families.wgmma.wgmma_plan import SKIPPING_ROWS, SUBTILE_M
from gemmill.library.legality.quantities import TMA_ALIGN, align_up
from gemmill.library.problem import GemmProblem
from gemmill.runtime.select.cost.arrays import fourth_power, twelfth_power, twelfth_root
from gemmill.runtime.select.cost.decompositions import cluster_k, stream_shares
from gemmill.runtime.select.cost.energy import power_us
from gemmill.runtime.select.cost.families import FAMILIES
from gemmill.runtime.select.cost.families.wgmma import SHARED_BYTES_PER_CYCLE, row_cycles
from gemmill.runtime.select.cost.network import DYNAMIC, corrections
from gemmill.runtime.select.cost.symmetric import multiplied, triangle
from gemmill.runtime.select.cost.table import FeatureTable, resident_clusters

if TYPE_CHECKING:
    from gemmill.runtime.select.cost.arrays import Bools, Columns, Floats, Integers
    from gemmill.runtime.select.cost.network import Network

BEHIND = 1.7
"""Largest time relative to the analytically fastest kernel for which the network is evaluated: the best of 6,328
measured problems was always within it."""
MOST = 64
"""Most kernels for which the network is evaluated, the analytically fastest first."""
_OF_FAMILIES = "m", "inside_a", "inside_b", "active", "filled", "load_ns", "steps", "waves", "store_ns", "sharing"
"""Work of kernels that families use."""
_FITTED = "strided", "nested"
"""Batching that the network was fitted to, or with the same cost."""
_LAUNCH_NS = 310.0
"""Time of a launch in a sequence of launches."""
_STORES_SEEN = 0.5
"""Share of the SM's time from which on stores count as the bound."""
_ROWS_OF_MASKED = np.linspace(0.7, 1.3, 7)[:, np.newaxis]
"""Rows in use of masked groups relative to the expected rows, with the distribution of DeepGEMM's tests."""
_ROWS_OF_GROUPED = -np.log1p(-(np.arange(16) + 0.5) / 16)[:, np.newaxis]
"""Rows of groups at offsets relative to their average, as for an exponential distribution."""
_READ_AGAIN = 0.3
"""Share of a group's weights that DRAM delivers a second time if CTAs read them for several tiles of the group, which
they do at different times. Fitted to groups of 32 to 128 rows of e4m3 and of bf16 on an H200."""
_WINDOW_COST = 1.3
"""Time of the loads of groups along K relative to others, fitted to three tiles on an H200."""
_L2_SHARE = 0.85
"""Share of L2 that operands can stay in. Fitted to measurements on an H200, like the next constant."""
_REALIGNED_KEPT = 0.45
"""Share of the time of writing a realigned operand that is saved where it stays in L2."""


def times(table: FeatureTable, problem: GemmProblem, gpu: Gpu, serving: Integers | None = None) -> Columns:
    """Return the microseconds of every kernel of a table for one problem, with all extents at least 1.

    The result has ``us``, ``analytic_us`` (by the analytic model alone), and the work that they follow from.

    Args:
        table: the kernels.
        problem: the problem.
        gpu: the GPU of the table, or one with fewer SMs.
        serving: indices of the kernels that support the problem; None: all.
    """
    work, call = analytic(table, problem, gpu), problem
    problem = problem.of_components
    us = work["us"]
    if table.network is not None and problem.batching in _FITTED:
        us = _corrected(table.network, table, work, serving)
    if min(problem.a_align, problem.b_align, problem.c_align) < TMA_ALIGN:
        realignment_us = _realignment_us(table, problem, gpu)
        us = us + realignment_us
        work["analytic_us"] = work["analytic_us"] + realignment_us
    if problem is not call:
        splitting_us = _splitting_us(call, gpu)
        us = us + splitting_us
        work["analytic_us"] = work["analytic_us"] + splitting_us
    work["us"] = us
    return work


def _corrected(network: Network, table: FeatureTable, work: Columns, serving: Integers | None) -> Floats:
    """Return microseconds, with the network's corrections of the kernels that may be the fastest."""
    us: Floats = work["us"]
    members = within(BEHIND, us, serving)
    if not table.columns["all_fitted"]:
        members = members[table.is_fitted.take(members)]
    if members.size > MOST:
        members = members[us.take(members).argpartition(MOST)[:MOST]]
    if not members.size:
        return us
    figures, hidden = work["figures"].take(members, 1), table.hidden.take(members, 0)
    factors = np.exp(corrections(network, hidden, figures))
    corrected_us = us.copy()
    corrected_us[members] = corrected = us.take(members) * factors
    # The slowdown of the fastest of these, for example by slow memory, also applies to kernels that the network was not
    # fitted to.
    if not table.columns["all_fitted"] and (slowdown := factors[corrected.argmin()]) > 1:
        np.multiply(corrected_us, slowdown, out=corrected_us, where=~table.is_fitted)
    return corrected_us


def within(behind: float, us: Floats, serving: Integers | None) -> Integers:
    """Return the indices of the supported kernels whose time is at most ``behind`` times the fastest."""
    supported_us = us if serving is None else us.take(serving)
    fastest: Integers = (supported_us <= behind * supported_us[supported_us.argmin()]).nonzero()[0]
    return fastest if serving is None else serving.take(fastest)


def analytic(table: FeatureTable, problem: GemmProblem, gpu: Gpu) -> Columns:
    """Apply the analytic model alone. The result has ``us`` of each kernel and its parts, among them ``figures`` in the
    order of :data:`~gemmill.runtime.select.cost.network.DYNAMIC`."""
    products, problem = problem.products, problem.of_components
    columns, typical = table.columns, problem.typical()
    work = _tiles(table, problem, typical, gpu)
    _add_loads(work, columns, typical, gpu, problem.batching in _FITTED)
    _add_stores(work, columns, problem, gpu)
    if problem.batching == "kgrouped":
        work["load_ns"] *= _WINDOW_COST
        work["store_ns"] = work["store_ns"] * (_bytes(problem.d_dtype) / _output_bytes(problem))  # C comes earlier
    sm_ns, dram_ns, us = work["sm_ns"], work["dram_ns"], work["us"]
    sm_ns[:] = _busiest_ns(table, work, typical, gpu)
    if (stream := columns["stream"]) is not None:  # a part of a wave still has a whole store
        sm_ns[stream] += work["exchange_ns"] + work["rest"] * work["store_ns"][stream]
    of_dram_ns = (_dram_bytes(columns, work, typical, gpu) + _read_again(work, problem)) / columns["dram_gbps"]
    dram_ns[:] = of_dram_ns
    # No input of the network: it corrects the same tiles for a large K too.
    of_dram_ns = of_dram_ns + _part_sectors(columns, typical) / columns["dram_gbps"]
    work["power_ns"] = power_ns = 1000 * products * power_us(typical, gpu) * multiplied(columns["symmetric"], typical)
    if GROUPED_EXTENT.get(problem.batching) in ("m", "n"):
        # Loads pause where tiles of other groups begin, so the shorter of these times counts more: their 4-norm. Fitted
        # to tiles for groups of 2 to 128 rows of e4m3 on an H200.
        fourths = fourth_power(sm_ns) + fourth_power(of_dram_ns)
        total = fourths * fourths * fourths
    else:
        total = twelfth_power(sm_ns) + twelfth_power(of_dram_ns)
    total += twelfth_power(power_ns)
    np.add(twelfth_root(total), _LAUNCH_NS, us)
    if columns["has_second"]:
        us += columns["second_ns"] + columns["second_element_ns"] * float(typical.m * typical.n * typical.batch)
    us /= 1000.0
    work["analytic_us"] = us
    return work


def _tiles(table: FeatureTable, problem: GemmProblem, typical: GemmProblem, gpu: Gpu) -> Columns:
    """Return how the tiles of the kernels cover a problem: clusters, waves, active CTAs, steps along K."""
    columns, figures = table.columns, np.empty((len(DYNAMIC), len(table.kernels)))
    m, _, along_m, along_n, waves, active, steps, load_ns, sm_ns, dram_ns, us, k, batch, *_ = figures
    extents, along, rows = figures[:2], figures[2:4], figures[-2:]
    k[:], batch[:] = problem.k, problem.batch
    np.array((row_cycles(problem, "a"), row_cycles(problem, "b"))).take(table.side, None, rows, "clip")
    np.array((typical.m, typical.n), np.float64).take(table.side, None, extents, "clip")
    np.divide(extents, columns["cluster_tile"], along)
    np.ceil(along, along)
    varied: Floats | bool | None = None
    filled: Floats | float = 1.0
    if GROUPED_EXTENT.get(problem.batching) in ("m", "n"):
        varied, filled = _vary(along, extents, columns, problem, typical)
    clusters = along_m * along_n
    if typical.symmetry != "general":
        np.copyto(clusters, triangle(columns["cluster_tile"], typical.m), where=columns["symmetric"])
    clusters *= columns["clusters"]
    if typical.batch != 1:
        clusters *= typical.batch
    slots = _slots(table, gpu)
    np.divide(clusters, slots, waves)
    np.divide(float(typical.k), columns["step_k"], steps)
    np.ceil(steps, steps)
    work: Columns = {
        "figures": figures,
        "m": m,
        "waves": waves,
        "active": active,
        "steps": steps,
        "clusters": clusters,
        "inside_a": 1.0,
        "inside_b": 1.0,
        "filled": filled,
        "sharing": 1.0,
        "load_ns": load_ns,
        "sm_ns": sm_ns,
        "dram_ns": dram_ns,
        "us": us,
    }
    if (stream := columns["stream"]) is not None:
        work["rest"], work["exchange_ns"] = stream_shares(waves[stream], steps[stream], columns["stream_tile"])
    if varied is None:
        np.ceil(waves, waves)
    else:
        waves[:] = np.where(varied, np.maximum(waves + 0.5, 1), np.ceil(waves))
    if stream is not None:
        waves[stream] -= work["rest"]
    np.minimum(clusters, slots, out=active)
    active *= columns["ctas"]
    return work


def _add_loads(work: Columns, columns: Columns, problem: GemmProblem, gpu: Gpu, ends: bool) -> None:
    """Add the time of the loads of a step from L2. With ``ends``, boxes end with the operands; otherwise they are
    whole."""
    loaded, load_ns = columns["loaded_whole"], work["load_ns"]
    if ends and min(problem.m, problem.n) < columns["largest_tile"]:
        inside = work["figures"][:2] / columns["tile"]
        work["inside_a"], work["inside_b"] = np.minimum(inside, 1.0, out=inside)
        inside = inside * columns["loaded"]
        loaded = inside[0] + inside[1]
    np.multiply(work["active"], 1 / gpu.l2_gbps, load_ns)
    np.maximum(load_ns, 1 / (SHARED_BYTES_PER_CYCLE * gpu.clock_ghz), out=load_ns)
    load_ns *= loaded


def features(table: FeatureTable, work: Columns) -> Floats:
    """Return the inputs of the network for each kernel, (kernels, inputs), from the result of :func:`analytic`."""
    return np.concatenate([np.log(work["figures"]).T, table.inputs], axis=1)


def _vary(
    along: Floats, extents: Floats, columns: Columns, problem: GemmProblem, typical: GemmProblem
) -> tuple[Floats | bool, Floats | float]:
    """Replace the tiles of average groups along M or N by the average of the tiles of groups, whose rows are known only
    on average. Return for which kernels the groups differ in tiles, and the share of the rows of tiles that are
    multiplied."""
    extent = GROUPED_EXTENT[problem.batching]
    axis, average = "mn".index(extent), getattr(typical, extent)
    tile_rows, cluster_rows = columns["tile"][axis], columns["cluster_tile"][axis]
    varied: Floats | bool = True
    if problem.batching not in MASKED:
        rows = _ROWS_OF_GROUPED * average
    else:
        rows = np.minimum(_ROWS_OF_MASKED * average, getattr(problem, extent))
        tiles = np.ceil(rows / cluster_rows)
        varied = np.asarray(tiles[0] < tiles[-1])
    if axis == 1:
        along[1] = np.ceil(rows / cluster_rows).mean(axis=0)
        return varied, 1.0
    pairs = (columns["cluster_m"] == 2) & (columns["cluster_size"] == 2) & (problem.rows == "stored")
    tiles, filled = tiles_of_groups(rows, tile_rows, cluster_rows, pairs)
    along[0] = tiles.mean(axis=0)
    return varied, np.asarray(filled.mean(axis=0) / along[0])


def tiles_of_groups(rows: Floats, tile_rows: Floats, cluster_rows: Floats, pairs: Bools) -> tuple[Floats, Floats]:
    """Return the cluster tiles along M of groups of rows, and the work of the tensor cores relative to that of whole
    tiles: one of 256 rows multiplies only blocks of 64 rows with rows of the group, which saves time if the group has
    no other. With ``pairs``, clusters of two CTAs take a last tile without a pair in half as many cluster tiles."""
    whole = np.ceil(rows / cluster_rows) - 1
    rest = rows - whole * cluster_rows
    alone = pairs & (rest <= tile_rows)
    share = np.where(alone, 0.5, 1.0)
    blocks = np.where((tile_rows == SKIPPING_ROWS) & (whole == 0), SUBTILE_M, tile_rows)
    last = np.ceil(np.minimum(rest, tile_rows) / blocks) * blocks / tile_rows
    return whole + share, whole + share * last


def _slots(table: FeatureTable, gpu: Gpu) -> Floats:
    """Return how many clusters of each kernel fit the GPU."""
    columns = table.columns
    if gpu is table.gpu:
        slots: Floats = columns["slots"]
        return slots
    resident = resident_clusters(gpu).take(columns["cluster_size"])
    return np.asarray(resident if columns["ctas_per_sm"] is None else resident * columns["ctas_per_sm"])


def _add_stores(work: Columns, columns: Columns, problem: GemmProblem, gpu: Gpu) -> None:
    """Add the time of a tile from the end of its loop over K to the next tile, and the CTAs that share an SM."""
    work["store_ns"] = columns["store_ns"]
    if columns["ctas_per_sm"] is not None:
        work["sharing"] = sharing = np.minimum(columns["ctas_per_sm"], np.ceil(work["clusters"] / gpu.sms))
        work["store_ns"] = sharing * columns["storing_ns"] + columns["tile_ns"]
    if problem.d_align < TMA_ALIGN:
        work["store_ns"] = work["store_ns"] + np.where(
            problem.d_align < columns["stored_align"], columns["scattered_ns"], 0
        )


def _busiest_ns(table: FeatureTable, work: Columns, problem: GemmProblem, gpu: Gpu) -> Floats:
    """Return the nanoseconds of the busiest SM with each kernel, from its family."""
    if len(table.parts) == 1:
        ((family, members, columns),) = table.parts
        busiest_ns: Floats = family.busiest_ns(columns, work, problem, gpu)
        work["paces"] = [(members, work["paces"])]
        return busiest_ns
    busiest_ns, hidden_ns = np.empty(len(table.kernels)), np.zeros(len(table.kernels))
    paces = []
    for family, members, columns in table.parts:
        part = {name: x if isinstance(x := work[name], float) else x[members] for name in _OF_FAMILIES}
        busiest_ns[members] = family.busiest_ns(columns, part, problem, gpu)
        hidden_ns[members] = part.get("hidden_ns", 0.0)
        paces.append((members, part["paces"]))
    work["paces"], work["hidden_ns"] = paces, hidden_ns
    return busiest_ns


def _dram_bytes(columns: Columns, work: Columns, problem: GemmProblem, gpu: Gpu) -> Floats | float:
    """Return the bytes that cross DRAM: every operand once, and A and B again in each wave if they do not fit L2.

    A wave covers as many tiles as the swizzle size across the raster order, and extends along it.
    """
    inputs = problem.k * (problem.m * _bytes(problem.a_dtype) + problem.n * _bytes(problem.b_dtype)) * problem.batch
    if problem.symmetry != "general":  # B is mostly A
        inputs /= 2
    outputs = problem.m * problem.n * _output_bytes(problem) * problem.batch
    if inputs / problem.batch <= _L2_SHARE * gpu.l2_bytes:
        return inputs + outputs
    across, along = work["figures"][2:4].reshape(-1).take(columns["raster"], mode="clip") * columns["raster_cluster"]
    width = np.minimum(columns["swizzle"], across)
    length = np.minimum(np.ceil(work["active"] / width), along)
    width = np.minimum(np.maximum(width, work["active"] / length), across)
    moved: Floats = columns["across"] / length + columns["along"] / width  # per element of K of a tile
    moved *= across * along
    moved *= problem.k * problem.batch * multiplied(columns["symmetric"], problem)
    if problem.symmetry != "general":
        moved /= 2
    np.maximum(moved, inputs, out=moved)
    moved += outputs
    return moved


def _read_again(work: Columns, problem: GemmProblem) -> Floats | float:
    """Return the bytes of weights of groups that cross DRAM a second time."""
    match GROUPED_EXTENT.get(problem.batching):
        case "m":
            tiles, weights = work["figures"][2], problem.n * _bytes(problem.b_dtype)
        case "n":
            tiles, weights = work["figures"][3], problem.m * _bytes(problem.a_dtype)
        case _:
            return 0.0
    again: Floats = _READ_AGAIN * problem.batch * problem.k * weights * np.clip(tiles - 1, 0, 1)
    return again


def _part_sectors(columns: Columns, problem: GemmProblem) -> Floats | float:
    """Return the bytes that DRAM could move in the additional time of a D stored in parts of sectors."""
    added: Floats | float = columns["part_sectors"] * (problem.m * problem.n * problem.batch * _bytes(problem.d_dtype))
    return added


def _realignment_us(table: FeatureTable, problem: GemmProblem, gpu: Gpu) -> Floats:
    """Return the microseconds in which operands with less alignment than a kernel needs are copied first. Only the
    bytes count, since the launch of the kernel overlaps with the copy."""
    sizes = [(_realigned_bytes(problem, name),) for name in "abc"]
    size = np.where(table.realigned(problem), sizes, 0).sum(axis=0) * problem.batch
    l2_share = np.where(size <= _L2_SHARE * gpu.l2_bytes, _REALIGNED_KEPT, 0)
    return np.asarray((2 - l2_share) * size / gpu.dram_gbps / 1000)


def _splitting_us(problem: GemmProblem, gpu: Gpu) -> float:
    """Return the microseconds in which f32 operands are split into components first. Only the bytes count, as for
    realigned operands."""
    split = DTYPES[problem.a_dtype]
    read = 2 if split.scales_rows else 1  # to find the scales first
    moved = read * split.bytes + split.components * split.loaded.bytes  # for each element
    rows = problem.m if problem.batching == "grouped" else problem.batch * problem.m
    return (rows + problem.batch * problem.n) * problem.k * moved / gpu.dram_gbps / 1000


def _realigned_bytes(problem: GemmProblem, operand: str) -> int:
    """Return the bytes of a copy of a matrix of an operand, in sectors; 0 where there is no C."""
    if (dtype := getattr(problem, f"{operand}_dtype")) is None:
        return 0
    columns, rows = problem.extents_of(operand)
    return rows * align_up(columns * DTYPES[dtype].bits // 8, L2_SECTOR)


def _output_bytes(problem: GemmProblem) -> float:
    """Return the bytes of an element of D, plus those of C if there is one."""
    return (_bytes(problem.c_dtype) if problem.c_dtype else 0) + _bytes(problem.d_dtype)


def _bytes(dtype: DTypeName) -> float:
    return DTYPES[dtype].bits / 8


def in_words(table: FeatureTable, index: int, us: float, problem: GemmProblem, gpu: Gpu) -> str:
    """Describe the prediction for one kernel in words: its tiles, waves and bound."""
    config, work = table.config(index), analytic(table, problem, gpu)
    along_k = cluster_k(config)
    slices = table.kernels[index].slices
    clusters = f"in clusters of {config.cluster.m}x{config.cluster.n}"
    if along_k > 1:
        clusters = f"in clusters of {along_k} CTAs that share K"
    elif slices > 1:
        clusters = f"with K split {slices} ways, {clusters}"
    typical = problem.typical()
    tiles = int(work["clusters"][index] / table.columns["clusters"][index]) * config.cluster.m * config.cluster.n
    waves = int(work["waves"][index])
    useful = _utilisation(table, index, work, typical, gpu)
    rate = f"{problem.expected_flops / us / 1e6:.0f} TFLOP/s"
    if problem.batching in MASKED:
        in_use = f"{typical.m} rows" if problem.batching == "masked" else f"{typical.n} columns"
        rate += f", with {in_use} in use per masked group"
    return (
        f"{tiles} tile{'s'[: tiles > 1]} of {config.tile.m}x{config.tile.n} {clusters} take "
        f"{max(waves, 1)} wave{'s'[: waves > 1]} on {gpu.sms} SMs ({useful:.0%} utilised), bound by "
        f"{_bound(config, index, work)}: predicted {us:.1f} us ({rate})"
    )


def _utilisation(table: FeatureTable, index: int, work: Columns, problem: GemmProblem, gpu: Gpu) -> float:
    """Return the share of the SMs' waves that computes elements inside the problem."""
    config = table.config(index)
    sharing = work["sharing"] if isinstance(work["sharing"], float) else work["sharing"][index]
    ctas_per_sm = max(float(sharing), float(table.columns["counted_ctas"][index]))
    elements = problem.m * problem.n * problem.batch / (1 if problem.symmetry == "general" else 2)
    tiles = elements * float(table.columns["splits"][index]) / (config.tile.m * config.tile.n)
    return float(tiles / gpu.sms / (max(work["waves"][index], 1) * ctas_per_sm))


def _bound(config: GemmConfig, index: int, work: Columns) -> str:
    """Return what bounds a kernel."""
    sm_ns, dram_ns, power_ns = float(work["sm_ns"][index]), float(work["dram_ns"][index]), work["power_ns"]
    power_ns = power_ns if isinstance(power_ns, float) else float(power_ns[index])
    if sm_ns < max(dram_ns, power_ns):
        return "DRAM" if dram_ns >= power_ns else "power"
    if work["store_ns"][index] * work["waves"][index] > _STORES_SEEN * sm_ns:
        return "epilogue"
    first, paces = next((x.start, paces) for x, paces in work["paces"] if x.start <= index < x.stop)
    names = FAMILIES[config.family].multiplies_by, "L2 loads", "load latency"
    values = [pace if isinstance(pace, float) else float(pace[index - first]) for pace in paces]
    return names[values.index(max(values))]

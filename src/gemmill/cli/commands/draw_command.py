"""draw: a picture of how a kernel works."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from gemmill.cli import output
from gemmill.cli.app import app
from gemmill.cli.options import (
    Kernel,
    ProblemLine,
    Sizes,
    gpu_option,
    kernel,
    output_file,
    read_problem,
    refuse_overwriting,
)
from gemmill.cli.output import UsageError, usage
from gemmill.emitters.emit import facts
from gemmill.library.anatomy import kernel_page, sheet
from gemmill.library.anatomy.raster import Waves
from gemmill.library.arch import DEFAULT_GPU, Gpu
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import kernel_name, parse_name
from gemmill.library.errors import GemmillError, ProblemError
from gemmill.library.families.families import plan_of
from gemmill.library.files import ending, publish
from gemmill.library.input.group_sizes import checked_sizes, sizes_of
from gemmill.library.occupancy import Occupancy

_FORMS = {".svg": kernel_page.as_svg, ".html": kernel_page.as_html}


@app.command(has_json=False)
def draw(
    name: Kernel,
    to: Annotated[Path, output_file("Write the picture to this .svg or .html file.")],
    problem: ProblemLine = None,
    gpu: Annotated[
        Gpu | None,
        gpu_option("With --problem: show the waves on this GPU, such as H200, H100 or H100-PCIe. Default: H200."),
    ] = None,
    sizes: Sizes = None,
) -> None:
    """Draw how a kernel works, as SVG or HTML.

    The picture shows the tile, shared memory, the fragments that each thread holds, the epilogue, warp roles, raster
    order and the loop over K. No GPU is needed. The CTAs that an SM holds are those of the compiled kernel; if it is
    neither in the store nor can be compiled, they are assumed. With --problem, the picture also shows the order of the
    output tiles, the waves on the GPU of --gpu, and the loss in the last wave; in HTML a slider steps through the
    tiles. HTML files need no network.

    \b
    Examples:
      gemmill draw sm90a_bf16k16_bf16k16_f32_none_bf16n16_128x256x64_2x1_cooperative_s4_m8_k1_linear -o kernel.svg
      gemmill draw KERNEL --problem "8192x8192x4096 bf16 tn" -o kernel.html
    """
    if ending(to) not in _FORMS:
        raise UsageError(f"the file name {to} must end in .svg or .html")
    refuse_overwriting([to], [name])
    config = kernel(name)
    launch, _ = facts(config)
    config = parse_name(kernel_name(config))
    if problem is None and sizes is not None:
        raise UsageError("--sizes needs a problem with groups; pass --problem TEXT")
    waves = None if problem is None else _waves(config, problem, gpu or DEFAULT_GPU, sizes)
    occupancy = _occupancy(config)
    drawn = sheet.Kernel(kernel_name(config), plan_of(config), launch, occupancy)
    waves = waves and waves.sharing_sms(occupancy.ctas)
    publish(to, [_FORMS[ending(to)](drawn, waves).encode()])


def _occupancy(config: GemmConfig) -> Occupancy:
    """How many CTAs of a kernel an SM holds: from its cubin, or assumed if it cannot be compiled here."""
    from gemmill.runtime.kernel_occupancy import assumed_occupancy, occupancy_of
    from gemmill.runtime.registry import Registry

    try:
        return occupancy_of(Registry(manifests=[]).get(config))
    except GemmillError as error:
        output.complain(f"the CTAs an SM are assumed, because the kernel is not compiled: {error}")
        return assumed_occupancy(config, "the kernel is not compiled")


def _waves(config: GemmConfig, text: str, gpu: Gpu, sizes: str | None) -> Waves:
    """How the clusters of a kernel fill a GPU on a problem, if an SM holds one CTA; UnsupportedProblemError if the
    kernel cannot run it."""
    from gemmill.runtime.select.waves import waves_of

    problem = read_problem(text)
    with usage(ProblemError):
        of_groups = sizes_of(problem, checked_sizes(problem, sizes))
    return waves_of(config, problem, gpu, of_groups)

"""The driver, the GPUs, and what is chosen by for them."""

from __future__ import annotations

from collections.abc import Iterator

from gemmill.library.arch import ARCHS, serving
from gemmill.library.errors import DeviceError, RecordError
from gemmill.library.extras import install
from gemmill.runtime import driver
from gemmill.runtime.health.finding import Finding
from gemmill.runtime.health.packages import version
from gemmill.runtime.registry import Registry
from gemmill.runtime.select.models import origin


def gpus() -> Iterator[Finding]:
    """The driver, and every GPU that it shows."""
    try:
        cuda = driver.cuda_version()
        count = driver.device_count()
    except DeviceError as error:
        yield Finding("GPU", "missing", "kernels cannot run here; compiling needs none", str(error))
        return
    bindings = (version("cuda-bindings") or "").partition(".")[0]
    if bindings.isdecimal() and int(bindings) > cuda[0]:
        detail = f"runs CUDA {cuda[0]}.{cuda[1]}; cuda-bindings is {bindings}"
        yield Finding("driver", "wrong", detail, f"a newer driver, or {install(f'cu{cuda[0]}')}")
    else:
        yield Finding("driver", "ok", f"runs CUDA {cuda[0]}.{cuda[1]}")
    if count == 0:
        yield Finding("GPU", "missing", "the driver shows none; kernels cannot run here, compiling needs none")
    for device in range(count):
        name, capability = driver.device_name(device), driver.capability(device)
        detail = f"{name}, compute capability {capability[0]}.{capability[1]}"
        if serving(capability):
            yield Finding(f"GPU {device}", "ok", detail)
        else:
            needed = ", ".join(f"{major}.{minor}" for major, minor in sorted({a.capability for a in ARCHS.values()}))
            yield Finding(f"GPU {device}", "missing", detail, f"kernels need compute capability {needed}")


def model() -> Finding:
    """What kernels are chosen by."""
    try:
        return Finding("model", "ok", origin(Registry(manifests=[]).gpu))
    except RecordError as error:
        return Finding("model", "wrong", "GEMMILL_MODEL names none of this GPU", str(error))

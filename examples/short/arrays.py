"""Matrix products without PyTorch, on memory of the CUDA driver with `__cuda_array_interface__`.

    python examples/short/arrays.py

Needs a GPU and NumPy. You can pass arrays of CuPy, Numba and JAX directly, since they have this interface or
`__dlpack__`. gemmill allocates D if A is an array of PyTorch or CuPy; for other arrays, pass `out`.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
from cuda.bindings import driver

import gemmill


def check(answer: tuple[Any, ...]) -> Any:
    """The result of a driver call; RuntimeError if it failed."""
    if answer[0]:
        raise RuntimeError(answer[0])
    return answer[1] if len(answer) > 1 else None


class Matrix:
    """A row-major matrix in GPU memory, as a C++ program would allocate it."""

    def __init__(self, values: np.ndarray[Any, Any]) -> None:
        self.values = values
        self.address = int(check(driver.cuMemAlloc(values.nbytes)))
        check(driver.cuMemcpyHtoD(self.address, values.ctypes.data, values.nbytes))
        self.__cuda_array_interface__ = {
            "version": 3,
            "shape": values.shape,
            "strides": None,  # row-major
            "typestr": values.dtype.str,
            "data": (self.address, False),  # not read-only
        }

    def read(self) -> np.ndarray[Any, Any]:
        """Copy the matrix to the host."""
        check(driver.cuMemcpyDtoH(self.values.ctypes.data, self.address, self.values.nbytes))
        return self.values


check(driver.cuInit(0))
check(driver.cuCtxSetCurrent(check(driver.cuDevicePrimaryCtxRetain(check(driver.cuDeviceGet(0))))))
draw = np.random.default_rng(0)
a, b = (draw.integers(-3, 4, shape).astype(np.float16) for shape in ((512, 256), (256, 768)))
wanted = a.astype(np.float32) @ b.astype(np.float32)  # exact: small integers
left, right, d = Matrix(a), Matrix(b), Matrix(np.zeros((512, 768), np.float16))

gemmill.matmul(left, right, out=d)  # on the legacy default stream, or on `stream=`
check(driver.cuCtxSynchronize())
print("driver memory:", "correct" if (same := np.array_equal(d.read(), wanted)) else "wrong result")
assert same

if find_spec("cupy"):
    import cupy

    made = gemmill.matmul(cupy.asarray(left), cupy.asarray(right))  # views of the same memory; D is a CuPy array
    cupy.cuda.runtime.deviceSynchronize()
    print("CuPy:", type(made).__name__, made.shape)
    assert np.array_equal(cupy.asnumpy(made), wanted)
else:
    print("CuPy is not installed; you can pass its arrays in the same way")

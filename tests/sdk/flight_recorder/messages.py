"""Messages of real allocators, and texts that are no out-of-memory errors.

The messages are those that the sources of PyTorch 2.6 to 2.15 (c10/core/impl/alloc_cpu.cpp,
c10/cuda and c10/xpu CachingAllocator, ATen/mps/MPSAllocator, ATen/cuda/Exceptions), jaxlib and
cupy format, with the numbers of reported failures. Those of the CPU, of numpy and of Python are
also provoked by `test_real_errors.py`.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Message(NamedTuple):
    """A message, and what is known from it."""

    text: str
    reason: str
    backend: str | None
    requested_bytes: int | None
    requested: str | None = None
    device_id: int | None = None


KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
_CPU = "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: "

RUNTIME_ERRORS = [
    Message(
        _CPU + "you tried to allocate 4611686018427387904 bytes. Error code 12 (Cannot allocate"
        " memory)", "DefaultCPUAllocator", "cpu", 1 << 62,
    ),
    Message(
        "[enforce fail at CPUAllocator.cpp:65] . DefaultCPUAllocator: can't allocate memory: you"
        " tried to allocate 4000000000000000 bytes. Error code 12 (Cannot allocate memory)",
        "DefaultCPUAllocator", "cpu", 4_000_000_000_000_000,
    ),
    Message(
        "[enforce fail at alloc_cpu.cpp:114] data. DefaultCPUAllocator: not enough memory: you"
        " tried to allocate 3600000000 bytes.", "DefaultCPUAllocator", "cpu", 3_600_000_000,
    ),
    Message(
        "Caught RuntimeError in DataLoader worker process 0.\nOriginal Traceback (most recent call"
        " last):\n  File \"worker.py\", line 308, in _worker_loop\n    fetcher.fetch(index)\n"
        f"RuntimeError: {_CPU}you tried to allocate 640 bytes. Error code 12 (Cannot allocate"
        " memory)\n", "DefaultCPUAllocator", "cpu", 640,
    ),
    Message(
        "unable to mmap 320 bytes from file </torch_6031_1290481297_0>: Cannot allocate memory"
        " (12)", "mmap", "cpu", 320,
    ),
    Message(
        "unable to allocate shared memory(shm) for file </torch_93_38_4>: No space left on device"
        " (28)", "shared memory", "cpu", None,
    ),
    Message(
        "CUDA out of memory. Tried to allocate 344.00 MiB. GPU 0 has a total capacity of 139.81 GiB"
        " of which 2.00 MiB is free. Process 3131906 has 139.80 GiB memory in use.",
        "CUDA out of memory", "cuda", 344 * MIB, "344.00 MiB", 0,
    ),
    Message(
        "CUDA out of memory. Tried to allocate 2.50 GiB (GPU 3; 15.78 GiB total capacity; 12.10 GiB"
        " already allocated; 1.90 GiB free; 12.50 GiB reserved in total by PyTorch)",
        "CUDA out of memory", "cuda", 2560 * MIB, "2.50 GiB", 3,
    ),
    Message(
        "HIP out of memory. Tried to allocate 76.00 MiB. GPU 1 has a total capacity of 287.98 GiB"
        " of which 0 bytes is free.", "HIP out of memory", "cuda", 76 * MIB, "76.00 MiB", 1,
    ),
    Message(
        "XPU out of memory. Tried to allocate 4.66 GiB. GPU 0 has a total capacity of 5.65 GiB of"
        " which 5.65 GiB is free.", "XPU out of memory", "xpu", 5003636899, "4.66 GiB", 0,
    ),
    Message(
        "NPU out of memory. Tried to allocate 512 bytes (NPU 0; 60.97 GiB total capacity)",
        "NPU out of memory", "npu", 512,
    ),
    Message(
        "MPS backend out of memory (MPS allocated: 6.04 GB, other allocations: 1.04 GB, max"
        " allowed: 6.77 GB). Tried to allocate 459.07 MB on private pool. Use"
        " PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory allocations (may"
        " cause system failure).", "MPS backend out of memory", "mps", 481369784, "459.07 MB",
    ),
    Message(
        "MPS backend out of memory (MPS allocated: 0 bytes, other allocations: 448.00 KiB, max"
        " allowed: 242.48 MiB). Tried to allocate 256 bytes on shared pool.",
        "MPS backend out of memory", "mps", 256,
    ),
    Message("Invalid buffer size: 74.51 GiB", "Invalid buffer size", "mps", 80004503306,
            "74.51 GiB"),
    Message(
        "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some"
        " other API call, so the stacktrace below might be incorrect.",
        "CUDA error: out of memory", "cuda", None,
    ),
    Message("CUDA driver error: out of memory", "CUDA error: out of memory", "cuda", None),
    Message("HIP error: out of memory\nHIP kernel errors might be", "HIP error: out of memory",
            "cuda", None),
    Message(
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "CUBLAS_STATUS_ALLOC_FAILED", "cuda", None,
    ),
    Message(
        "CUDA error: HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate(handle)`",
        "HIPBLAS_STATUS_ALLOC_FAILED", "cuda", None,
    ),
    Message("cuDNN error: CUDNN_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED", "cuda", None),
    Message(
        "cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`",
        "CUSOLVER_STATUS_ALLOC_FAILED", "cuda", None,
    ),
    Message("cuFFT error: CUFFT_ALLOC_FAILED", "CUFFT_ALLOC_FAILED", "cuda", None),
    Message(
        "The following operation failed in the TorchScript interpreter.\nTraceback of TorchScript"
        " (most recent call last):\n    c = torch.bmm(a, b)\n        ~~~~~~~~~ <--- HERE\n"
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"
        " `cublasCreate(handle)`\n", "CUBLAS_STATUS_ALLOC_FAILED", "cuda", None,
    ),
    Message(
        "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.hpp:268, unhandled cuda"
        " error (run with NCCL_DEBUG=INFO for details), NCCL version 2.19.3\nncclUnhandledCudaError"
        ": Call to CUDA function failed.\nLast error:\nCuda failure 'out of memory'",
        "NCCL: out of memory", "cuda", None,
    ),
    Message(
        "Native API failed. Native API returns: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)",
        "UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY", "xpu", None,
    ),
    Message(
        "level_zero backend failed with error: 38 (UR_RESULT_ERROR_OUT_OF_HOST_MEMORY)",
        "UR_RESULT_ERROR_OUT_OF_HOST_MEMORY", "xpu", None,
    ),
    Message(
        "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 21474836480 bytes.",
        "RESOURCE_EXHAUSTED", None, 20 * GIB,
    ),
]  # fmt: skip
"""Messages of plain RuntimeErrors; torch raises those of CUDA, ROCm and XPU with its own type."""

OF_TORCHS_TYPE = [
    Message(
        "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 16.00 GiB"
        " of which 9.50 GiB is free.", "torch.OutOfMemoryError", "cuda", 20 * GIB, "20.00 GiB", 0,
    ),
    Message(
        "CUDA out of memory. Allocation was preemptively rejected because it would exceed"
        " per_process_memory_fraction limit. Requested size: 1.50 MiB. Limit: 2.00 GiB",
        "torch.OutOfMemoryError", "cuda", 1536 * KIB, "1.50 MiB",
    ),
    Message("CUDA out of memory. Tried to allocate more than 1EB memory.",
            "torch.OutOfMemoryError", "cuda", None),
    Message("Allocation on device 1", "torch.OutOfMemoryError", None, None, None, 1),
]  # fmt: skip

MEMORY_ERRORS = [
    Message("", "MemoryError", "cpu", None),
    Message("std::bad_alloc", "MemoryError", "cpu", None),
    Message("the model needs too much", "MemoryError", "cpu", None),
]

NOT_OUT_OF_MEMORY: list[tuple[type[Exception], str]] = [
    (ValueError, "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has"),
    (Exception, "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has"),
    (RuntimeError, "queue out of memory slots"),
    (RuntimeError, "the caption cache is out of memory slots"),
    (RuntimeError, "out of memory"),
    (RuntimeError, "CUDA out of memory"),
    (RuntimeError, "CUDA out of memory slots: 3 of 3 in use"),
    (RuntimeError, "retrying after CUDA out of memory. Tried to allocate 2.00 GiB"),
    (RuntimeError, "Job failed (CUDA error: out of memory)"),
    (RuntimeError, "cuda out of memory. tried to allocate 2.00 gib"),
    (RuntimeError, "failed to allocate a worker"),
    (RuntimeError, "resource exhausted: too many requests"),
    (RuntimeError, "RESOURCE_EXHAUSTED: quota exceeded"),
    (RuntimeError, "allocation failed for tenant 7"),
    (RuntimeError, "you tried to allocate 7 bytes"),
    (RuntimeError, "DefaultCPUAllocator: can't allocate memory"),
    (RuntimeError, "CUBLAS_STATUS_ALLOC_FAILED is documented in the manual"),
    (RuntimeError, "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"),
    (RuntimeError, "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED"),
    (RuntimeError, "CUDA error: an illegal memory access was encountered"),
    (RuntimeError, "Native API failed. Native API returns: 20 (UR_RESULT_ERROR_DEVICE_LOST)"),
    (RuntimeError, "level_zero backend failed with error: 40 (UR_RESULT_ERROR_OUT_OF_RESOURCES)"),
    (RuntimeError, "Storage size calculation overflowed with sizes=[4611686018427387904, 4]"),
    (RuntimeError, "Invalid buffer size: 74.51 GiB is more than the model may use"),
    (RuntimeError, "MPS backend out of memory"),
    (OSError, "Cannot allocate memory"),
    (KeyError, "MemoryError"),
]


def facts(message: Message) -> dict[str, Any]:
    """Everything but the text."""
    return {name: value for name, value in message._asdict().items() if name != "text"}

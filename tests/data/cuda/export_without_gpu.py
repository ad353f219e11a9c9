"""Export CUDA programs for the fake driver on a machine without a GPU.

    PYTHONPATH=EXPORTERS/1.4.1:EXPORTERS/common export_without_gpu.py OUT NAME_1.4.1...

The programs and folders are those of export_goldens.py. Everything in a program is the exporter's
own work but the library: that is compiled for the CPU, and only its head is kept, since the tests
put a small model in its place.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import export_goldens

sys.path.insert(0, str(export_goldens.TESTS.parent / "native" / "tests" / "cuda"))

import make_fake_programs

ELF_HEADER = 64


def compile_for_the_cpu() -> None:
    """Let the CUDA backend of the exporter on the path use the host's compiler and no Triton."""
    from executorch.backends.cuda.cuda_backend import CudaBackend

    options_of = CudaBackend.get_aoti_compile_options.__func__

    def options(cls: Any, specs: Any) -> dict[str, Any]:
        needs_a_gpu = (
            "max_autotune",
            "aot_inductor.emit_multi_arch_kernel",
            "aot_inductor.embed_kernel_binary",
        )
        return {**options_of(cls, specs), **dict.fromkeys(needs_a_gpu, False)}

    class Everything(dict[str, Any]):
        def __contains__(self, key: object) -> bool:
            return True

    CudaBackend.get_device_name = classmethod(lambda cls: "cpu")
    CudaBackend.get_aoti_compile_options = classmethod(options)
    CudaBackend.get_custom_passes = classmethod(lambda cls, specs: [])
    CudaBackend.get_supported_fallback_kernels = classmethod(lambda cls: Everything())


def empty_libraries(program: Path) -> None:
    """Zeros behind the head of each library, which says how long it is."""
    data = bytearray(program.read_bytes())
    for at in make_fake_programs.libraries(bytes(data)):
        size = make_fake_programs.original_size(bytes(data), at)
        data[at + ELF_HEADER : at + size] = bytes(size - ELF_HEADER)
    program.write_bytes(data)


def main() -> None:
    """Export the named programs."""
    out = Path(sys.argv[1])
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(out.resolve() / "cache"))
    compile_for_the_cpu()
    for name in sys.argv[2:]:
        folder = out / name
        export_goldens.export(*name.rsplit("_", 1), folder)
        empty_libraries(folder / "model.pte")
        for data in folder.glob("aoti_cpu_blob.ptd"):
            data.rename(folder / "aoti_cuda_blob.ptd")
        print(name)


if __name__ == "__main__":
    main()

#include "core/registry.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bind.h"
#include "core/cpu_count.h"
#include "core/cuda_library.h"
#include "core/fork.h"
#include "core/memory_limit.h"
#include "core/threadpool.h"
#include "method.h"
#include "python.h"
#include "result.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace pteron::python {

void bind_registry(nb::module_& m) {
  m.def("operator_names", operator_names, "The operators that kernels are registered for.");
  m.def("backend_names", backend_names, "The registered backends.");
  m.def("is_backend_available", is_backend_available, "backend"_a,
        "Whether a backend is registered and can run here.");
  m.def(
      "cuda_driver",
      [] {
        const char* text = nullptr;
        cuda::check(cuda::api().driver_text(&text), "ask for the driver");
        return std::string(text);
      },
      "Version and file of the CUDA driver; DeviceError says why there is none.");
  m.def(
      "cuda_devices",
      [] {
        std::vector<std::string> names;
        int32_t count = 0;
        cuda::check(cuda::api().device_count(&count), "count the devices");
        for (int32_t i = 0; i < count; ++i) {
          const char* text = nullptr;
          cuda::check(cuda::api().device_text(i, &text), "ask for the device's name");
          names.emplace_back(text);
        }
        return names;
      },
      "Names of the CUDA devices; DeviceError says why there are none.");
  m.def("available_cpus", available_cpus, "root"_a = "",
        "The processors that this process may use: its CPU set, and the quota of its cgroup.");
  m.def("num_threads", num_threads, "Threads of the pool that kernels and XNNPACK share.");
  m.def(
      "set_num_threads",
      [](int64_t count) {
        const NoGil released;
        CallScope scope;
        set_num_threads(count);
      },
      "count"_a, "Set the number of threads of the pool.");
  m.def("memory_limit", memory_limit, "Bytes that a program may ask for at a time.");
  m.def("set_memory_limit", set_memory_limit, "nbytes"_a);
  m.def("default_memory_limit", default_memory_limit, "root"_a = "",
        "Bytes of the machine or of the control group; `root` stands before the system's paths.");
  m.def(
      "set_fork_patience",
      [](double seconds) {
        set_fork_patience(std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000)));
      },
      "seconds"_a, "How long fork() waits for runs of other threads to end.");
  m.def(
      "result_from_bytes",
      [](const std::string& dtype, const std::vector<int64_t>& shape, nb::bytes data) {
        const int number = dtype_from_name(dtype);
        uint64_t numel = 1;
        for (int64_t size : shape) {
          if (size < 0 || __builtin_mul_overflow(numel, static_cast<uint64_t>(size), &numel)) {
            numel = UINT64_MAX;
            break;
          }
        }
        uint64_t nbytes = 0;
        if (number < 0 || shape.size() > kMaxRank ||
            __builtin_mul_overflow(numel, itemsize(static_cast<DType>(number)), &nbytes) ||
            nbytes != data.size()) {
          throw nb::value_error("not the bytes of a result of this dtype and shape");
        }
        const TensorView view{.data = const_cast<void*>(data.data()),
                              .shape = shape.data(),
                              .ndim = static_cast<int>(shape.size()),
                              .dtype = static_cast<DType>(number)};
        TensorRef block = copy_of(view);
        if (!block) throw std::bad_alloc();
        return nb::steal(checked(new_result(std::move(block))));
      },
      "dtype"_a, "shape"_a, "data"_a,
      nb::sig("def result_from_bytes(dtype: str, shape: Sequence[int], data: bytes) -> "
              "ExecuTorchResult"),
      "The result that was pickled.");
  m.def(
      "set_output_mode", [](int mode) { output_mode = mode; }, "mode"_a,
      "0: torch tensors out when torch tensors came in; 1: results; 2: torch tensors.");
  m.def(
      "dtypes",
      [] {
        std::vector<std::pair<const char*, size_t>> rows;
        for (const DTypeInfo& row : kDTypes) rows.emplace_back(row.name, row.itemsize);
        return rows;
      },
      "Name and bytes of each element type, at the index of its number in program files.");
  m.def("output_mode", [] { return output_mode; }, "What set_output_mode was given.");
}

}  // namespace pteron::python

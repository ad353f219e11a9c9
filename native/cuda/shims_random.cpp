// Shims of sampling: random numbers and sorting. They run on the host and copy; a graph calls them
// once a run for a few seeds, or for small rows of scores.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <mutex>
#include <numeric>
#include <random>
#include <vector>

#include "context.h"
#include "memory.h"
#include "shims.h"
#include "stream.h"
#include "strided_copy.h"

namespace pteron::cuda {

namespace {

// One generator for the process, seeded by the system.
uint64_t random_bits() {
  static std::mutex mutex;
  static std::mt19937_64 generator = [] {
    std::random_device device;
    std::seed_seq seed{device(), device(), device(), device(), device(), device()};
    return std::mt19937_64(seed);
  }();
  std::lock_guard lock(mutex);
  return generator();
}

std::unique_ptr<Tensor> host_like(const Tensor& tensor) {
  return Tensor::empty({}, tensor.dtype(), tensor.sizes(), {});
}

Stream stream_of(const Tensor& tensor) {
  return tensor.place().on_device ? current_stream(tensor.place().index) : nullptr;
}

template <typename T>
void fill_integers(T* out, int64_t count, int64_t low, uint64_t range) {
  for (int64_t i = 0; i < count; ++i) {
    // Multiply-shift maps 64 random bits to the range without a visible bias.
    const auto scaled = static_cast<unsigned __int128>(random_bits()) * range >> 64;
    out[i] = static_cast<T>(static_cast<uint64_t>(low) + static_cast<uint64_t>(scaled));
  }
}

uint16_t to_bfloat16(float value) {
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
}

// For values in [0, 1) that are multiples of 2^-11: exact.
uint16_t to_float16(float value) {
  if (value == 0.0F) return 0;
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const int exponent = static_cast<int>(bits >> 23) - 127;
  const uint32_t mantissa = bits & 0x7FFFFFU;
  if (exponent >= -14) {
    return static_cast<uint16_t>((static_cast<uint32_t>(exponent + 15) << 10) | (mantissa >> 13));
  }
  return static_cast<uint16_t>((mantissa | 0x800000U) >> (13 - 14 - exponent));
}

// Uniform in [0, 1), as many bits as the type holds exactly.
void fill_uniform(const Tensor& host) {
  void* data = host.data();
  for (int64_t i = 0; i < host.numel(); ++i) {
    const uint64_t bits = random_bits();
    switch (host.dtype()) {
      case DType::Float32:
        static_cast<float*>(data)[i] = static_cast<float>(bits >> 40) * 0x1p-24F;
        break;
      case DType::Float64:
        static_cast<double*>(data)[i] = static_cast<double>(bits >> 11) * 0x1p-53;
        break;
      case DType::Float16:
        static_cast<uint16_t*>(data)[i] = to_float16(static_cast<float>(bits >> 53) * 0x1p-11F);
        break;
      case DType::BFloat16:
        static_cast<uint16_t*>(data)[i] = to_bfloat16(static_cast<float>(bits >> 56) * 0x1p-8F);
        break;
      default:
        throw Failure(
            ErrorCode::NotSupported,
            std::string("the model draws random numbers of type ") + info(host.dtype()).name);
    }
  }
}

float half_value(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000U) << 16;
  const uint32_t exponent = (bits >> 10) & 31U;
  const uint32_t mantissa = bits & 1023U;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000U | (mantissa << 13));
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float tiny = static_cast<float>(mantissa) * 0x1p-24F;
  return sign != 0 ? -tiny : tiny;
}

float bfloat_value(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// Sorts every row of the last dimension; NaN counts as the largest value, as in torch.
template <typename T, typename Value>
void sort_rows(T* values, int64_t* indices, int64_t rows, int64_t width, bool descending,
               Value&& value) {
  std::vector<T> row(static_cast<size_t>(width));
  for (int64_t r = 0; r < rows; ++r, values += width, indices += width) {
    std::copy_n(values, width, row.begin());
    std::iota(indices, indices + width, 0);
    auto less = [&](int64_t a, int64_t b) {
      const auto x = value(row[static_cast<size_t>(a)]);
      const auto y = value(row[static_cast<size_t>(b)]);
      if (x != x) return false;
      return x < y || y != y;
    };
    std::stable_sort(indices, indices + width,
                     [&](int64_t a, int64_t b) { return descending ? less(b, a) : less(a, b); });
    for (int64_t i = 0; i < width; ++i) values[i] = row[static_cast<size_t>(indices[i])];
  }
}

void sort_tensor(const Tensor& values, const Tensor& indices, bool descending) {
  const int64_t width = values.ndim() == 0 ? 1 : values.sizes().back();
  const int64_t rows = width == 0 ? 0 : values.numel() / width;
  auto* order = static_cast<int64_t*>(indices.data());
  auto same = [](auto v) { return v; };
  void* data = values.data();
  auto sort = [&]<typename T>(T* typed, auto&& value) {
    sort_rows(typed, order, rows, width, descending, value);
  };
  switch (values.dtype()) {
    case DType::UInt8:
      return sort(static_cast<uint8_t*>(data), same);
    case DType::Int8:
      return sort(static_cast<int8_t*>(data), same);
    case DType::Int16:
      return sort(static_cast<int16_t*>(data), same);
    case DType::Int32:
      return sort(static_cast<int32_t*>(data), same);
    case DType::Int64:
      return sort(static_cast<int64_t*>(data), same);
    case DType::Float32:
      return sort(static_cast<float*>(data), same);
    case DType::Float64:
      return sort(static_cast<double*>(data), same);
    case DType::Bool:
      return sort(static_cast<uint8_t*>(data), same);
    case DType::Float16:
      return sort(static_cast<uint16_t*>(data), half_value);
    case DType::BFloat16:
      return sort(static_cast<uint16_t*>(data), bfloat_value);
    default:
      throw Failure(ErrorCode::NotSupported,
                    std::string("the model sorts a tensor of type ") + info(values.dtype()).name);
  }
}

// The tensor with dimension `dim` moved to the end: a view.
std::unique_ptr<Tensor> with_last(const Tensor& tensor, size_t dim) {
  std::vector<int64_t> sizes(tensor.sizes().begin(), tensor.sizes().end());
  std::vector<int64_t> strides(tensor.strides().begin(), tensor.strides().end());
  if (!sizes.empty()) {
    const auto at = static_cast<ptrdiff_t>(dim);
    std::rotate(sizes.begin() + at, sizes.begin() + at + 1, sizes.end());
    std::rotate(strides.begin() + at, strides.begin() + at + 1, strides.end());
  }
  return tensor.view(tensor.dtype(), sizes, strides, tensor.offset());
}

}  // namespace

PTERON_SHIM int32_t aoti_torch_cuda_randint_low_out(Tensor* out, int64_t low, int64_t high,
                                                    const int64_t* /*size*/, int64_t /*size_len*/) {
  return shim([&] {
    const Tensor& target = ref(out);
    if (high <= low) throw Failure(ErrorCode::InvalidArgument, "randint: an empty range");
    const uint64_t range = static_cast<uint64_t>(high) - static_cast<uint64_t>(low);
    auto host = host_like(target);
    switch (target.dtype()) {
      case DType::Int64:
        fill_integers(static_cast<int64_t*>(host->data()), host->numel(), low, range);
        break;
      case DType::Int32:
        fill_integers(static_cast<int32_t*>(host->data()), host->numel(), low, range);
        break;
      default:
        throw Failure(ErrorCode::NotSupported,
                      std::string("the model draws integers of type ") + info(target.dtype()).name);
    }
    copy_tensor(target, *host, stream_of(target));
  });
}

PTERON_SHIM int32_t aoti_torch_cuda_rand(const int64_t* size, int64_t size_len,
                                         const int32_t* dtype, const int32_t* /*layout*/,
                                         const int32_t* /*device*/, int32_t device_index,
                                         const int32_t* /*pin_memory*/, Tensor** out) {
  return shim([&] {
    const DType type = dtype != nullptr ? checked_dtype(*dtype) : DType::Float32;
    auto result =
        Tensor::empty(checked_place(kDeviceTypeCuda, device_index), type, dims(size, size_len), {});
    auto host = host_like(*result);
    fill_uniform(*host);
    copy_tensor(*result, *host, stream_of(*result));
    *out = result.release();
  });
}

PTERON_SHIM int32_t aoti_torch_cuda_sort_stable(Tensor* self, const int32_t* /*stable*/,
                                                int64_t dim, int32_t descending, Tensor** values,
                                                Tensor** indices) {
  return shim([&] {
    const Tensor& input = ref(self);
    const auto ndim = static_cast<int64_t>(input.ndim());
    const int64_t limit = ndim == 0 ? 1 : ndim;
    if (dim < -limit || dim >= limit) {
      throw Failure(ErrorCode::InvalidArgument, "sort: no such dimension");
    }
    const auto axis = static_cast<size_t>(dim < 0 ? dim + limit : dim);
    const auto moved = with_last(input, axis);
    const auto host_values = host_like(*moved);
    const auto host_indices = Tensor::empty({}, DType::Int64, moved->sizes(), {});
    copy_tensor(*host_values, *moved, stream_of(input));
    sort_tensor(*host_values, *host_indices, descending != 0);
    auto out_values = Tensor::empty(input.place(), input.dtype(), input.sizes(), {});
    auto out_indices = Tensor::empty(input.place(), DType::Int64, input.sizes(), {});
    copy_tensor(*with_last(*out_values, axis), *host_values, stream_of(input));
    copy_tensor(*with_last(*out_indices, axis), *host_indices, stream_of(input));
    *values = out_values.release();
    *indices = out_indices.release();
  });
}

}  // namespace pteron::cuda

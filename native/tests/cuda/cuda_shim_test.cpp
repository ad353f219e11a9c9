// The shims, called as a model library calls them, over the fake driver.
#include <algorithm>
#include <thread>

#include "cuda_unit_test.h"

namespace pteron::testing {

extern "C" {
int32_t aoti_torch_create_tensor_from_blob(void*, int64_t, const int64_t*, const int64_t*, int64_t,
                                           int32_t, int32_t, int32_t, Tensor**);
int32_t aoti_torch_empty_strided(int64_t, const int64_t*, const int64_t*, int32_t, int32_t, int32_t,
                                 Tensor**);
int32_t aoti_torch_delete_tensor_object(Tensor*);
int32_t aoti_torch_new_tensor_handle(Tensor*, Tensor**);
int32_t aoti_torch__reinterpret_tensor(Tensor*, int64_t, const int64_t*, const int64_t*, int64_t,
                                       Tensor**);
int32_t aoti_torch_get_storage_offset(Tensor*, int64_t*);
int32_t aoti_torch_clone(Tensor*, Tensor**);
int32_t aoti_torch_clone_preserve_strides(Tensor*, Tensor**);
int32_t aoti_torch_copy_(Tensor*, Tensor*, int32_t);
int32_t aoti_torch_zero_(Tensor*);
int32_t aoti_torch_item_int64(Tensor*, int64_t*);
int32_t aoti_torch_item_bool(Tensor*, bool*);
int32_t aoti_torch_scalar_to_tensor_float64(double, Tensor**);
int32_t aoti_torch_cuda_randint_low_out(Tensor*, int64_t, int64_t, const int64_t*, int64_t);
int32_t aoti_torch_cuda_rand(const int64_t*, int64_t, const int32_t*, const int32_t*,
                             const int32_t*, int32_t, const int32_t*, Tensor**);
int32_t aoti_torch_cuda_sort_stable(Tensor*, const int32_t*, int64_t, int32_t, Tensor**, Tensor**);
int32_t aoti_torch_create_cuda_stream_guard(void*, int32_t, void**);
int32_t aoti_torch_delete_cuda_stream_guard(void*);
int32_t aoti_torch_get_current_cuda_stream(int32_t, void**);
void aoti_torch_check(bool, const char*, const char*, uint32_t, const char*);
int cudaMalloc(void**, size_t);
int cudaFree(void*);
int cudaMemcpy(void*, const void*, size_t, int);
int cudaGetLastError();
int cudaSetDevice(int);
int cudaGetDevice(int*);
const char* cudaGetErrorString(int);
}

TEST(shim_tensors) {
  const Clean clean;
  const int64_t sizes[] = {2, 3};
  const int64_t strides[] = {3, 1};
  Tensor* a = nullptr;
  EXPECT(aoti_torch_empty_strided(2, sizes, strides, 6, 1, 0, &a) == 0);
  Tensor* b = nullptr;
  EXPECT(aoti_torch_new_tensor_handle(a, &b) == 0 && b->data() == a->data());
  Tensor* row = nullptr;
  EXPECT(aoti_torch__reinterpret_tensor(a, 1, sizes + 1, strides + 1, 2, &row) == 0);
  Tensor* inner = nullptr;
  const int64_t one[] = {1};
  EXPECT(aoti_torch__reinterpret_tensor(row, 1, one, one, 1, &inner) == 0);
  int64_t offset = 0;
  EXPECT(aoti_torch_get_storage_offset(inner, &offset) == 0 && offset == 3);
  Tensor* outside = nullptr;
  EXPECT(aoti_torch__reinterpret_tensor(a, 2, sizes, strides, 1, &outside) == 1);
  EXPECT_TEXT(take_last_error(), "past the end");
  EXPECT(aoti_torch_delete_tensor_object(a) == 0);  // the storage lives on in the others
  EXPECT(aoti_torch_delete_tensor_object(b) == 0);
  EXPECT(aoti_torch_delete_tensor_object(row) == 0);
  EXPECT(aoti_torch_delete_tensor_object(inner) == 0);
  Tensor* scalar = nullptr;
  EXPECT(aoti_torch_empty_strided(0, nullptr, nullptr, 4, 1, 0, &scalar) == 0 &&
         scalar->numel() == 1);
  EXPECT(aoti_torch_delete_tensor_object(scalar) == 0);
  EXPECT(aoti_torch_empty_strided(2, sizes, strides, 99, 1, 0, &a) == 1);
  EXPECT_TEXT(take_last_error(), "unknown element type: 99");
  EXPECT(aoti_torch_empty_strided(2, sizes, strides, 6, 9, 0, &a) == 1);
  EXPECT(aoti_torch_clone(nullptr, &a) == 1);
  const int64_t huge[] = {INT64_MAX, INT64_MAX};
  EXPECT(aoti_torch_empty_strided(2, huge, nullptr, 6, 1, 0, &a) == 1);
  EXPECT(aoti_torch_create_tensor_from_blob(nullptr, 1, one, nullptr, 0, 6, 1, 0, &a) == 0);
  EXPECT(a->data() == nullptr && aoti_torch_delete_tensor_object(a) == 0);
}

TEST(shim_clones) {
  const Clean clean;
  const auto holes = iota(kCuda, {4, 6}, {12, 2});
  Tensor* dense = nullptr;
  Tensor* same = nullptr;
  EXPECT(aoti_torch_clone(holes.get(), &dense) == 0 && dense->is_contiguous());
  EXPECT(aoti_torch_clone_preserve_strides(holes.get(), &same) == 0 && same->strides()[0] == 12);
  EXPECT(counts_up(values(*own(dense))) && counts_up(values(*own(same))));
  const auto transposed = iota(kCuda, {4, 6}, {1, 4});
  EXPECT(aoti_torch_clone(transposed.get(), &dense) == 0 && dense->strides()[1] == 4);
  EXPECT(counts_up(values(*own(dense))));
}

TEST(shim_data) {
  const Clean clean;
  Tensor* number = nullptr;
  EXPECT(aoti_torch_empty_strided(0, nullptr, nullptr, 4, 1, 0, &number) == 0);
  const auto device_number = own(number);
  EXPECT(aoti_torch_zero_(number) == 0);
  int64_t item = 5;
  bool flag = true;
  EXPECT(aoti_torch_item_int64(number, &item) == 0 && item == 0);
  EXPECT(aoti_torch_item_bool(number, &flag) == 1);
  EXPECT_TEXT(take_last_error(), "an item of a int64 tensor as bool");
  Tensor* scalar = nullptr;
  EXPECT(aoti_torch_scalar_to_tensor_float64(2.5, &scalar) == 0);
  EXPECT(*static_cast<double*>(own(scalar)->data()) == 2.5);
  const auto host = iota(kHost, {3, 2});
  const auto device = Tensor::empty(kCuda, DType::Float32, host->sizes(), {});
  EXPECT(aoti_torch_copy_(device.get(), host.get(), 0) == 0 && counts_up(values(*device)));
  EXPECT(aoti_torch_copy_(device.get(), number, 0) == 1);
  EXPECT_TEXT(thrown([] { aoti_torch_check(false, "f", "x.py", 3, "index out of bounds"); }),
              "index out of bounds (f, x.py:3)");
}

TEST(shim_random_numbers) {
  const Clean clean;
  Tensor* seeds = nullptr;
  const int64_t count[] = {1000};
  EXPECT(aoti_torch_empty_strided(1, count, nullptr, 4, 1, 0, &seeds) == 0);
  const auto owned = own(seeds);
  EXPECT(aoti_torch_cuda_randint_low_out(seeds, INT64_MIN, INT64_MAX, count, 1) == 0);
  EXPECT(aoti_torch_cuda_randint_low_out(seeds, 10, 20, count, 1) == 0);
  const auto host = Tensor::empty(kHost, DType::Int64, seeds->sizes(), {});
  copy_tensor(*host, *seeds, nullptr);
  const auto* p = static_cast<int64_t*>(host->data());
  EXPECT(std::all_of(p, p + 1000, [](int64_t v) { return v >= 10 && v < 20; }));
  EXPECT(std::find(p, p + 1000, 10) != p + 1000 && std::find(p, p + 1000, 19) != p + 1000);
  EXPECT(aoti_torch_cuda_randint_low_out(seeds, 5, 5, count, 1) == 1);
  Tensor* uniform = nullptr;
  const int32_t type = 6;
  EXPECT(aoti_torch_cuda_rand(count, 1, &type, nullptr, nullptr, 0, nullptr, &uniform) == 0);
  const auto v = values(*own(uniform));
  EXPECT(std::all_of(v.begin(), v.end(), [](float x) { return x >= 0 && x < 1; }));
  const double mean = std::accumulate(v.begin(), v.end(), 0.0) / 1000;
  EXPECT(mean > 0.4 && mean < 0.6);
}

TEST(shim_sort) {
  const Clean clean;
  const int64_t sizes[] = {2, 5};
  auto host = Tensor::empty(kHost, DType::Float32, sizes, {});
  const float input[] = {3, NAN, 1, 2, 1, 9, 8, 7, 8, 6};
  std::memcpy(host->data(), input, sizeof(input));
  auto device = Tensor::empty(kCuda, DType::Float32, sizes, {});
  copy_tensor(*device, *host, nullptr);
  for (const bool descending : {false, true}) {
    Tensor* sorted = nullptr;
    Tensor* order = nullptr;
    EXPECT(aoti_torch_cuda_sort_stable(device.get(), nullptr, -1, descending ? 1 : 0, &sorted,
                                       &order) == 0);
    const auto v = values(*own(sorted));
    auto indices = Tensor::empty(kHost, DType::Int64, sizes, {});
    copy_tensor(*indices, *own(order), nullptr);
    const auto* i = static_cast<int64_t*>(indices->data());
    if (descending) {
      EXPECT(std::isnan(v[0]) && v[1] == 3 && v[4] == 1 && i[3] == 2 && i[4] == 4 && v[5] == 9 &&
             i[6] == 1);
    } else {
      EXPECT(std::isnan(v[4]) && v[0] == 1 && i[0] == 2 && i[1] == 4 && v[9] == 9 && i[7] == 1 &&
             i[8] == 3);
    }
  }
  Tensor* sorted = nullptr;
  Tensor* order = nullptr;
  EXPECT(aoti_torch_cuda_sort_stable(device.get(), nullptr, 0, 0, &sorted, &order) == 0);
  const auto columns = values(*own(sorted));
  delete order;
  EXPECT(columns[0] == 3 && columns[1] == 8 && std::isnan(columns[6]) && columns[5] == 9);
  EXPECT(aoti_torch_cuda_sort_stable(device.get(), nullptr, 2, 0, &sorted, &order) == 1);
}

TEST(runtime_calls) {
  const Clean clean;
  std::thread([] {
    // A thread without a context: the runtime API makes the primary one current.
    void* p = nullptr;
    EXPECT(cudaMalloc(&p, 16) == 0 && p != nullptr);
    int in = 3;
    int out = 0;
    EXPECT(cudaMemcpy(p, &in, 4, 1) == 0 && cudaMemcpy(&out, p, 4, 2) == 0 && out == 3);
    EXPECT(cudaMemcpy(&out, p, 4, 4) == 0);
    EXPECT(cudaFree(p) == 0 && cudaFree(nullptr) == 0);
    int device = 9;
    EXPECT(cudaGetDevice(&device) == 0 && device == 0);
    EXPECT(cudaSetDevice(44) == 101 && cudaGetLastError() == 101 && cudaGetLastError() == 0);
    EXPECT(cudaSetDevice(0) == 0);
    fake->fail("cuMemAlloc_v2", 2, 0);
    EXPECT(cudaMalloc(&p, 16) == 2 && cudaGetLastError() == 2);
    EXPECT(std::string(cudaGetErrorString(2)) == "out of memory");
  }).join();
}

}  // namespace pteron::testing

// Small libraries with the container API of AOTInductor, for tests without a GPU. One source, many
// models: FAKE_MODEL says which. They use the shims as exported libraries do (inputs are taken,
// outputs are the model's own, a handle is made for each weight and never deleted), and compute on
// the host, in stream order, through the fake driver's launch.
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "fake_driver.h"

struct Tensor;
extern "C" {
int32_t aoti_torch_empty_strided(int64_t, const int64_t*, const int64_t*, int32_t, int32_t, int32_t,
                                 Tensor**);
int32_t aoti_torch_delete_tensor_object(Tensor*);
int32_t aoti_torch_new_tensor_handle(Tensor*, Tensor**);
int32_t aoti_torch__reinterpret_tensor(Tensor*, int64_t, const int64_t*, const int64_t*, int64_t,
                                       Tensor**);
int32_t aoti_torch_get_data_ptr(Tensor*, void**);
int32_t aoti_torch_get_sizes(Tensor*, int64_t**);
int32_t aoti_torch_get_dim(Tensor*, int64_t*);
int32_t aoti_torch_get_numel(Tensor*, int64_t*);
int32_t aoti_torch_item_float32(Tensor*, float*);
int32_t aoti_torch_create_cuda_stream_guard(void*, int32_t, void**);
int32_t aoti_torch_delete_cuda_stream_guard(void*);
void aoti_torch_check(bool, const char*, const char*, uint32_t, const char*);
int32_t aoti_torch_no_such_shim();
int cudaSetDevice(int);
int cudaMemcpy(void*, const void*, size_t, int);
int cuModuleLoadData(void**, const void*);
}

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr std::string_view kModel = FAKE_MODEL;

struct ConstantInfo {
  const char* name;
  const char* fqn;
  int32_t kind;           // 1 parameter, 2 buffer
  int64_t rows, columns;  // columns 0: one dimension
};
constexpr ConstantInfo kMlpConstants[] = {{"a_weight", "a.weight", 1, 128, 64},
                                          {"a_bias", "a.bias", 1, 128, 0},
                                          {"b_weight", "b.weight", 1, 16, 128},
                                          {"b_bias", "b.bias", 1, 16, 0}};
constexpr ConstantInfo kStateConstants[] = {{"acc", "acc", 2, 4, 8}};

struct Shape {
  size_t inputs, outputs;
  const ConstantInfo* constants;
  size_t num_constants;
};

constexpr Shape shape() {
  if (kModel == "mlp") return {1, 1, kMlpConstants, 4};
  if (kModel == "state") return {1, 1, kStateConstants, 1};
  if (kModel == "muladd") return {2, 2, nullptr, 0};
  if (kModel == "views") return {1, 5, nullptr, 0};
  if (kModel == "swap") return {1, 2, nullptr, 0};
  return {2, 1, nullptr, 0};  // add, reads, keeps, uploads, throws, undefined
}

thread_local int here = 0;  // the device of the container that runs

struct Container {
  int device = 0;
  std::vector<Tensor*> constants = std::vector<Tensor*>(shape().num_constants, nullptr);
  std::vector<Tensor*> blob;  // constants that are its own
  void* module = nullptr;
  int runs = 0;

  ~Container() {
    for (Tensor* t : blob) aoti_torch_delete_tensor_object(t);
  }
};

void ok(int32_t code) {
  if (code != 0) throw std::runtime_error("a shim failed");
}

float* data(Tensor* t) {
  void* p = nullptr;
  ok(aoti_torch_get_data_ptr(t, &p));
  const int where = fake_cuda_device_of(p);
  if (where >= 0 && where != here) throw std::runtime_error("memory of another device");
  return static_cast<float*>(p);
}

int64_t numel(Tensor* t) {
  int64_t n = 0;
  ok(aoti_torch_get_numel(t, &n));
  return n;
}

int64_t size(Tensor* t, int d) {
  int64_t* s = nullptr;
  ok(aoti_torch_get_sizes(t, &s));
  return s[d];
}

Tensor* empty(std::vector<int64_t> sizes) {
  std::vector<int64_t> strides(sizes.size());
  int64_t step = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    strides[i] = step;
    step *= sizes[i];
  }
  Tensor* t = nullptr;
  ok(aoti_torch_empty_strided(static_cast<int64_t>(sizes.size()), sizes.data(), strides.data(), 6,
                              1, here, &t));
  return t;
}

Tensor* view(Tensor* t, std::vector<int64_t> sizes, std::vector<int64_t> strides, int64_t offset) {
  Tensor* v = nullptr;
  ok(aoti_torch__reinterpret_tensor(t, static_cast<int64_t>(sizes.size()), sizes.data(),
                                    strides.data(), offset, &v));
  return v;
}

std::vector<int64_t> sizes_of(Tensor* t) {
  int64_t ndim = 0;
  ok(aoti_torch_get_dim(t, &ndim));
  std::vector<int64_t> s;
  for (int d = 0; d < ndim; ++d) s.push_back(size(t, d));
  return s;
}

template <typename Kernel>
void launch(void* stream, Kernel kernel) {
  static_assert(std::is_trivially_copyable_v<Kernel> && sizeof(Kernel) % 8 == 0);
  fake_cuda_launch(
      stream, [](void* arguments) { (*static_cast<Kernel*>(arguments))(); }, &kernel,
      sizeof(Kernel) / 8);
}

void dense(const float* x, const float* w, const float* b, float* y, int64_t n, int64_t in,
           int64_t out, bool relu) {
  for (int64_t r = 0; r < n; ++r) {
    for (int64_t o = 0; o < out; ++o) {
      double sum = b[o];
      for (int64_t i = 0; i < in; ++i) sum += static_cast<double>(x[r * in + i]) * w[o * in + i];
      y[r * out + o] = relu && sum < 0 ? 0.0F : static_cast<float>(sum);
    }
  }
}

void run_add(Tensor** in, Tensor** out, void* stream) {
  out[0] = empty(sizes_of(in[0]));
  launch(stream, [x = data(in[0]), y = data(in[1]), z = data(out[0]), n = numel(in[0])] {
    for (int64_t i = 0; i < n; ++i) z[i] = x[i] + y[i];
  });
}

// The sum, after a look at the first element, as models with .item() take it.
void run_reads(Tensor** in, Tensor** out, void* stream) {
  float first = 0;
  Tensor* element = view(in[0], {}, {}, 0);
  const int32_t code = aoti_torch_item_float32(element, &first);
  ok(aoti_torch_delete_tensor_object(element));
  ok(code);
  run_add(in, out, stream);
}

// The sum, and memory that the first run takes and later ones use.
void run_keeps(Container& c, Tensor** in, Tensor** out, void* stream) {
  if (c.blob.empty()) c.blob.push_back(empty({16}));
  run_add(in, out, stream);
}

// The sum, after an upload that no stream knows of.
void run_uploads(Tensor** in, Tensor** out, void* stream) {
  const float zero = 0;
  Tensor* scratch = empty({1});
  const int code = cudaMemcpy(data(scratch), &zero, sizeof zero, 1 /* to the device */);
  ok(aoti_torch_delete_tensor_object(scratch));
  ok(code);
  run_add(in, out, stream);
}

// In the order in which the exporter hands them to the delegate: the sum, then the product.
void run_muladd(Tensor** in, Tensor** out, void* stream) {
  out[0] = empty({size(in[0], 0)});
  out[1] = empty(sizes_of(in[0]));
  launch(stream, [x = data(in[0]), y = data(in[1]), s = data(out[0]), p = data(out[1]),
                  n = numel(in[0]), w = size(in[0], 1)] {
    for (int64_t i = 0; i < n; ++i) {
      if (i % w == 0) s[i / w] = 0;
      p[i] = x[i] * y[i] + x[i];
      s[i / w] += x[i];
    }
  });
}

void run_state(Container& c, Tensor** in, Tensor** out, void* stream) {
  out[0] = empty(sizes_of(in[0]));
  launch(stream, [x = data(in[0]), a = data(c.constants[0]), z = data(out[0]), n = numel(in[0])] {
    for (int64_t i = 0; i < n; ++i) z[i] = a[i] += x[i];
  });
}

void run_mlp(Container& c, Tensor** in, Tensor** out, void* stream) {
  const int64_t n = size(in[0], 0);
  const int64_t width = size(in[0], 1);
  const int64_t middle = size(c.constants[0], 0);
  const int64_t last = size(c.constants[2], 0);
  Tensor* hidden = empty({n, middle});
  out[0] = empty({n, last});
  launch(stream, [=, x = data(in[0]), w = data(c.constants[0]), b = data(c.constants[1]),
                  y = data(hidden)] { dense(x, w, b, y, n, width, middle, true); });
  launch(stream, [=, x = data(hidden), w = data(c.constants[2]), b = data(c.constants[3]),
                  y = data(out[0])] { dense(x, w, b, y, n, middle, last, false); });
  ok(aoti_torch_delete_tensor_object(hidden));
}

// x [r, c] -> (x+1) transposed, x+1, x+1 again, columns 1..2 of x+1, x itself.
void run_views(Tensor** in, Tensor** out, void* stream) {
  const int64_t r = size(in[0], 0);
  const int64_t c = size(in[0], 1);
  Tensor* y = empty({r, c});
  launch(stream, [x = data(in[0]), z = data(y), n = numel(in[0])] {
    for (int64_t i = 0; i < n; ++i) z[i] = x[i] + 1;
  });
  out[0] = view(y, {c, r}, {1, c}, 0);
  ok(aoti_torch_new_tensor_handle(y, &out[1]));
  ok(aoti_torch_new_tensor_handle(y, &out[2]));
  out[3] = view(y, {r, 2}, {c, 1}, 1);
  ok(aoti_torch_new_tensor_handle(in[0], &out[4]));
  ok(aoti_torch_delete_tensor_object(y));
}

// Two outputs, x+1 and x+2, whose allocations change places from run to run.
void run_swap(Container& c, Tensor** in, Tensor** out, void* stream) {
  Tensor* first = empty(sizes_of(in[0]));
  Tensor* second = empty(sizes_of(in[0]));
  const bool swapped = c.runs % 2 == 1;
  out[0] = swapped ? second : first;
  out[1] = swapped ? first : second;
  launch(stream, [x = data(in[0]), a = data(out[0]), b = data(out[1]), n = numel(in[0])] {
    for (int64_t i = 0; i < n; ++i) {
      a[i] = x[i] + 1;
      b[i] = x[i] + 2;
    }
  });
}

void run(Container& c, Tensor** in, Tensor** out, void* stream) {
  if (kModel == "add") run_add(in, out, stream);
  if (kModel == "reads") run_reads(in, out, stream);
  if (kModel == "keeps") run_keeps(c, in, out, stream);
  if (kModel == "uploads") run_uploads(in, out, stream);
  if (kModel == "muladd") run_muladd(in, out, stream);
  if (kModel == "state") run_state(c, in, out, stream);
  if (kModel == "mlp") run_mlp(c, in, out, stream);
  if (kModel == "views") run_views(in, out, stream);
  if (kModel == "swap") run_swap(c, in, out, stream);
  if (kModel == "throws") {
    if (c.runs < 1) run_add(in, out, stream);
    aoti_torch_check(c.runs < 1, "run", "fake_model.cpp", 1, "index out of bounds: 0 <= tmp0 < 4");
  }
  ++c.runs;
}

// The model's own guard: exceptions become a number, as in an exported library.
template <typename Body>
int32_t guarded(Body&& body) {
  try {
    body();
    return 0;
  } catch (const std::exception&) {
    return 1;
  }
}

}  // namespace

EXPORT int32_t AOTInductorModelContainerCreateWithDevice(Container** out, size_t,
                                                         const char* device, const char*) {
  return guarded([&] {
    if (std::strncmp(device, "cuda:", 5) != 0) throw std::runtime_error("device");
    *out = new Container;
    (*out)->device = std::stoi(device + 5);
    cuModuleLoadData(&(*out)->module, "image");  // never unloaded, like torch 2.11's libraries
  });
}
EXPORT int32_t AOTInductorModelContainerDelete(Container* c) {
  return guarded([&] { delete c; });
}
EXPORT int32_t AOTInductorModelContainerGetNumInputs(Container*, size_t* n) {
  *n = shape().inputs;
  return 0;
}
EXPORT int32_t AOTInductorModelContainerGetNumOutputs(Container*, size_t* n) {
  *n = shape().outputs;
  return 0;
}
EXPORT int32_t AOTInductorModelContainerGetNumConstants(Container*, size_t* n) {
  *n = shape().num_constants;
  return 0;
}
EXPORT int32_t AOTInductorModelContainerGetConstantName(Container*, size_t i, const char** s) {
  *s = shape().constants[i].name;
  return 0;
}
EXPORT int32_t AOTInductorModelContainerGetConstantOriginalFQN(Container*, size_t i,
                                                               const char** s) {
  *s = shape().constants[i].fqn;
  return 0;
}
EXPORT int32_t AOTInductorModelContainerGetConstantDtype(Container*, size_t, int32_t* d) {
  *d = 6;
  return 0;
}
EXPORT int32_t AOTInductorModelContainerGetConstantType(Container*, size_t i, int32_t* t) {
  *t = shape().constants[i].kind;
  return 0;
}
EXPORT int32_t AOTInductorModelContainerGetConstantFromFolded(Container*, size_t, bool* f) {
  *f = false;
  return 0;
}

struct Pair {
  const char* name;
  Tensor* tensor;
};
EXPORT int32_t AOTInductorModelContainerUpdateUserManagedConstantBufferPairs(Container* c,
                                                                             const Pair* pairs,
                                                                             size_t n, bool, bool) {
  return guarded([&] {
    for (size_t k = 0; k < n; ++k) {
      for (size_t i = 0; i < shape().num_constants; ++i) {
        if (std::string_view(pairs[k].name) == shape().constants[i].name) {
          ok(aoti_torch_new_tensor_handle(pairs[k].tensor, &c->constants[i]));
        }
      }
    }
  });
}

// As exported up to 1.4: all constants in one piece, each at a multiple of 64 bytes.
EXPORT int32_t AOTInductorModelUpdateConstantsFromBlob(Container* c, const uint8_t* bytes) {
  return guarded([&] {
    here = c->device;
    for (size_t i = 0; i < shape().num_constants; ++i) {
      const ConstantInfo& info = shape().constants[i];
      Tensor* t = info.columns == 0 ? empty({info.rows}) : empty({info.rows, info.columns});
      c->blob.push_back(c->constants[i] = t);
      const size_t nbytes = static_cast<size_t>(numel(t)) * sizeof(float);
      ok(cudaMemcpy(data(t), bytes, nbytes, 1 /* to the device */));
      bytes += (nbytes + 63) / 64 * 64;
    }
  });
}

EXPORT int32_t AOTInductorModelContainerRunSingleThreaded(Container* c, Tensor** in, size_t,
                                                          Tensor** out, size_t, void* stream,
                                                          void*) {
  std::vector<Tensor*> taken;
  for (size_t i = 0; i < shape().inputs; ++i) {
    taken.push_back(in[i]);
    in[i] = nullptr;
  }
  void* guard = nullptr;
  const int32_t result = guarded([&] {
    here = c->device;
    ok(aoti_torch_create_cuda_stream_guard(stream, here, &guard));
    run(*c, taken.data(), out, stream);
  });
  if (guard != nullptr) aoti_torch_delete_cuda_stream_guard(guard);
  for (Tensor* t : taken) aoti_torch_delete_tensor_object(t);
#ifdef FAKE_MODEL_UNDEFINED
  aoti_torch_no_such_shim();
#endif
  return result;
}

// A model library's container (the AOTInductorModelContainer API), created, run and deleted.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "loader.h"
#include "tensor.h"

namespace pteron::cuda {

// What a weight is to the model; numbers of AOTInductor's ConstantType.
enum class ConstantKind : int32_t {
  Unknown = 0,
  Parameter = 1,
  Buffer = 2,
  Constant = 3,
  Folded = 4
};

struct Constant {
  std::string internal_name;
  std::string fqn;
  int32_t dtype = -1;
  ConstantKind kind = ConstantKind::Unknown;
  bool folded = false;  // computed by the model itself
};

class Container {
 public:
  // The device's context must be current, here and for every call. Throws Failure.
  Container(const Library& library, int device);
  ~Container();
  Container(const Container&) = delete;
  Container& operator=(const Container&) = delete;

  size_t num_inputs() const noexcept { return num_inputs_; }
  size_t num_outputs() const noexcept { return num_outputs_; }

  std::vector<Constant> constants() const;

  struct Binding {  // layout of AOTInductorConstantMapEntry
    const char* name;
    Tensor* tensor;
  };
  // The model reads the tensors' memory from now on; it keeps neither the names nor the tensors.
  void bind(const std::vector<Binding>& bindings);

  // One blob of all weights, copied to the device before this returns.
  void load_blob(const void* bytes);

  // Takes the inputs (their entries become null) and fills the outputs, which the caller owns; also
  // after a failure, where some may be null. Throws Failure with the model's reason.
  void run(Tensor** inputs, Tensor** outputs, Stream stream);

 private:
  struct Opaque;
  using Code = int32_t;

  void check(Code code, const char* doing) const;

  struct Functions {
    Code (*create)(Opaque**, size_t, const char*, const char*) = nullptr;
    Code (*destroy)(Opaque*) = nullptr;
    Code (*get_num_inputs)(Opaque*, size_t*) = nullptr;
    Code (*get_num_outputs)(Opaque*, size_t*) = nullptr;
    Code (*run)(Opaque*, Tensor**, size_t, Tensor**, size_t, Stream, void*) = nullptr;
    Code (*get_num_constants)(Opaque*, size_t*) = nullptr;
    Code (*get_constant_name)(Opaque*, size_t, const char**) = nullptr;
    Code (*get_constant_fqn)(Opaque*, size_t, const char**) = nullptr;
    Code (*get_constant_dtype)(Opaque*, size_t, int32_t*) = nullptr;
    Code (*get_constant_type)(Opaque*, size_t, int32_t*) = nullptr;
    Code (*get_constant_folded)(Opaque*, size_t, bool*) = nullptr;
    Code (*bind)(Opaque*, const Binding*, size_t, bool, bool) = nullptr;
    Code (*load_blob)(Opaque*, const uint8_t*) = nullptr;
    Code (*last_error)(const char**) = nullptr;
  };

  Functions functions_;
  Opaque* container_ = nullptr;
  size_t num_inputs_ = 0;
  size_t num_outputs_ = 0;
};

}  // namespace pteron::cuda

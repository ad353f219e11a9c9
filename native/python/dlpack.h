// DLPack's ABI (dlpack.h 1.3), its capsules, and reading a tensor that somebody exported.
//
// Ownership: a producer's struct belongs to whoever consumed the capsule, who renames it and calls
// `deleter` once. Deleters may run on any thread, with or without the GIL.
#pragma once

#include <cstdint>
#include <string>

#include "core/method.h"
#include "python.h"

namespace pteron::python {

struct DLDevice {
  int32_t type;
  int32_t id;
};
enum : int32_t { kDLCPU = 1, kDLCUDA = 2, kDLCUDAHost = 3, kDLROCMHost = 11, kDLCUDAManaged = 13 };

struct DLDataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};

struct DLTensor {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;  // elements; null: C order
  uint64_t byte_offset;
};

struct DLManagedTensor {
  DLTensor tensor;
  void* context;
  void (*deleter)(DLManagedTensor*);
};

struct DLVersion {
  uint32_t major;
  uint32_t minor;
};

struct DLManagedTensorVersioned {
  DLVersion version;
  void* context;
  void (*deleter)(DLManagedTensorVersioned*);
  uint64_t flags;
  DLTensor tensor;
};
inline constexpr uint64_t kDLReadOnly = 1;  // flags
inline constexpr uint64_t kDLIsCopied = 2;
static_assert(sizeof(DLTensor) == 48 && sizeof(DLManagedTensor) == 64 &&
              sizeof(DLManagedTensorVersioned) == 80);

inline constexpr char kCapsule[] = "dltensor";
inline constexpr char kCapsuleVersioned[] = "dltensor_versioned";
inline constexpr char kUsedCapsule[] = "used_dltensor";
inline constexpr char kUsedCapsuleVersioned[] = "used_dltensor_versioned";

// A producer's struct, of either kind, whose deleter runs exactly once.
class Managed {
 public:
  Managed() = default;
  explicit Managed(DLManagedTensor* tensor) noexcept : plain_(tensor) {}
  explicit Managed(DLManagedTensorVersioned* tensor) noexcept : versioned_(tensor) {}
  Managed(Managed&& other) noexcept
      : plain_(std::exchange(other.plain_, nullptr)),
        versioned_(std::exchange(other.versioned_, nullptr)) {}
  Managed& operator=(Managed&& other) noexcept {
    std::swap(plain_, other.plain_);
    std::swap(versioned_, other.versioned_);
    return *this;
  }
  explicit operator bool() const noexcept { return plain_ != nullptr || versioned_ != nullptr; }
  ~Managed() {
    if (plain_ && plain_->deleter) plain_->deleter(plain_);
    if (versioned_ && versioned_->deleter) versioned_->deleter(versioned_);
  }

 private:
  DLManagedTensor* plain_ = nullptr;
  DLManagedTensorVersioned* versioned_ = nullptr;
};

// A failure to read a value as a tensor; the caller adds which input it was.
struct Unreadable {
  Kind kind;
  std::string why;
};

// The tensor in `capsule`, which stays the capsule's. Throws Unreadable.
TensorView read_capsule(PyObject* capsule);

// Renames a capsule that read_capsule accepted and takes its struct over.
Managed consume_capsule(PyObject* capsule) noexcept;

// Throws Unreadable unless `tensor` makes sense. `readonly` from the struct's flags.
TensorView read_dltensor(const DLTensor& tensor, bool readonly);

// The C exchange API (DLPack 1.3) of a type, or null.
struct DLPackExchangeAPI {
  DLVersion version;
  DLPackExchangeAPI* previous;
  int (*managed_tensor_allocator)(DLTensor*, DLManagedTensorVersioned**, void*,
                                  void (*)(void*, const char*, const char*));
  int (*managed_tensor_from_py_object_no_sync)(void*, DLManagedTensorVersioned**);
  int (*managed_tensor_to_py_object_no_sync)(DLManagedTensorVersioned*, void**);
  int (*dltensor_from_py_object_no_sync)(void*, DLTensor*);
  int (*current_work_stream)(int32_t, int32_t, void**);
};
const DLPackExchangeAPI* exchange_api(PyTypeObject* type) noexcept;

}  // namespace pteron::python

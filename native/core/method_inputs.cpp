// What a method accepts, and how it says no. Nothing here reads tensor data.
#include <cmath>
#include <cstdio>

#include "error.h"
#include "method.h"

namespace pteron {
namespace {

std::string shape_text(const int64_t* shape, int ndim) {
  std::string text = "(";
  for (int i = 0; i < ndim; ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  return text + (ndim == 1 ? ",)" : ")");
}

std::string shape_text(const TensorSpec& spec) {
  std::vector<int64_t> shape(spec.sizes.begin(), spec.sizes.end());
  return shape_text(shape.data(), static_cast<int>(shape.size()));
}

std::string float_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", value);
  return text;
}

// "a float32 tensor", "an int8 tensor".
std::string a_tensor(DType dtype) {
  const std::string name = info(dtype).name;
  return (name[0] == 'i' ? "an " : "a ") + name + " tensor";
}

// "a float32 tensor of shape (2, 2)", "the int 3".
std::string expectation(const ValueSpec& spec) {
  switch (spec.kind) {
    case ValueKind::None:
      return "None";
    case ValueKind::Int:
      return "the int " + std::to_string(spec.int_value);
    case ValueKind::Bool:
      return spec.int_value ? "the bool True" : "the bool False";
    case ValueKind::Double:
      return "the float " + float_text(spec.double_value);
    case ValueKind::String:
      return "the str '" + spec.string_value + "'";
    case ValueKind::Tensor:
      return a_tensor(spec.tensor.dtype) + " of shape " +
             (spec.tensor.dynamism == Dynamism::Static ? "" : "up to ") + shape_text(spec.tensor);
    default:
      return "a list, which cannot be passed";
  }
}

std::string given_text(const InputValue& value) {
  switch (value.kind) {
    case ValueKind::None:
      return "None";
    case ValueKind::Int:
      return "the int " + std::to_string(value.int_value);
    case ValueKind::Bool:
      return value.int_value ? "the bool True" : "the bool False";
    case ValueKind::Double:
      return "the float " + float_text(value.double_value);
    case ValueKind::String:
      return "the str '" + std::string(value.string_value) + "'";
    default:
      return a_tensor(value.tensor.dtype) + " of shape " +
             shape_text(value.tensor.shape, value.tensor.ndim);
  }
}

// The runtime's own tolerance for a traced float.
bool same_double(double expected, double given) {
  if (std::isnan(expected) && std::isnan(given)) return true;
  return expected == given || std::fabs(expected - given) <= 1e-4 + 1e-5 * std::fabs(expected);
}

bool same_scalar(const ValueSpec& spec, const InputValue& value) {
  switch (spec.kind) {
    case ValueKind::Double:
      return same_double(spec.double_value, value.double_value);
    case ValueKind::String:
      return spec.string_value == value.string_value;
    case ValueKind::None:
      return true;
    default:
      return spec.int_value == value.int_value;
  }
}

// Whether the elements lie without gaps in the order of the program's tensor.
bool packed_as(const TensorSpec& spec, const TensorView& view) {
  auto step = static_cast<int64_t>(itemsize(view.dtype));
  for (size_t i = spec.dim_order.size(); i-- > 0;) {
    const uint8_t axis = spec.dim_order[i];
    if (view.strides == nullptr) return axis == i;
    if (view.shape[axis] != 1 && view.strides[axis] * view.stride_unit != step) return false;
    step *= view.shape[axis];
  }
  return true;
}

// Plain bytes stand for a dtype that Python has no buffer format for, if they fit exactly.
bool accepts_raw(const TensorSpec& spec, const TensorView& view) {
  return view.raw && !info(spec.dtype).numpy && view.ndim == 1 &&
         static_cast<uint64_t>(view.shape[0]) == spec.nbytes && spec.dynamism == Dynamism::Static;
}

// Calls `refuse` with a kind, a code and the end of a sentence unless `view` fits `tensor` and is
// on `device`. `reason` is what the runtime would say of another dtype.
template <typename Refuse, typename Reason>
void check_tensor(const TensorSpec& tensor, const Device& device, const TensorView& view,
                  const Refuse& refuse, const Reason& reason) {
  bool empty = false;
  for (int d = 0; d < view.ndim; ++d) empty = empty || view.shape[d] == 0;
  if (view.device != device && !empty) {
    refuse(Kind::Device, Code::InvalidArgument,
           "is on device " + to_string(view.device) + ", expected on device " + to_string(device) +
               (device.is_cpu()
                    ? ": copy it to the host first"
                    : ": pass device memory through DLPack, for example a CuPy array or a torch "
                      "tensor on that device"));
  }
  if (accepts_raw(tensor, view)) return;
  if (view.dtype != tensor.dtype) {
    const bool bits = !info(tensor.dtype).numpy && itemsize(view.dtype) == itemsize(tensor.dtype);
    refuse(Kind::InputType, Code::InvalidArgument,
           "is " + std::string(info(view.dtype).name) + ", expected " + info(tensor.dtype).name +
               (bits ? ", which NumPy lacks: pass the result itself, its bytes, or an array of "
                       "ml_dtypes"
                     : ""),
           reason());
  }
  const auto rank = static_cast<int>(tensor.sizes.size());
  bool fits = view.ndim == rank;
  for (int d = 0; fits && d < rank; ++d) {
    const int64_t bound = tensor.sizes[static_cast<size_t>(d)];
    fits = tensor.dynamism == Dynamism::Static         ? view.shape[d] == bound
           : tensor.dynamism == Dynamism::DynamicBound ? view.shape[d] <= bound
                                                       : view.shape[d] <= INT32_MAX;
  }
  if (fits && !view.device.is_cpu() && !empty && !packed_as(tensor, view)) {
    refuse(Kind::Input, Code::NotSupported,
           "is not packed in memory as the program needs it: pass a contiguous copy");
  }
  if (!fits) {
    refuse(Kind::Input, Code::NotSupported,
           "has shape " + shape_text(view.shape, view.ndim) + ", expected " +
               (tensor.dynamism == Dynamism::Static ? "" : "at most ") + shape_text(tensor));
  }
}

}  // namespace

std::string Method::input_name(size_t i) const {
  return "Input " + std::to_string(i) + " of method '" + spec_.name + "'";
}

void Method::check_count(size_t given) const {
  const size_t expected = spec_.inputs.size();
  if (given == expected) return;
  std::string text = "Method '" + spec_.name + "' takes " + std::to_string(expected) +
                     (expected == 1 ? " input, " : " inputs, ") + std::to_string(given) +
                     (given == 1 ? " was given" : " were given");
  if (given < expected) {
    text += ": input " + std::to_string(given) + " is missing, " + expectation(spec_.input(given));
  }
  throw Error(Kind::Input, Code::InvalidArgument, text + ", " + code_text(Code::InvalidArgument));
}

void Method::check_input(size_t i, const InputValue& value) const {
  const ValueSpec& spec = spec_.input(i);
  const auto refuse = [&](Kind kind, Code code, const std::string& why,
                          const std::string& reason = {}) {
    std::string text = input_name(i) + " " + why + ", " + code_text(code);
    if (!reason.empty()) text += ": " + reason;
    throw Error(kind, static_cast<uint32_t>(code), text, reason);
  };
  if (value.kind != spec.kind) {
    refuse(Kind::InputType, Code::InvalidArgument,
           "is " + given_text(value) + ", expected " + expectation(spec));
  }
  if (spec.kind != ValueKind::Tensor) {
    if (!same_scalar(spec, value)) {
      refuse(Kind::Input, Code::InvalidArgument,
             "is " + given_text(value) + ", expected " + expectation(spec) +
                 ": inputs that are no tensors are fixed when the program is exported");
    }
    return;
  }

  check_tensor(spec.tensor, spec.tensor.device, value.tensor, refuse, [&] {
    // The runtime's own line, which people search for.
    return "Input " + std::to_string(i) + " has unexpected scalar type: expected " +
           info(spec.tensor.dtype).runtime_name + " but was " +
           info(value.tensor.dtype).runtime_name;
  });
}

void Method::check_state(size_t i, const TensorView& value) const {
  const auto refuse = [&](Kind kind, Code code, const std::string& why,
                          const std::string& reason = {}) {
    throw Error(kind, static_cast<uint32_t>(code),
                state_name(i) + " " + why + ", " + code_text(code), reason);
  };
  TensorSpec exact = state_tensor(i);
  exact.dynamism = Dynamism::Static;
  check_tensor(exact, Device{}, value, refuse, [] { return std::string(); });
}

}  // namespace pteron

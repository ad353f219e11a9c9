#include "handle.h"

#include <executorch/runtime/core/exec_aten/util/tensor_util.h>

#include <algorithm>
#include <array>

#include "context.h"
#include "graph.h"
#include "memory.h"
#include "strided_copy.h"

namespace pteron::cuda {

namespace {

namespace et = ::executorch::runtime;

constexpr size_t kMaxDims = et::kTensorDimensionLimit;

struct Dims {
  std::array<int64_t, kMaxDims> sizes{};
  std::array<int64_t, kMaxDims> strides{};
  size_t ndim = 0;

  explicit Dims(const ETensor& tensor) : ndim(static_cast<size_t>(tensor.dim())) {
    std::copy_n(tensor.sizes().begin(), ndim, sizes.begin());
    std::copy_n(tensor.strides().begin(), ndim, strides.begin());
  }
  std::span<const int64_t> size_span() const { return {sizes.data(), ndim}; }
  std::span<const int64_t> stride_span() const { return {strides.data(), ndim}; }
};

// A tensor over an ETensor's memory.
std::unique_ptr<Tensor> view_of(const ETensor& tensor, void* data, Place place) {
  const Dims dims(tensor);
  return std::make_unique<Tensor>(Storage::view(data, tensor.nbytes(), place),
                                  checked_dtype(static_cast<int32_t>(tensor.scalar_type())),
                                  dims.size_span(), dims.stride_span(), 0);
}

std::string argument(const char* kind, size_t index, const std::string& method) {
  return std::string(kind) + " " + std::to_string(index) + " of the CUDA part of method '" +
         method + "'";
}

bool same_sizes(const ETensor& tensor, const Tensor& result) {
  for (size_t i = 0; i < result.ndim(); ++i) {
    if (tensor.sizes()[i] != result.sizes()[i]) return false;
  }
  return true;
}

// Whether one copy of all bytes gives the ETensor's layout.
bool same_dense_layout(const ETensor& tensor, const Tensor& result) {
  for (size_t i = 0; i < result.ndim(); ++i) {
    if (result.sizes()[i] != 1 && tensor.strides()[i] != result.strides()[i]) return false;
  }
  return true;
}

struct Range {  // of addresses
  uintptr_t begin;
  uintptr_t end;

  bool overlaps(const Range& other) const { return begin < other.end && other.begin < end; }
};

Range range_of(const ETensor& tensor) {
  const auto begin = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
  return {begin, begin + tensor.nbytes()};
}

Range range_of(const Tensor& tensor) {
  const auto begin = reinterpret_cast<uintptr_t>(tensor.data());
  const auto reach = static_cast<size_t>(span_of(tensor.sizes(), tensor.strides()));
  return {begin, begin + reach * tensor.itemsize()};
}

}  // namespace

LentMemory::~LentMemory() {
  if (data_ != nullptr) cuda::free(device_, data_);
}

LentMemory::LentMemory(LentMemory&& other) noexcept
    : device_(other.device_),
      data_(std::exchange(other.data_, nullptr)),
      nbytes_(std::exchange(other.nbytes_, 0)) {}

void* LentMemory::grow(size_t nbytes) {
  if (data_ != nullptr && nbytes <= nbytes_) return data_;
  void* bigger = allocate(device_, nbytes);
  if (data_ != nullptr) cuda::free(device_, data_);
  data_ = bigger;
  nbytes_ = nbytes;
  return data_;
}

// The tensors of one run. Whatever the model did not take or we did not use up goes with it.
class Handle::Arguments {
 public:
  explicit Arguments(size_t count) : tensors_(count, nullptr) {}
  ~Arguments() {
    for (Tensor* tensor : tensors_) delete tensor;
  }
  Arguments(const Arguments&) = delete;
  Arguments& operator=(const Arguments&) = delete;

  Tensor*& operator[](size_t i) { return tensors_[i]; }
  Tensor** data() { return tensors_.data(); }

 private:
  std::vector<Tensor*> tensors_;
};

Handle::Handle(int device, std::string method, const Library& library)
    : device_(device),
      method_(std::move(method)),
      modules_(device),
      placement_(device),
      last_use_(device) {
  ContextGuard guard(device_);
  StreamGuard stream(device_, shared_stream(device_));
  ModuleScope::Active active(modules_);
  container_ = std::make_unique<Container>(library, device_);
  for (size_t i = 0; i < container_->num_outputs(); ++i) lent_.emplace_back(device_);
}

Handle::~Handle() {
  last_use_.wait();
  to_code([this] {
    ContextGuard guard(device_);
    StreamGuard stream(device_, nullptr);
    ModuleScope::Active active(modules_);
    container_.reset();
  });
  modules_.unload();
}

void Handle::load_weights(const Manifest& manifest, const NamedDataMap* data,
                          std::string_view library_key) {
  ContextGuard guard(device_);
  StreamGuard stream(device_, shared_stream(device_));
  ModuleScope::Active active(modules_);
  weights_.load(*container_, manifest, data, method_, library_key, device_);
  // The uploads may be under way on the shared stream; a first run on another one waits for them.
  last_use_.record(shared_stream(device_), true);
}

std::unique_ptr<Tensor> Handle::input(const ETensor& tensor, size_t index, Stream stream) const {
  const Place here{true, device_};
  void* data = tensor.mutable_data_ptr();
  if (tensor.numel() == 0) return view_of(tensor, data, here);
  if (data == nullptr) {
    throw Failure(ErrorCode::InvalidArgument, argument("input", index, method_) + " has no memory");
  }
  const PointerInfo where = pointer_info(data);
  if (where.on_device()) {
    if (where.device != device_ && where.kind == PointerInfo::Kind::Device) {
      throw Failure(ErrorCode::InvalidArgument,
                    argument("input", index, method_) +
                        " is on cuda:" + std::to_string(where.device) +
                        ", the program runs on cuda:" + std::to_string(device_));
    }
    return view_of(tensor, data, here);
  }
  // Programs of the exporters up to 1.3, and with enable_non_cpu_memory_planning off, keep what is
  // called a CUDA tensor in host memory.
  const Dims dims(tensor);
  auto uploaded = Tensor::empty(here, checked_dtype(static_cast<int32_t>(tensor.scalar_type())),
                                dims.size_span(), dims.stride_span());
  copy_border(CopyKind::HostToDevice, device_, uploaded->data(), data, tensor.nbytes(), stream);
  return uploaded;
}

void Handle::output(ETensor& tensor, const Tensor& result, size_t index, Stream stream) {
  if (static_cast<int32_t>(tensor.scalar_type()) != static_cast<int32_t>(result.dtype())) {
    throw Failure(ErrorCode::InvalidType,
                  argument("output", index, method_) + " came out as " + info(result.dtype()).name);
  }
  if (static_cast<size_t>(tensor.dim()) != result.ndim()) {
    throw Failure(ErrorCode::InvalidArgument, argument("output", index, method_) +
                                                  " came out with " +
                                                  std::to_string(result.ndim()) + " dimensions");
  }
  const size_t bound = tensor.nbytes();  // the largest the first time, when nothing resized it yet
  if (!same_sizes(tensor, result)) {
    std::array<ETensor::SizesType, kMaxDims> sizes{};
    for (size_t i = 0; i < result.ndim(); ++i) {
      sizes[i] = static_cast<ETensor::SizesType>(result.sizes()[i]);
    }
    const auto error = et::resize_tensor(tensor, {sizes.data(), result.ndim()});
    if (error != ErrorCode::Ok) {
      throw Failure(error, argument("output", index, method_) + " does not fit its bound");
    }
  }
  if (result.numel() == 0) return;

  const bool wants_memory = tensor.const_data_ptr() == nullptr;
  const bool has_ours = !wants_memory && tensor.const_data_ptr() == lent_[index].get();
  if (wants_memory || has_ours) {
    const bool on_device =
        tensor.unsafeGetTensorImpl()->device_type() == et::etensor::DeviceType::CUDA;
    if (!on_device) {
      throw Failure(ErrorCode::InvalidState,
                    argument("output", index, method_) + " has no memory to be written to");
    }
    tensor.unsafeGetTensorImpl()->set_data(lent_[index].grow(std::max(bound, tensor.nbytes())));
  }

  void* data = tensor.mutable_data_ptr();
  const bool fits = result.place() == Place{true, device_} && same_dense_layout(tensor, result);
  if (result.data() == data) {
    if (fits) return;
    // Placed by a guess that a new layout proved wrong: the bytes must move within their memory.
    placement_.forget(index);
    const auto apart = Tensor::empty(result.place(), result.dtype(), result.sizes(), {});
    copy_tensor(*apart, result, stream);
    copy_tensor(*view_of(tensor, data, result.place()), *apart, stream);
    return;
  }
  const PointerInfo where = has_ours || wants_memory
                                ? PointerInfo{PointerInfo::Kind::Device, device_}
                                : pointer_info(data);
  const Place place = where.on_device() ? Place{true, where.device} : Place{};
  if (fits && place == Place{true, device_}) {
    placement_.learn(index, result);
  } else {
    placement_.forget(index);
  }
  if (fits && (!place.on_device || place.index == device_)) {
    copy_border(place.on_device ? CopyKind::DeviceToDevice : CopyKind::DeviceToHost, device_, data,
                result.data(), tensor.nbytes(), stream);
  } else {
    copy_tensor(*view_of(tensor, data, place), result, stream);
  }
}

// Output memory may be handed to the model only where nothing else lives: not over an input, which
// the model may still read, nor over another output.
void Handle::offer_outputs(std::span<EValue*> inputs, std::span<EValue*> outputs) {
  placement_.begin(outputs.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    const Range range = range_of(outputs[i]->toTensor());
    if (range.begin == 0 || range.begin == range.end) continue;
    bool alone = true;
    for (const EValue* input : inputs) {
      alone = alone && !range.overlaps(range_of(input->toTensor()));
    }
    for (size_t k = 0; k < outputs.size(); ++k) {
      alone = alone && (k == i || !range.overlaps(range_of(outputs[k]->toTensor())));
    }
    if (alone) placement_.offer(i, reinterpret_cast<void*>(range.begin), range.end - range.begin);
  }
}

// A result that lies in memory which another output is about to be written to moves away: a wrong
// guess about placement, or an input that is passed through and overwritten by the caller's wish.
void Handle::rescue_outputs(Arguments& results, std::span<EValue*> outputs, Stream stream) const {
  for (size_t i = 0; i < outputs.size(); ++i) {
    const Range its = range_of(*results[i]);
    for (size_t k = 0; k < outputs.size(); ++k) {
      const ETensor& other = outputs[k]->toTensor();
      if (k == i || results[k]->data() == other.const_data_ptr()) continue;
      if (!its.overlaps(range_of(other))) continue;
      auto apart = Tensor::empty(results[i]->place(), results[i]->dtype(), results[i]->sizes(), {});
      copy_tensor(*apart, *results[i], stream);
      delete std::exchange(results[i], apart.release());
      break;
    }
  }
}

void Handle::execute(std::span<EValue*> args) {
  const size_t num_inputs = container_->num_inputs();
  const size_t num_outputs = container_->num_outputs();
  if (args.size() != num_inputs + num_outputs) {
    throw Failure(ErrorCode::InvalidArgument,
                  "the CUDA part of method '" + method_ + "' takes " + std::to_string(num_inputs) +
                      " inputs and " + std::to_string(num_outputs) + " outputs, and was given " +
                      std::to_string(args.size()) + " tensors");
  }
  for (size_t i = 0; i < args.size(); ++i) {
    if (!args[i]->isTensor()) {
      throw Failure(ErrorCode::InvalidArgument,
                    i < num_inputs ? argument("input", i, method_) + " is no tensor"
                                   : argument("output", i - num_inputs, method_) + " is no tensor");
    }
  }
  ContextGuard guard(device_);
  const std::optional<Stream> chosen = caller_stream(device_);
  const Stream stream = chosen ? *chosen : shared_stream(device_);
  StreamGuard current(device_, stream);
  ModuleScope::Active active(modules_);
  // What is recorded does not happen now: whoever launches the graph orders it.
  const bool recorded = Graph::recording(device_) != nullptr;
  if (!recorded) last_use_.order(stream, !chosen);
  Arguments inputs(num_inputs);
  Arguments outputs(num_outputs);
  // From here on the device may be reading or writing, whatever fails.
  struct Recorder {
    LastUse* last_use;
    Stream stream;
    bool own;
    ~Recorder() {
      if (last_use != nullptr) to_code([this] { last_use->record(stream, own); });
    }
  } recorder{recorded ? nullptr : &last_use_, stream, !chosen};
  for (size_t i = 0; i < num_inputs; ++i) {
    inputs[i] = input(args[i]->toTensor(), i, stream).release();
  }
  {
    offer_outputs(args.first(num_inputs), args.subspan(num_inputs));
    Placement::Active placing(placement_);
    container_->run(inputs.data(), outputs.data(), stream);
  }
  for (size_t i = 0; i < num_outputs; ++i) {
    if (outputs[i] == nullptr) {
      throw Failure(ErrorCode::Internal,
                    "the model left " + argument("output", i, method_) + " empty");
    }
  }
  rescue_outputs(outputs, args.subspan(num_inputs), stream);
  for (size_t i = 0; i < num_outputs; ++i) {
    output(args[num_inputs + i]->toTensor(), *outputs[i], i, stream);
  }
}

}  // namespace pteron::cuda

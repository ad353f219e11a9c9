#include "container.h"

namespace pteron::cuda {

namespace {

template <typename Function>
void require(const Library& library, const char* name, Function*& function) {
  library.find(name, function);
  if (function == nullptr) {
    throw Failure(ErrorCode::InvalidProgram,
                  std::string("the model's library has no function ") + name);
  }
}

}  // namespace

Container::Container(const Library& library, int device) {
  Functions& f = functions_;
  require(library, "AOTInductorModelContainerCreateWithDevice", f.create);
  require(library, "AOTInductorModelContainerDelete", f.destroy);
  require(library, "AOTInductorModelContainerGetNumInputs", f.get_num_inputs);
  require(library, "AOTInductorModelContainerGetNumOutputs", f.get_num_outputs);
  // A method runs one call at a time, so the variant without a mutex and an event will do.
  library.find("AOTInductorModelContainerRunSingleThreaded", f.run);
  if (f.run == nullptr) require(library, "AOTInductorModelContainerRun", f.run);
  library.find("AOTInductorModelContainerGetNumConstants", f.get_num_constants);
  library.find("AOTInductorModelContainerGetConstantName", f.get_constant_name);
  library.find("AOTInductorModelContainerGetConstantOriginalFQN", f.get_constant_fqn);
  library.find("AOTInductorModelContainerGetConstantDtype", f.get_constant_dtype);
  library.find("AOTInductorModelContainerGetConstantType", f.get_constant_type);
  library.find("AOTInductorModelContainerGetConstantFromFolded", f.get_constant_folded);
  library.find("AOTInductorModelContainerUpdateUserManagedConstantBufferPairs", f.bind);
  library.find("AOTInductorModelUpdateConstantsFromBlob", f.load_blob);
  library.find("AOTInductorGetLastError", f.last_error);

  const std::string name = "cuda:" + std::to_string(device);
  check(f.create(&container_, 1, name.c_str(), nullptr), "create the model");
  try {
    check(f.get_num_inputs(container_, &num_inputs_), "count the model's inputs");
    check(f.get_num_outputs(container_, &num_outputs_), "count the model's outputs");
  } catch (...) {
    f.destroy(container_);
    throw;
  }
}

Container::~Container() {
  if (container_ != nullptr) functions_.destroy(container_);
}

void Container::check(Code code, const char* doing) const {
  if (code == 0) return;
  std::string reason = take_last_error();
  if (functions_.last_error != nullptr) {
    const char* text = nullptr;
    if (functions_.last_error(&text) == 0 && text != nullptr && *text != '\0') reason = text;
  }
  if (reason.empty()) reason = "the model printed its reason to stderr";
  throw Failure(ErrorCode::Internal, reason + " (failed to " + doing + ")");
}

std::vector<Constant> Container::constants() const {
  const Functions& f = functions_;
  std::vector<Constant> all;
  if (f.get_num_constants == nullptr || f.get_constant_name == nullptr ||
      f.get_constant_fqn == nullptr) {
    return all;
  }
  size_t count = 0;
  check(f.get_num_constants(container_, &count), "count the model's weights");
  for (size_t i = 0; i < count; ++i) {
    Constant constant;
    const char* text = nullptr;
    check(f.get_constant_name(container_, i, &text), "name a weight");
    if (text != nullptr) constant.internal_name = text;
    text = nullptr;
    check(f.get_constant_fqn(container_, i, &text), "name a weight");
    if (text != nullptr) constant.fqn = text;
    if (f.get_constant_dtype != nullptr) {
      check(f.get_constant_dtype(container_, i, &constant.dtype), "describe a weight");
    }
    if (f.get_constant_type != nullptr) {
      int32_t kind = 0;
      check(f.get_constant_type(container_, i, &kind), "describe a weight");
      constant.kind = static_cast<ConstantKind>(kind);
    }
    if (f.get_constant_folded != nullptr) {
      check(f.get_constant_folded(container_, i, &constant.folded), "describe a weight");
    }
    all.push_back(std::move(constant));
  }
  return all;
}

void Container::bind(const std::vector<Binding>& bindings) {
  if (functions_.bind == nullptr) {
    throw Failure(ErrorCode::InvalidProgram, "the model's library takes no weights from outside");
  }
  set_last_error({});
  check(functions_.bind(container_, bindings.data(), bindings.size(), /*use_inactive=*/false,
                        /*validate_full_updates=*/true),
        "give the model its weights");
}

void Container::load_blob(const void* bytes) {
  if (functions_.load_blob == nullptr) {
    throw Failure(ErrorCode::InvalidProgram, "the model's library takes no weights from outside");
  }
  set_last_error({});
  check(functions_.load_blob(container_, static_cast<const uint8_t*>(bytes)),
        "give the model its weights");
}

void Container::run(Tensor** inputs, Tensor** outputs, Stream stream) {
  set_last_error({});
  check(functions_.run(container_, inputs, num_inputs_, outputs, num_outputs_, stream, nullptr),
        "run the model");
}

}  // namespace pteron::cuda

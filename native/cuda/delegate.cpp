#include "delegate.h"

#include <executorch/runtime/platform/log.h>

#include <atomic>
#include <charconv>
#include <cstring>
#include <memory>
#include <mutex>
#include <string_view>

#include "context.h"
#include "handle.h"
#include "memory.h"
#include "payload.h"

namespace pteron::cuda {

namespace {

namespace et = ::executorch::runtime;

std::atomic<int> handles{0};

// Runs `body`; a failure is logged as one line, the reason first, because the runtime cuts lines at
// 255 bytes and pteron's errors quote what was logged.
template <typename Body>
et::Error logged(const char* method, const char* doing, Body&& body) {
  const et::Error error = to_code(std::forward<Body>(body));
  if (error == et::Error::Ok) return error;
  const std::string reason = take_last_error();
  ET_LOG(Error, "%.180s (CUDA: %s method '%.40s')", reason.c_str(), doing,
         method != nullptr ? method : "");
  return error;
}

std::string_view text_of(const et::SizedBuffer& value) {
  std::string_view text(static_cast<const char*>(value.buffer), value.nbytes);
  while (!text.empty() && text.back() == '\0') text.remove_suffix(1);
  return text;
}

struct Specs {
  int device = 0;
  std::string method;
};

Specs read_specs(et::ArrayRef<et::CompileSpec> specs, const char* loaded_method) {
  Specs result;
  result.method = loaded_method != nullptr ? loaded_method : "forward";
  for (const et::CompileSpec& spec : specs) {
    if (spec.key == nullptr || spec.value.buffer == nullptr) continue;
    const std::string_view key = spec.key;
    const std::string_view text = text_of(spec.value);
    if (key == "method_name") {
      result.method = text;
    } else if (key == "target_device") {
      constexpr std::string_view kPrefix = "cuda:";
      int index = 0;
      const char* end = text.data() + text.size();
      const bool plain = text == "cuda";
      if (!plain) {
        const auto [stop, error] =
            text.starts_with(kPrefix)
                ? std::from_chars(text.data() + kPrefix.size(), end, index)
                : std::from_chars_result{text.data(), std::errc::invalid_argument};
        if (error != std::errc() || stop != end || index < 0) {
          throw Failure(et::Error::InvalidProgram,
                        "the program is for the device '" + std::string(text.substr(0, 40)) + "'");
        }
      }
      result.device = index;
    }
  }
  return result;
}

bool is_true(const et::OptionValue& value) {
  const bool* flag = std::get_if<bool>(&value);
  return flag != nullptr && *flag;
}

// Options of the official backend. All work goes to one stream per device unless the caller sets
// one, and weights are always shared, so those two ask for what is done anyway.
void check_option(const et::BackendOption& option) {
  const std::string_view key(option.key, strnlen(option.key, sizeof(option.key)));
  if (key == "use_shared_cuda_stream" || key == "weight_sharing_across_methods" ||
      key == "skip_copy_output_to_cpu_for_method") {
    return;
  }
  if (key == "enable_cuda_graph_for_method") {
    const auto* methods = std::get_if<std::array<char, et::kMaxOptionValueLength>>(&option.value);
    if ((methods != nullptr && (*methods)[0] != '\0') || is_true(option.value)) {
      throw Failure(et::Error::NotSupported, "CUDA graphs are asked for when a method is loaded");
    }
    return;
  }
  throw Failure(et::Error::InvalidArgument, "CudaBackend has no option '" + std::string(key) + "'");
}

std::unique_ptr<Handle> load(et::BackendInitContext& context, const et::FreeableBuffer& processed,
                             const Specs& specs) {
  for (const et::BackendOption& option : context.runtime_specs()) check_option(option);
  const std::span payload(static_cast<const std::byte*>(processed.data()), processed.size());
  const Manifest manifest = parse_payload(payload, specs.method);
  primary_context(specs.device);  // says that the device is missing, before anything is loaded
  const bool choice = manifest.libraries.size() > 1 || manifest.libraries[0].target_sm != 0;
  const uint32_t sm = choice ? static_cast<uint32_t>(compute_capability(specs.device)) : 0;
  const LibraryVariant& variant = select_library(manifest, sm);

  const NamedDataMap* data = context.get_named_data_map();
  const Library* library = nullptr;
  {
    const et::FreeableBuffer bytes = read_named_data(data, variant.key, "the model's library");
    library = &Library::load({static_cast<const std::byte*>(bytes.data()), bytes.size()});
  }
  auto handle = std::make_unique<Handle>(specs.device, specs.method, *library);
  handle->load_weights(manifest, data, variant.key);
  return handle;
}

}  // namespace

bool CudaBackend::is_available() const {
  std::string reason;
  if (driver_available(&reason)) return true;
  ET_LOG(Error, "%.200s (CudaBackend)", reason.c_str());
  return false;
}

et::Result<et::DelegateHandle*> CudaBackend::init(et::BackendInitContext& context,
                                                  et::FreeableBuffer* processed,
                                                  et::ArrayRef<et::CompileSpec> specs) const {
  std::unique_ptr<Handle> handle;
  const et::Error error = logged(context.get_method_name(), "loading", [&] {
    if (processed == nullptr) {
      throw Failure(et::Error::InvalidProgram, "the program has no CUDA payload");
    }
    handle = load(context, *processed, read_specs(specs, context.get_method_name()));
    processed->Free();
  });
  if (error != et::Error::Ok) return error;
  handles.fetch_add(1, std::memory_order_relaxed);
  return handle.release();
}

et::Error CudaBackend::execute(et::BackendExecutionContext& context, et::DelegateHandle* handle,
                               et::Span<et::EValue*> args) const {
  if (handle == nullptr) return et::Error::DelegateInvalidHandle;
  return logged(context.get_method_name(), "running",
                [&] { static_cast<Handle*>(handle)->execute({args.data(), args.size()}); });
}

et::Error CudaBackend::set_option(et::BackendOptionContext& /*context*/,
                                  const et::Span<et::BackendOption>& options) {
  return logged("", "setting an option of any", [&] {
    for (const et::BackendOption& option : options) check_option(option);
  });
}

void CudaBackend::destroy(et::DelegateHandle* handle) const {
  if (handle == nullptr) return;
  delete static_cast<Handle*>(handle);
  if (handles.fetch_sub(1, std::memory_order_relaxed) != 1) return;
  // The last model is gone: give the pools' idle memory back to the other users of the devices.
  to_code([] {
    for (int device = 0; device < device_count(); ++device) trim_pool(device);
  });
}

int live_handles() noexcept { return handles.load(std::memory_order_relaxed); }

void register_backend() {
  static std::once_flag once;
  std::call_once(once, [] {
    constexpr const char* kName = "CudaBackend";
    if (et::get_backend_class(kName) != nullptr) return;
    // Never destroyed: the registry keeps the pointer for good.
    const et::Error error = et::register_backend({kName, new CudaBackend});
    if (error != et::Error::Ok) ET_LOG(Error, "cannot register CudaBackend");
  });
}

}  // namespace pteron::cuda

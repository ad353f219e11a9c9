#include "program.h"

#include <executorch/extension/named_data_map/merged_data_map.h>
#include <executorch/runtime/core/device_allocator.h>
#include <executorch/runtime/executor/program.h>

#include <algorithm>
#include <iterator>
#include <set>

#include "cuda_library.h"
#include "data_file.h"
#include "error.h"
#include "log.h"
#include "method.h"
#include "registry.h"
#include "shared_state.h"
#include "trace.h"
#include "xnnpack_check.h"

namespace rt = executorch::runtime;

namespace pteron {
namespace {

// Delegates of a program without named data ask for it all the same; a null map crashes some.
class EmptyDataMap final : public rt::NamedDataMap {
 public:
  rt::Result<const rt::TensorLayout> get_tensor_layout(std::string_view) const override {
    return rt::Error::NotFound;
  }
  rt::Result<rt::FreeableBuffer> get_data(std::string_view) const override {
    return rt::Error::NotFound;
  }
  rt::Error load_data_into(std::string_view, void*, size_t) const override {
    return rt::Error::NotFound;
  }
  rt::Result<uint32_t> get_num_keys() const override { return 0; }
  rt::Result<const char*> get_key(uint32_t) const override { return rt::Error::NotFound; }
};

// "'a'", "'a' and 'b'", "'a', 'b' and 'c'".
template <typename Names>
std::string quoted(const Names& names) {
  std::string text;
  size_t i = 0;
  for (const auto& name : names) {
    if (i > 0) text += i + 1 == names.size() ? " and " : ", ";
    text += "'" + std::string(name) + "'";
    ++i;
  }
  return text;
}

void require_operators(const MethodSpec& spec) {
  std::set<std::string> missing;
  for (const OperatorSpec& op : spec.operators) {
    if (op.calls > 0 && !has_operator(op.full_name())) missing.insert(op.full_name());
  }
  if (missing.empty()) return;
  throw Error(Kind::OperatorMissing, Code::OperatorMissing,
              "Failed to load method '" + spec.name + "', " + code_text(Code::OperatorMissing) +
                  ": it uses " + quoted(missing) +
                  ", which no kernel here implements. Load a library that registers " +
                  (missing.size() == 1 ? "it" : "them") +
                  " with pteron.load_library(), or export the program without");
}

// Starts CUDA for a method that needs it. Devices that somebody else's allocator serves are theirs.
void require_devices(const MethodSpec& spec) {
  if (!cuda::is_needed_by(spec)) return;
  const bool delegated = std::any_of(spec.delegates.begin(), spec.delegates.end(),
                                     [](const auto& part) { return part.id == "CudaBackend"; });
  if (!delegated && rt::get_device_allocator(rt::etensor::DeviceType::CUDA) != nullptr) return;
  try {
    cuda::api();
  } catch (const Error& error) {
    Device device{DeviceType::Cuda, 0};
    for (const PlannedBuffer& buffer : spec.buffers) {
      if (!buffer.device.is_cpu()) device = buffer.device;
    }
    throw Error(error.kind, error.code,
                "Failed to load method '" + spec.name + "', which works on device " +
                    to_string(device) + ": " + error.what());
  }
}

void require_backends(const MethodSpec& spec) {
  std::set<std::string> missing;
  for (const DelegateSpec& delegate : spec.delegates) {
    if (!is_backend_available(delegate.id)) missing.insert(delegate.id);
  }
  if (missing.empty()) return;
  std::string where;
  for (const PlannedBuffer& buffer : spec.buffers) {
    if (!buffer.device.is_cpu())
      where = " (it keeps values on device " + to_string(buffer.device) + ")";
  }
  throw Error(Kind::BackendMissing, Code::NotFound,
              "Failed to load method '" + spec.name + "', " + code_text(Code::NotFound) +
                  ": parts of it were exported for the backend " + quoted(missing) +
                  ", which is not available here" + where +
                  ". Present: " + quoted(backend_names()) +
                  ". Load a library that registers it with pteron.load_library(), or export the "
                  "program for one of these");
}

void require_external_constants(const MethodSpec& spec, const rt::NamedDataMap& map,
                                bool any_data_file) {
  std::set<std::string> missing;
  for (uint32_t index : spec.attributes) {
    const TensorSpec& tensor = spec.values[index].tensor;
    if (tensor.external && !map.get_tensor_layout(tensor.name).ok()) missing.insert(tensor.name);
  }
  if (missing.empty()) return;
  // A net has hundreds; a few say which.
  constexpr size_t kNamed = 5;
  std::string more;
  if (missing.size() > kNamed) {
    more = " (and " + std::to_string(missing.size() - kNamed) + " more)";
    missing.erase(std::next(missing.begin(), kNamed), missing.end());
  }
  const bool one = missing.size() == 1;
  throw Error(Kind::DataNotFound, Code::NotFound,
              "Failed to load method '" + spec.name + "', " + code_text(Code::NotFound) +
                  (one ? ": the weight " : ": the weights ") + quoted(missing) + more +
                  (one ? " is " : " are ") +
                  (any_data_file ? "not in the data files that were given"
                                 : "in a data file (.ptd): pass its path as data_path"));
}

void check_payloads(const MethodSpec& spec, const std::string& name, const DataSource& source,
                    const NamedBytes& named_bytes) {
  const auto named = [&](std::string_view key) -> uint64_t {
    const auto found = named_bytes.find(std::string(key));
    return found == named_bytes.end() ? 0 : found->second;
  };
  const auto read = [&](uint64_t offset, std::span<std::byte> into) {
    return source.read_at(offset, into);
  };
  flatbuffer::Place place(name);
  place.enter(spec.name);
  std::set<std::pair<uint64_t, uint64_t>> checked;  // delegates may share a payload
  uint64_t may_read = 2 * source.file_size();
  for (size_t i = 0; i < spec.delegates.size(); ++i) {
    const DelegateSpec& delegate = spec.delegates[i];
    place.at("delegate", i);
    if (delegate.id != "XnnpackBackend") continue;
    if (!checked.emplace(delegate.offset, delegate.nbytes).second) continue;
    if (delegate.nbytes > may_read) place.fail("its payload and others are the same bytes");
    may_read -= delegate.nbytes;
    check_xnnpack_payload(delegate.offset, delegate.nbytes, read, named, place);
  }
}

}  // namespace

Program::Program() : shared_state_(std::make_unique<SharedState>()) {}
Program::~Program() = default;

ProgramFile Program::read_file(DataSource& source, const std::string& name) {
  const auto head = source.pin_head(rt::Program::kMinHeadBytes, name);
  const uint64_t size = ProgramFile::flatbuffer_size(head, source.file_size(), name);
  return ProgramFile::parse(
      source.pin_head(size, name), source.file_size(), name,
      [&](uint64_t offset, std::span<std::byte> into) { return source.read_at(offset, into); });
}

std::shared_ptr<Program> Program::load(NamedSource program, std::vector<NamedSource> data,
                                       const LoadOptions& options) {
  std::shared_ptr<Program> self(new Program);
  self->name_ = std::move(program.name);
  self->source_ = std::move(program.source);
  DataSource& source = *self->source_;
  self->file_ = read_file(source, self->name_);

  const auto verification = options.verification == Verification::Minimal
                                ? rt::Program::Verification::Minimal
                                : rt::Program::Verification::InternalConsistency;
  auto loaded = rt::Program::load(&source, verification);
  check(loaded.error(), [&] { return "load program " + self->name_; });
  self->program_ = std::make_unique<rt::Program>(std::move(loaded.get()));

  for (const NamedData& entry : self->file_.named_data) {
    self->named_bytes_.try_emplace(entry.key, entry.nbytes);
  }
  std::vector<const rt::NamedDataMap*> maps;
  for (NamedSource& file : data) {
    self->data_maps_.push_back(open_data_file(*file.source, file.name, self->named_bytes_));
    maps.push_back(self->data_maps_.back().get());
  }
  self->data_sources_ = std::move(data);
  if (maps.empty()) {
    self->data_map_ = std::make_unique<EmptyDataMap>();
  } else {
    using executorch::extension::ET_MERGED_DATA_MAP_NAMESPACE::MergedDataMap;
    auto merged = MergedDataMap::load({maps.data(), maps.size()});
    if (!merged.ok()) {
      fail(Kind::InvalidData, static_cast<uint32_t>(merged.error()), "combine the data files");
    }
    self->data_map_ = std::make_unique<MergedDataMap>(std::move(merged.get()));
  }
  if (options.enable_etdump) self->trace_ = std::make_shared<Trace>(options.debug_buffer_size);
  return self;
}

const MethodSpec& Program::spec(std::string_view method) const {
  if (const MethodSpec* spec = file_.find(method)) return *spec;
  std::vector<std::string> names;
  for (const MethodSpec& spec : file_.methods) names.push_back(spec.name);
  throw Error(Kind::MethodNotFound, Code::InvalidArgument,
              name_ + " has no method '" + std::string(method) + "'; it has " + quoted(names));
}

void Program::load_initial(const StateSpec& state, void* into) const {
  const StateSpec::Initial& from = state.initial;
  if (from.value == StateSpec::kNone) return;
  const auto doing = [&] { return "load the initial value of state '" + state.name + "'"; };
  const TensorSpec& tensor = file_.methods[from.method].values[from.value].tensor;
  if (tensor.external) {
    check(data_map_->load_data_into(tensor.name, into, tensor.nbytes), doing);
  } else if (!source_->read_at(tensor.initial_offset,
                               {static_cast<std::byte*>(into), tensor.nbytes})) {
    fail(Kind::FileAccess, static_cast<uint32_t>(Code::AccessFailed), doing());
  }
}

std::shared_ptr<Method> Program::load_method(std::string_view name, const MethodOptions& options) {
  const MethodSpec& spec = this->spec(name);
  require_operators(spec);
  require_devices(spec);
  require_backends(spec);
  require_external_constants(spec, *data_map_, !data_sources_.empty());
  check_payloads(spec, name_, *source_, named_bytes_);
  return std::make_shared<Method>(shared_from_this(), spec, *program_, *data_map_, options);
}

}  // namespace pteron

#include "payload.h"

#include <bit>
#include <cstring>
#include <unordered_set>

#include "tensor.h"

namespace pteron::cuda {

namespace {

static_assert(std::endian::native == std::endian::little, "payloads are little-endian");

constexpr std::string_view kFamily = "ETCUDAFQN";
constexpr size_t kMagicSize = 10;
constexpr uint32_t kMaxEntries = 1U << 20;
constexpr uint32_t kMaxVariants = 64;
constexpr uint32_t kMaxDims = 64;
constexpr uint32_t kMaxString = 1U << 16;

[[noreturn]] void bad(const std::string& what) {
  throw Failure(ErrorCode::InvalidProgram, "the CUDA payload is damaged: " + what);
}

class Reader {
 public:
  explicit Reader(std::span<const std::byte> data) : data_(data) {}

  template <typename T>
  T number(const char* what) {
    T value;
    if (data_.size() < sizeof(T)) bad(std::string("it ends inside ") + what);
    std::memcpy(&value, data_.data(), sizeof(T));
    data_ = data_.subspan(sizeof(T));
    return value;
  }

  std::string string(const char* what) {
    const auto size = number<uint32_t>(what);
    if (size > kMaxString || size > data_.size()) bad(std::string("it ends inside ") + what);
    std::string value(reinterpret_cast<const char*>(data_.data()), size);
    data_ = data_.subspan(size);
    if (value.empty()) bad(std::string(what) + " is empty");
    if (value.find('\0') != std::string::npos) bad(std::string(what) + " has a zero byte");
    return value;
  }

  std::vector<int64_t> numbers(uint32_t count, const char* what) {
    if (data_.size() / sizeof(int64_t) < count) bad(std::string("it ends inside ") + what);
    std::vector<int64_t> values(count);
    for (int64_t& value : values) {
      value = number<int64_t>(what);
      if (value < 0) bad(std::string(what) + " has a negative number");
    }
    return values;
  }

  size_t left() const { return data_.size(); }

 private:
  std::span<const std::byte> data_;
};

WeightEntry read_weight(Reader& reader) {
  WeightEntry entry;
  entry.fqn = reader.string("a weight's name");
  entry.storage_key = reader.string("a weight's key");
  entry.storage_nbytes = reader.number<uint64_t>("a weight's size");
  const auto dtype = reader.number<int32_t>("a weight's type");
  if (!is_dtype(dtype)) {
    bad("weight '" + entry.fqn + "' has the unknown type " + std::to_string(dtype));
  }
  entry.dtype = static_cast<DType>(dtype);
  const auto device = reader.number<int32_t>("a weight's device");
  if (device != 0 && device != 1) {
    bad("weight '" + entry.fqn + "' is on the unknown device type " + std::to_string(device));
  }
  entry.on_device = device == 1;
  entry.offset = reader.number<int64_t>("a weight's offset");
  if (entry.offset < 0) bad("weight '" + entry.fqn + "' has a negative offset");
  const auto ndim = reader.number<uint32_t>("a weight's shape");
  if (ndim > kMaxDims) {
    bad("weight '" + entry.fqn + "' has " + std::to_string(ndim) + " dimensions");
  }
  entry.sizes = reader.numbers(ndim, "a weight's shape");
  entry.strides = reader.numbers(ndim, "a weight's strides");

  int64_t end = 0;
  int64_t nbytes = 0;
  try {
    checked_numel(entry.sizes);
    end = span_of(entry.sizes, entry.strides);
  } catch (const Failure&) {
    bad("the shape of weight '" + entry.fqn + "' overflows");
  }
  const auto item = static_cast<int64_t>(itemsize(entry.dtype));
  if (end > 0 && (__builtin_add_overflow(end, entry.offset, &end) ||
                  __builtin_mul_overflow(end, item, &nbytes) ||
                  static_cast<uint64_t>(nbytes) > entry.storage_nbytes)) {
    bad("weight '" + entry.fqn + "' reaches past the end of its " +
        std::to_string(entry.storage_nbytes) + " bytes");
  }
  return entry;
}

void read_weights(Reader& reader, Manifest& manifest) {
  const auto count = reader.number<uint32_t>("the number of weights");
  if (count > kMaxEntries) bad("it claims " + std::to_string(count) + " weights");
  std::unordered_set<std::string> names;
  for (uint32_t i = 0; i < count; ++i) {
    WeightEntry entry = read_weight(reader);
    if (!names.insert(entry.fqn).second) bad("weight '" + entry.fqn + "' is there twice");
    manifest.weights.push_back(std::move(entry));
  }
  if (reader.left() != 0) bad(std::to_string(reader.left()) + " bytes are left over");
}

void read_variants(Reader& reader, Manifest& manifest) {
  const auto count = reader.number<uint32_t>("the number of libraries");
  if (count == 0 || count > kMaxVariants) bad("it claims " + std::to_string(count) + " libraries");
  for (uint32_t i = 0; i < count; ++i) {
    LibraryVariant variant;
    variant.target_sm = reader.number<uint32_t>("a library's target");
    variant.ptx_compute = reader.number<uint32_t>("a library's target");
    variant.fallback_only = (reader.number<uint32_t>("a library's flags") & 1U) != 0;
    variant.key = reader.string("a library's key");
    manifest.libraries.push_back(std::move(variant));
  }
}

// "<key of the library>\n<key of the weights>".
Manifest read_two_keys(std::string_view text) {
  while (!text.empty() && (text.back() == '\0' || text.back() == '\n')) text.remove_suffix(1);
  const size_t line_end = text.find('\n');
  auto is_key = [](std::string_view key) {
    if (key.empty() || key.size() > kMaxString) return false;
    for (const char c : key) {
      if (c < 0x21 || c > 0x7E) return false;
    }
    return true;
  };
  if (line_end == std::string_view::npos || !is_key(text.substr(0, line_end)) ||
      !is_key(text.substr(line_end + 1))) {
    throw Failure(ErrorCode::InvalidProgram,
                  "the CUDA payload has an unknown form: no magic that "
                  "this version knows, and not two keys");
  }
  Manifest manifest;
  manifest.libraries.push_back({0, 0, false, std::string(text.substr(0, line_end))});
  manifest.blob_key = text.substr(line_end + 1);
  return manifest;
}

}  // namespace

Manifest parse_payload(std::span<const std::byte> payload, std::string_view method) {
  Manifest manifest;
  if (payload.empty()) {
    manifest.libraries.push_back({0, 0, false, std::string(method) + "_so_blob"});
    manifest.blob_key = std::string(method) + "_weights_blob";
    return manifest;
  }
  const std::string_view text(reinterpret_cast<const char*>(payload.data()), payload.size());
  if (!text.starts_with(kFamily)) return read_two_keys(text);
  if (payload.size() < kMagicSize) bad("it ends inside its magic");
  Reader reader(payload.subspan(kMagicSize));
  switch (text[kMagicSize - 1]) {
    case '3':
      manifest.libraries.push_back({0, 0, false, reader.string("the library's key")});
      break;
    case '0':
      read_variants(reader, manifest);
      break;
    default: {
      const char c = text[kMagicSize - 1];
      throw Failure(ErrorCode::NotSupported,
                    std::string("the CUDA payload has an unknown magic: ETCUDAFQN") +
                        (c >= 0x21 && c <= 0x7E ? c : '?') +
                        ", written by an exporter that this version does not know");
    }
  }
  read_weights(reader, manifest);
  return manifest;
}

const LibraryVariant& select_library(const Manifest& manifest, uint32_t sm) {
  const auto& libraries = manifest.libraries;
  if (libraries.size() == 1 && libraries[0].target_sm == 0) return libraries[0];
  for (const LibraryVariant& variant : libraries) {
    if (variant.target_sm == sm && !variant.fallback_only) return variant;
  }
  // PTX of an older generation is compiled for this GPU when it is loaded; take the newest.
  const LibraryVariant* best = nullptr;
  for (const LibraryVariant& variant : libraries) {
    const bool usable = variant.ptx_compute > 0 && variant.ptx_compute <= sm &&
                        (variant.fallback_only || libraries.size() == 1);
    if (usable && (best == nullptr || variant.ptx_compute > best->ptx_compute)) best = &variant;
  }
  if (best != nullptr) return *best;
  std::string have;
  for (const LibraryVariant& variant : libraries) {
    have += (have.empty() ? "sm_" : ", sm_") + std::to_string(variant.target_sm);
  }
  throw Failure(ErrorCode::NotSupported, "the program holds no code for this GPU (sm_" +
                                             std::to_string(sm) + "), only for " + have);
}

}  // namespace pteron::cuda

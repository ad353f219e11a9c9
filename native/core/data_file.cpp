#include "data_file.h"

#include <executorch/extension/flat_tensor/flat_tensor_data_map.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "dtype.h"
#include "error.h"
#include "flatbuffer.h"

namespace rt = executorch::runtime;
using executorch::extension::FlatTensorDataMap;

namespace pteron {
namespace {

using flatbuffer::Buffer;
using flatbuffer::Field;
using flatbuffer::Place;
using flatbuffer::Table;

// Field numbers of flat_tensor.fbs.
constexpr Field kVersion{0, "version"}, kSegments{1, "segments"}, kNamedData{2, "named_data"};
constexpr Field kOffset{0, "offset"}, kSize{1, "size"};
constexpr Field kKey{0, "key"}, kSegmentIndex{1, "segment_index"}, kLayout{2, "tensor_layout"};
constexpr Field kScalarType{0, "scalar_type"}, kSizes{1, "sizes"}, kDimOrder{2, "dim_order"};

constexpr size_t kHeadSize = 64;  // what the runtime wants to see before it looks further
constexpr uint32_t kMaxRank = 16;

struct Head {
  uint64_t offset, size;  // of the flatbuffer
  uint64_t segment_base, segment_nbytes;
};

Head read_head(std::span<const std::byte> bytes, uint64_t file_size, const Place& place) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (text.size() < 8 || text.substr(4, 4) != "FT01") {
    place.fail(text.size() >= 6 && text.substr(4, 2) == "ET" ? "it is a program"
                                                             : "it has no identifier FT01");
  }
  if (text.size() < kHeadSize) place.fail("it is cut short");
  if (text.substr(8, 4) != "FH01") place.fail("its header is missing");
  uint32_t length;
  Head head;
  std::memcpy(&length, bytes.data() + 12, sizeof length);
  std::memcpy(&head, bytes.data() + 16, sizeof head);
  if (length < 8 + sizeof head) {
    place.fail("its header is " + std::to_string(length) + " bytes long instead of 40 or more");
  }
  if (head.offset > file_size || head.size > file_size - head.offset) {
    place.fail("its header puts the list of its data outside of the file (the file is cut short)");
  }
  if (head.segment_base > file_size || head.segment_nbytes > file_size - head.segment_base) {
    place.fail("its header puts data outside of the file (the file is cut short)");
  }
  return head;
}

// Bytes of each segment.
std::vector<uint64_t> read_segments(const Table& root, const Head& head, uint64_t file_size,
                                    Place& place) {
  std::vector<uint64_t> sizes;
  const auto tables = root.required<uint32_t>(kSegments);
  for (uint32_t i = 0; i < tables.size(); ++i) {
    place.at("segment", i);
    const Table segment = root.element(tables, i);
    const auto offset = segment.get<uint64_t>(kOffset);
    const auto size = segment.get<uint64_t>(kSize);
    const uint64_t room = file_size - head.segment_base;
    if (offset > room || size > room - offset) {
      place.fail("it lies outside of the file (the file is cut short)");
    }
    sizes.push_back(size);
  }
  place.at_file();
  return sizes;
}

void check_layout(const Table& layout, uint64_t segment_nbytes, const Place& place) {
  const auto type = layout.get<int8_t>(kScalarType);
  if (!is_dtype(type)) place.fail("it has the unknown type " + std::to_string(type));
  const auto sizes = layout.required<int32_t>(kSizes);
  const auto order = layout.required<uint8_t>(kDimOrder);
  if (sizes.size() > kMaxRank || order.size() != sizes.size()) {
    place.fail("it has " + std::to_string(sizes.size()) + " sizes in an order of " +
               std::to_string(order.size()) + " axes");
  }
  uint32_t seen = 0;
  uint64_t nbytes = itemsize(static_cast<DType>(type));
  for (uint32_t i = 0; i < sizes.size(); ++i) {
    if (order[i] >= sizes.size() || (seen >> order[i] & 1) != 0) {
      place.fail("the order of its axes is none");
    }
    seen |= 1u << order[i];
    const int32_t size = sizes[i];
    if (size < 0) place.fail("one of its sizes is " + std::to_string(size));
    if (__builtin_mul_overflow(nbytes, static_cast<uint64_t>(size), &nbytes)) {
      place.fail("it is larger than memory can be");
    }
  }
  if (nbytes > segment_nbytes) {
    place.fail("it takes " + std::to_string(nbytes) + " bytes, and the file has " +
               std::to_string(segment_nbytes) + " for it");
  }
}

// Data of backends has no layout, and the runtime does not look whether the data that it wants one
// of has one.
class DataFile final : public rt::NamedDataMap {
 public:
  DataFile(FlatTensorDataMap map, std::unordered_set<std::string> without_layout)
      : map_(std::move(map)), without_layout_(std::move(without_layout)) {}

  rt::Result<const rt::TensorLayout> get_tensor_layout(std::string_view key) const override {
    if (!has_layout(key)) return rt::Error::InvalidExternalData;
    return map_.get_tensor_layout(key);
  }
  rt::Result<rt::FreeableBuffer> get_data(std::string_view key) const override {
    return map_.get_data(key);
  }
  rt::Error load_data_into(std::string_view key, void* buffer, size_t size) const override {
    if (!has_layout(key)) return rt::Error::InvalidExternalData;
    return map_.load_data_into(key, buffer, size);
  }
  rt::Result<uint32_t> get_num_keys() const override { return map_.get_num_keys(); }
  rt::Result<const char*> get_key(uint32_t index) const override { return map_.get_key(index); }

 private:
  bool has_layout(std::string_view key) const {
    return without_layout_.empty() || !without_layout_.contains(std::string(key));
  }

  FlatTensorDataMap map_;
  std::unordered_set<std::string> without_layout_;
};

// Checks the file and returns the keys that have no layout.
std::unordered_set<std::string> check_structure(DataSource& source, const std::string& name,
                                                NamedBytes& named) {
  Place place(name, Kind::InvalidData);
  const uint64_t file_size = source.file_size();
  const Head head = read_head(source.pin_head(kHeadSize, name), file_size, place);
  const size_t end = static_cast<size_t>(head.offset + head.size);
  const auto bytes = source.pin_head(std::max(end, kHeadSize), name);
  // The runtime reads the header again, from what is pinned now.
  const Head pinned = read_head(bytes, file_size, place);
  if (std::memcmp(&head, &pinned, sizeof head) != 0) place.fail("it changes while it is read");

  Buffer buffer(bytes.first(end), place);  // counts from the start of the file, not of the list
  const Table root(buffer, flatbuffer::follow(buffer, 0, "root"), "root");
  root.get<uint32_t>(kVersion);  // the runtime says which it knows
  const std::vector<uint64_t> segments = read_segments(root, head, file_size, place);
  const auto entries = root.required<uint32_t>(kNamedData);
  std::unordered_set<std::string_view> keys;
  std::unordered_set<std::string> without_layout;
  for (uint32_t i = 0; i < entries.size(); ++i) {
    place.at("entry", i);
    const Table entry = root.element(entries, i);
    const std::string_view key = entry.string(kKey);
    if (key.empty()) place.fail("it has no name");
    if (!keys.insert(key).second) place.fail("another has the same name");
    const auto index = entry.get<uint32_t>(kSegmentIndex);
    if (index >= segments.size()) {
      place.fail("its bytes are in segment " + std::to_string(index) + " of " +
                 std::to_string(segments.size()));
    }
    named.try_emplace(std::string(key), segments[index]);
    const Table layout = entry.table(kLayout);
    if (layout.present()) {
      check_layout(layout, segments[index], place);
    } else {
      without_layout.emplace(key);
    }
  }
  return without_layout;
}

}  // namespace

std::unique_ptr<rt::NamedDataMap> open_data_file(DataSource& source, const std::string& name,
                                                 NamedBytes& bytes) {
  auto without_layout = check_structure(source, name, bytes);
  auto map = FlatTensorDataMap::load(&source);
  if (!map.ok()) {
    fail(Kind::InvalidData, static_cast<uint32_t>(map.error()), "load data file " + name);
  }
  return std::make_unique<DataFile>(std::move(map.get()), std::move(without_layout));
}

}  // namespace pteron

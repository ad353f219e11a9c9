// Bounds-checked reading of a flatbuffer that nobody vouches for.
//
// Every access checks bounds and the alignment that the format demands (relative to the start of
// the buffer: the memory itself needs none) and throws Error{InvalidProgram} naming the field and
// the place. Offsets may make many references share one object, so whatever is visited is charged
// against a budget proportional to the buffer: work and memory stay linear in the file's size.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "error.h"
#include "utf8.h"

namespace pteron::flatbuffer {

static_assert(std::endian::native == std::endian::little, "flatbuffers are little-endian");

// What the reader looks at, for messages: "value 7 of method 'forward'".
class Place {
 public:
  // Of a program, or with Kind::InvalidData of a data file.
  explicit Place(std::string_view file, Kind kind = Kind::InvalidProgram)
      : file_(file), kind_(kind) {}

  void enter(std::string_view method) { method_ = method; }
  void at(const char* item, uint64_t index) noexcept {
    item_ = item;
    index_ = index;
  }
  void at_file() noexcept { item_ = nullptr; }

  [[noreturn]] void fail(const std::string& wrong) const {
    const bool program = kind_ == Kind::InvalidProgram;
    std::string text = file_ + (program ? ": invalid program file: " : ": invalid data file: ");
    if (item_ != nullptr) text += std::string(item_) + " " + std::to_string(index_);
    if (!method_.empty()) {
      text += (item_ != nullptr ? " of method '" : "method '") +
              method_.substr(0, utf8_prefix(method_, 80)) + "'";
    }
    if (item_ != nullptr || !method_.empty()) text += ": ";
    throw Error(kind_, program ? Code::InvalidProgram : Code::InvalidExternalData, text + wrong);
  }

 private:
  std::string file_;
  Kind kind_;
  std::string method_;
  const char* item_ = nullptr;
  uint64_t index_ = 0;
};

// A table's field: its number in the schema and its name.
struct Field {
  uint16_t slot;
  const char* name;
};

class Buffer {
 public:
  // The buffer's bytes and its place must outlive everything read from it.
  Buffer(std::span<const std::byte> data, const Place& place)
      : data_(data), place_(place), budget_(2 * static_cast<uint64_t>(data.size()) + (1u << 20)) {
    if (data.size() > 0x7FFFFFFF) place.fail("its program data is larger than 2 GiB");
  }

  uint64_t size() const noexcept { return data_.size(); }
  const Place& place() const noexcept { return place_; }

  bool holds(uint64_t at, uint64_t nbytes) const noexcept {
    return at <= size() && nbytes <= size() - at;
  }

  template <typename T>
  T load(uint64_t at, const char* field) const {
    static_assert(std::is_arithmetic_v<T> && !std::is_same_v<T, bool>);
    if (!holds(at, sizeof(T))) outside(field);
    if (at % sizeof(T) != 0) misplaced(field);
    T value;
    std::memcpy(&value, data_.data() + at, sizeof(T));
    return value;
  }

  std::string_view text(uint64_t at, uint64_t nbytes) const noexcept {
    return {reinterpret_cast<const char*>(data_.data()) + at, static_cast<size_t>(nbytes)};
  }

  void charge(uint64_t nbytes) {
    if (nbytes > budget_) {
      place_.fail("it refers to the same data over and over, which no exporter does");
    }
    budget_ -= nbytes;
  }

  [[noreturn]] void outside(const char* field) const {
    place_.fail(std::string("its '") + field +
                "' reaches past the end of the program data (the file is damaged or cut short)");
  }
  [[noreturn]] void misplaced(const char* field) const {
    place_.fail(std::string("its '") + field + "' is at an odd address (the file is damaged)");
  }

 private:
  std::span<const std::byte> data_;
  const Place& place_;
  uint64_t budget_;
};

// Where an unsigned offset stored at `at` points to.
inline uint64_t follow(const Buffer& buffer, uint64_t at, const char* field) {
  return at + buffer.load<uint32_t>(at, field);
}

// A vector of numbers or of offsets (uint32_t); its elements are known to lie in the buffer.
template <typename T>
class Vector {
 public:
  Vector() = default;
  Vector(const Buffer& buffer, uint64_t at, const char* field) : buffer_(&buffer), field_(field) {
    const uint32_t n = buffer.load<uint32_t>(at, field);
    start_ = at + sizeof(uint32_t);
    if (n != 0 && start_ % sizeof(T) != 0) buffer.misplaced(field);
    if (!buffer.holds(start_, uint64_t{n} * sizeof(T))) buffer.outside(field);
    size_ = n;
  }

  bool present() const noexcept { return buffer_ != nullptr; }
  uint32_t size() const noexcept { return size_; }
  uint64_t start() const noexcept { return start_; }
  const char* field() const noexcept { return field_; }
  uint64_t position(uint32_t i) const noexcept { return start_ + uint64_t{i} * sizeof(T); }
  T operator[](uint32_t i) const { return buffer_->load<T>(position(i), field_); }

 private:
  const Buffer* buffer_ = nullptr;
  const char* field_ = "";
  uint64_t start_ = 0;
  uint32_t size_ = 0;
};

class Table {
 public:
  Table() = default;
  Table(Buffer& buffer, uint64_t at, const char* field) : buffer_(&buffer), at_(at) {
    const int64_t vtable = static_cast<int64_t>(at) - buffer.load<int32_t>(at, field);
    if (vtable < 0) buffer.outside(field);
    vtable_ = static_cast<uint64_t>(vtable);
    vtable_size_ = buffer.load<uint16_t>(vtable_, field);
    table_size_ = buffer.load<uint16_t>(vtable_ + 2, field);
    if (vtable_size_ < 4 || vtable_size_ % 2 != 0 || table_size_ < 4) buffer.misplaced(field);
    if (!buffer.holds(vtable_, vtable_size_) || !buffer.holds(at, table_size_)) {
      buffer.outside(field);
    }
    // Of fields that nobody asks for here too: the runtime may.
    for (uint64_t slot = vtable_ + 4; slot < vtable_ + vtable_size_; slot += 2) {
      const uint16_t offset = buffer.load<uint16_t>(slot, field);
      if (offset != 0 && (offset < 4 || offset >= table_size_)) buffer.outside(field);
    }
    buffer.charge(table_size_);
  }

  bool present() const noexcept { return buffer_ != nullptr; }
  uint64_t buffer_size() const noexcept { return buffer_ == nullptr ? 0 : buffer_->size(); }

  template <typename T>
  T get(Field field, T otherwise = T{}) const {
    const uint64_t at = find(field, sizeof(T));
    return at == 0 ? otherwise : buffer_->load<T>(at, field.name);
  }

  // Not present() where the field is absent.
  Table table(Field field) const {
    const uint64_t at = find(field, sizeof(uint32_t));
    if (at == 0) return {};
    return Table(*buffer_, follow(*buffer_, at, field.name), field.name);
  }

  // A vector whose elements will be visited one by one.
  template <typename T>
  Vector<T> vector(Field field) const {
    Vector<T> items = unvisited<T>(field);
    buffer_->charge(uint64_t{items.size()} * sizeof(T));
    return items;
  }

  // The same, where the runtime does not look whether it is there.
  template <typename T>
  Vector<T> required(Field field) const {
    const Vector<T> items = vector<T>(field);
    if (!items.present()) {
      buffer_->place().fail(std::string("its '") + field.name + "' is missing");
    }
    return items;
  }

  // A vector of which only the place and the length are wanted.
  template <typename T>
  Vector<T> unvisited(Field field) const {
    const uint64_t at = find(field, sizeof(uint32_t));
    if (at == 0) return {};
    return Vector<T>(*buffer_, follow(*buffer_, at, field.name), field.name);
  }

  // UTF-8 and zero-terminated, as the runtime reads it. Empty where the field is absent.
  std::string_view string(Field field, bool* present = nullptr) const {
    const Vector<char> chars = vector<char>(field);
    if (present != nullptr) *present = chars.present();
    if (!chars.present()) return {};
    if (!buffer_->holds(chars.start(), uint64_t{chars.size()} + 1)) buffer_->outside(field.name);
    const std::string_view text = buffer_->text(chars.start(), uint64_t{chars.size()} + 1);
    if (text.back() != '\0') {
      buffer_->place().fail(std::string("its '") + field.name +
                            "' has no end (the file is damaged)");
    }
    if (!is_utf8(text)) {
      buffer_->place().fail(std::string("its '") + field.name + "' is not UTF-8 text");
    }
    return text.substr(0, chars.size());
  }

  Table element(const Vector<uint32_t>& tables, uint32_t i) const {
    const uint64_t at = follow(*buffer_, tables.position(i), tables.field());
    return Table(*buffer_, at, tables.field());
  }

 private:
  // Position of the field's inline part of `nbytes`, 0 where it is absent.
  uint64_t find(Field field, uint64_t nbytes) const {
    const uint32_t slot = 4u + 2u * field.slot;
    if (slot + 2 > vtable_size_) return 0;
    const uint16_t offset = buffer_->load<uint16_t>(vtable_ + slot, field.name);
    if (offset == 0) return 0;
    if (offset < 4 || offset + nbytes > table_size_) buffer_->outside(field.name);
    return at_ + offset;
  }

  Buffer* buffer_ = nullptr;
  uint64_t at_ = 0;
  uint64_t vtable_ = 0;
  uint16_t vtable_size_ = 0;
  uint16_t table_size_ = 0;
};

}  // namespace pteron::flatbuffer

// Where the bytes of a program or a data file come from.
//
// Each source is a DataLoader of the runtime. It also keeps the head of the file, the part that the
// reader of program_file.h has checked, so that the runtime reads the very bytes that were checked
// even if the file changes in between.
#pragma once

#include <executorch/runtime/core/data_loader.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace pteron {

class DataSource : public executorch::runtime::DataLoader {
 public:
  // Reads pieces of the file when they are asked for, and keeps it open. A file that shrinks later
  // gives errors. Throws Error{FileNotFound or FileAccess}.
  static std::unique_ptr<DataSource> open(const std::string& path);

  // Maps the file. Pages are shared with other processes and read when touched; a file that shrinks
  // later ends the process with SIGBUS when a lost page is touched.
  static std::unique_ptr<DataSource> map(const std::string& path);

  // Memory that `owner` keeps alive and nobody writes. Copied if it is not 16-byte aligned, which
  // flatbuffers and constants need.
  static std::unique_ptr<DataSource> borrow(std::span<const std::byte> bytes,
                                            std::shared_ptr<void> owner);
  static std::unique_ptr<DataSource> copy(std::span<const std::byte> bytes);

  // The first `size` bytes, from now on always these: load() gives them out too. Throws
  // Error{FileAccess}.
  std::span<const std::byte> pin_head(size_t size, const std::string& name);

  // Fills `into` from byte `offset`; false, with a log line, when the bytes cannot be had.
  bool read_at(uint64_t offset, std::span<std::byte> into) const {
    return in_range(offset, into.size()) && read(offset, into.size(), into.data());
  }

  uint64_t file_size() const noexcept { return size_; }

  executorch::runtime::Result<executorch::runtime::FreeableBuffer> load(
      size_t offset, size_t size, const SegmentInfo& info) const override;
  executorch::runtime::Error load_into(size_t offset, size_t size, const SegmentInfo& info,
                                       void* buffer) const override;
  executorch::runtime::Result<size_t> size() const override { return size_; }

 protected:
  explicit DataSource(size_t size) : size_(size) {}

  // The bytes at `offset` if they are in memory anyway, else null. The range is inside the file.
  virtual const std::byte* resident(size_t offset) const = 0;
  // Fills `buffer`; false, with a log line, when the bytes cannot be had.
  virtual bool read(size_t offset, size_t size, void* buffer) const = 0;

 private:
  bool in_range(size_t offset, size_t size) const;

  size_t size_;
  std::shared_ptr<std::byte[]> head_;
  size_t head_size_ = 0;
};

}  // namespace pteron

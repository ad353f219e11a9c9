#include "data_source.h"

#include <executorch/runtime/platform/log.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>

#include "error.h"

using executorch::runtime::FreeableBuffer;
using executorch::runtime::Result;
using RuntimeError = executorch::runtime::Error;

namespace pteron {
namespace {

constexpr size_t kAlignment = 64;        // of what a source allocates
constexpr size_t kNeededAlignment = 16;  // what the format promises to its readers

std::shared_ptr<std::byte[]> allocate(size_t size) {
  void* memory = ::operator new[](size, std::align_val_t{kAlignment}, std::nothrow);
  return {static_cast<std::byte*>(memory),
          [](std::byte* p) { ::operator delete[](p, std::align_val_t{kAlignment}); }};
}

void free_segment(void*, void* data, size_t) {
  ::operator delete[](data, std::align_val_t{kAlignment});
}

// An open regular file, with errors that say what is there instead.
class File {
 public:
  explicit File(const std::string& path) : path_(path) {
    descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor_ < 0) {
      const int why = errno;
      const Kind kind = why == ENOENT ? Kind::FileNotFound : Kind::FileAccess;
      throw Error(kind, Code::AccessFailed, complaint(std::strerror(why)));
    }
    struct stat status{};
    if (::fstat(descriptor_, &status) != 0) refuse(std::strerror(errno));
    if (S_ISDIR(status.st_mode)) refuse("it is a folder; pass the path of the .pte file");
    if (!S_ISREG(status.st_mode)) refuse("it is no regular file; read it and pass the bytes");
    size = static_cast<size_t>(status.st_size);
  }
  ~File() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  int descriptor() const noexcept { return descriptor_; }
  const std::string& path() const noexcept { return path_; }
  [[noreturn]] void refuse(const std::string& why) {
    if (descriptor_ >= 0) ::close(descriptor_);
    descriptor_ = -1;
    throw Error(Kind::FileAccess, Code::AccessFailed, complaint(why));
  }
  size_t size = 0;

 private:
  std::string complaint(const std::string& why) const {
    return "Failed to open '" + path_ + "': " + why + ", " + code_text(Code::AccessFailed);
  }
  std::string path_;
  int descriptor_ = -1;
};

class FileSource final : public DataSource {
 public:
  explicit FileSource(std::unique_ptr<File> file)
      : DataSource(file->size), file_(std::move(file)) {}

 protected:
  const std::byte* resident(size_t) const override { return nullptr; }
  bool read(size_t offset, size_t size, void* buffer) const override {
    auto* to = static_cast<char*>(buffer);
    while (size > 0) {
      const ssize_t n = ::pread(file_->descriptor(), to, size, static_cast<off_t>(offset));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) {
        ET_LOG(Error, "Failed to read %s: %s", file_->path().c_str(), std::strerror(errno));
        return false;
      }
      if (n == 0) {
        ET_LOG(Error, "%s has become shorter since it was opened", file_->path().c_str());
        return false;
      }
      to += n;
      offset += static_cast<size_t>(n);
      size -= static_cast<size_t>(n);
    }
    return true;
  }

 private:
  std::unique_ptr<File> file_;
};

class MemorySource final : public DataSource {
 public:
  MemorySource(const std::byte* data, size_t size, std::shared_ptr<void> owner)
      : DataSource(size), data_(data), owner_(std::move(owner)) {}

 protected:
  const std::byte* resident(size_t offset) const override { return data_ + offset; }
  bool read(size_t offset, size_t size, void* buffer) const override {
    std::memcpy(buffer, data_ + offset, size);
    return true;
  }

 private:
  const std::byte* data_;
  std::shared_ptr<void> owner_;
};

}  // namespace

std::unique_ptr<DataSource> DataSource::open(const std::string& path) {
  return std::make_unique<FileSource>(std::make_unique<File>(path));
}

std::unique_ptr<DataSource> DataSource::map(const std::string& path) {
  File file(path);
  if (file.size == 0) return copy({});
  void* memory = ::mmap(nullptr, file.size, PROT_READ, MAP_PRIVATE, file.descriptor(), 0);
  if (memory == MAP_FAILED) file.refuse(std::string("cannot map it: ") + std::strerror(errno));
  const size_t size = file.size;
  std::shared_ptr<void> mapping(memory, [size](void* p) { ::munmap(p, size); });
  return std::make_unique<MemorySource>(static_cast<const std::byte*>(memory), size, mapping);
}

std::unique_ptr<DataSource> DataSource::borrow(std::span<const std::byte> bytes,
                                               std::shared_ptr<void> owner) {
  if (reinterpret_cast<uintptr_t>(bytes.data()) % kNeededAlignment != 0) return copy(bytes);
  return std::make_unique<MemorySource>(bytes.data(), bytes.size(), std::move(owner));
}

std::unique_ptr<DataSource> DataSource::copy(std::span<const std::byte> bytes) {
  auto memory = allocate(bytes.size());
  if (memory == nullptr) {
    throw Error(Kind::Memory, Code::MemoryAllocationFailed,
                "No memory for a copy of the program's " + std::to_string(bytes.size()) + " bytes");
  }
  if (!bytes.empty()) std::memcpy(memory.get(), bytes.data(), bytes.size());
  const std::byte* data = memory.get();
  return std::make_unique<MemorySource>(data, bytes.size(),
                                        std::shared_ptr<void>(memory, memory.get()));
}

std::span<const std::byte> DataSource::pin_head(size_t size, const std::string& name) {
  if (size > size_) size = size_;
  if (const std::byte* data = resident(0)) return {data, size};
  auto head = allocate(size);
  if (head == nullptr) {
    throw Error(Kind::Memory, Code::MemoryAllocationFailed,
                "No memory for the " + std::to_string(size) + " bytes of " + name);
  }
  if (!read(0, size, head.get())) {
    fail(static_cast<uint32_t>(Code::AccessFailed), "read " + name);
  }
  head_ = std::move(head);
  head_size_ = size;
  return {head_.get(), size};
}

bool DataSource::in_range(size_t offset, size_t size) const {
  if (offset <= size_ && size <= size_ - offset) return true;
  ET_LOG(Error, "Bytes %zu to %zu lie outside of the file, which has %zu", offset, offset + size,
         size_);
  return false;
}

Result<FreeableBuffer> DataSource::load(size_t offset, size_t size, const SegmentInfo&) const {
  if (!in_range(offset, size)) return RuntimeError::InvalidArgument;
  if (offset < head_size_ && size <= head_size_ - offset) {
    return FreeableBuffer(head_.get() + offset, size, nullptr);
  }
  if (const std::byte* data = resident(offset)) return FreeableBuffer(data, size, nullptr);
  void* memory = ::operator new[](size, std::align_val_t{kAlignment}, std::nothrow);
  if (memory == nullptr) {
    ET_LOG(Error, "No memory for %zu bytes of the file", size);
    return RuntimeError::MemoryAllocationFailed;
  }
  if (!read(offset, size, memory)) {
    free_segment(nullptr, memory, size);
    return RuntimeError::AccessFailed;
  }
  return FreeableBuffer(memory, size, free_segment);
}

RuntimeError DataSource::load_into(size_t offset, size_t size, const SegmentInfo&,
                                   void* buffer) const {
  if (!in_range(offset, size)) return RuntimeError::InvalidArgument;
  return read(offset, size, buffer) ? RuntimeError::Ok : RuntimeError::AccessFailed;
}

}  // namespace pteron

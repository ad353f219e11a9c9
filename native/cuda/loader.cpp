#include "loader.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include "elf_wrapper.h"
#include "failure.h"
#include "shims.h"

namespace pteron::cuda {

PTERON_SHIM int32_t aoti_torch_new_tensor_handle(Tensor* self, Tensor** out);

namespace {

// The file could not be made or mapped there; somewhere else it may work.
struct Unusable : std::runtime_error {
  using std::runtime_error::runtime_error;
};

std::string errno_text(const std::string& doing) { return doing + ": " + std::strerror(errno); }

class File {
 public:
  explicit File(int fd) : fd_(fd) {}
  ~File() {
    if (fd_ >= 0) close(fd_);
  }
  File(File&& other) noexcept : fd_(other.release()) {}
  File& operator=(File&&) = delete;
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  bool is_open() const { return fd_ >= 0; }
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

  void write(std::span<const std::byte> bytes, size_t at = 0) const {
    while (!bytes.empty()) {
      const ssize_t done = pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(at));
      if (done < 0 && errno == EINTR) continue;
      if (done <= 0) throw Unusable(errno_text("cannot write the model's library"));
      bytes = bytes.subspan(static_cast<size_t>(done));
      at += static_cast<size_t>(done);
    }
  }

 private:
  int fd_;
};

void write_library(const File& file, std::span<const std::byte> bytes) {
  file.write(bytes);
  if (const size_t flag = executable_stack_flag(bytes); flag != 0) {
    const std::byte without_x = bytes[flag] & std::byte{0xFE};  // PF_X is bit 0
    file.write({&without_x, 1}, flag);
  }
}

// A folder of mode 0700 with an unpredictable name, removed with what was put in it.
class PrivateFolder {
 public:
  PrivateFolder() {
    const char* base = std::getenv("TMPDIR");
    path_ = std::string(base != nullptr && *base == '/' ? base : "/tmp") + "/pteron-XXXXXX";
    if (mkdtemp(path_.data()) == nullptr) throw Unusable(errno_text("cannot make " + path_));
  }
  ~PrivateFolder() {
    unlink(model().c_str());
    unlink(wrapper().c_str());
    rmdir(path_.c_str());
  }
  PrivateFolder(const PrivateFolder&) = delete;
  PrivateFolder& operator=(const PrivateFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string model() const { return path_ + "/model.so"; }
  std::string wrapper() const { return path_ + "/wrapper.so"; }

  static File create(const std::string& path) {
    File file(open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0700));
    if (!file.is_open()) throw Unusable(errno_text("cannot make " + path));
    return file;
  }

 private:
  std::string path_;
};

// This library, spelled as the dynamic loader knows it, so that the wrapper's need for it is met
// without touching a file.
std::string own_name() {
  Dl_info where;
  if (dladdr(reinterpret_cast<void*>(&aoti_torch_new_tensor_handle), &where) == 0) {
    throw Failure(ErrorCode::Internal, "cannot find pteron's own library");
  }
  return where.dli_fname;
}

// In the order in which a model's symbols are looked for. The C++ library comes first: exporters
// may link it into the model statically, and then some of its symbols (the GNU-unique ones) would
// be the process's and the rest the model's own, which crashes in locales and regular expressions.
std::vector<std::string> search_order(const std::string& model) {
  return {"libstdc++.so.6", model, own_name()};
}

// Whether somebody else's shims are global: libtorch's. A model would bind to those.
bool has_foreign_shims() {
  void* found = dlsym(RTLD_DEFAULT, "aoti_torch_new_tensor_handle");
  return found != nullptr && found != reinterpret_cast<void*>(&aoti_torch_new_tensor_handle);
}

// "undefined symbol: x" instead of "/tmp/pteron-abc/model.so: undefined symbol: x": log lines are
// cut at the end, so the reason comes first.
std::string load_error(const std::string& model_path) {
  const char* text = dlerror();
  std::string reason = text != nullptr ? text : "unknown reason";
  const std::string prefix = model_path + ": ";
  if (reason.starts_with(prefix)) reason.erase(0, prefix.size());
  return reason;
}

void* open_wrapper(const std::string& wrapper, const std::string& model) {
  int flags = RTLD_NOW | RTLD_LOCAL;
  if (has_foreign_shims()) flags |= RTLD_DEEPBIND;
  if (void* handle = dlopen(wrapper.c_str(), flags)) return handle;
  const std::string reason = load_error(model);
  // What a folder mounted noexec, or a security module, looks like from here.
  if (reason.find("failed to map segment") != std::string::npos) throw Unusable(reason);
  throw Failure(ErrorCode::AccessFailed, "cannot load the model's library: " + reason);
}

void* load_from_folder(std::span<const std::byte> bytes, std::string& origin) {
  PrivateFolder folder;
  origin = folder.path();
  // Closed before the library is mapped: a file that is open for writing cannot be executed.
  write_library(PrivateFolder::create(folder.model()), bytes);
  PrivateFolder::create(folder.wrapper()).write(make_wrapper(search_order(folder.model())));
  return open_wrapper(folder.wrapper(), folder.model());
}

std::string memory_file(const char* name, std::span<const std::byte> bytes, bool is_model) {
  File file(memfd_create(name, MFD_CLOEXEC));
  if (!file.is_open()) throw Unusable(errno_text("cannot make a file in memory"));
  if (is_model) {
    write_library(file, bytes);
  } else {
    file.write(bytes);
  }
  // Never closed: the loader knows libraries by name, and a reused number would name this one.
  return "/proc/self/fd/" + std::to_string(file.release());
}

void* load_from_memory(std::span<const std::byte> bytes, std::string& origin) {
  origin = "memfd";
  const std::string model = memory_file("pteron-model", bytes, true);
  const std::string wrapper =
      memory_file("pteron-wrapper", make_wrapper(search_order(model)), false);
  return open_wrapper(wrapper, model);
}

// Two independent 64-bit hashes; together with the size they name a content.
using ContentKey = std::tuple<size_t, uint64_t, uint64_t>;

ContentKey content_key(std::span<const std::byte> bytes) {
  uint64_t a = 0x9E3779B97F4A7C15ULL;
  uint64_t b = 0xC2B2AE3D27D4EB4FULL;
  for (size_t at = 0; at < bytes.size(); at += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, std::min(sizeof(word), bytes.size() - at));
    a = (a ^ word) * 0x100000001B3ULL;
    a ^= a >> 29;
    b = (b + word) * 0xFF51AFD7ED558CCDULL;
    b ^= b >> 32;
  }
  return {bytes.size(), a, b};
}

struct Loaded {
  std::mutex mutex;
  std::map<ContentKey, const Library*> libraries;
};

}  // namespace

const Library& Library::load(std::span<const std::byte> bytes) {
  check_library(bytes);
  static Loaded* const loaded = new Loaded;
  const ContentKey key = content_key(bytes);
  std::lock_guard lock(loaded->mutex);
  if (auto found = loaded->libraries.find(key); found != loaded->libraries.end()) {
    return *found->second;
  }
  std::string origin;
  void* handle = nullptr;
  try {
    handle = load_from_folder(bytes, origin);
  } catch (const Unusable& first) {
    try {
      handle = load_from_memory(bytes, origin);
    } catch (const Unusable& second) {
      throw Failure(ErrorCode::AccessFailed, std::string("cannot load the model's library: ") +
                                                 first.what() + "; in memory: " + second.what());
    }
  }
  const auto* library = new Library(handle, std::move(origin));
  loaded->libraries.emplace(key, library);
  return *library;
}

void* Library::symbol(const char* name) const noexcept { return dlsym(handle_, name); }

}  // namespace pteron::cuda

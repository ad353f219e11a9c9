// Loads a model library (native code out of a program file) into this process.
//
// The bytes go to a file in a private folder, next to a wrapper (elf_wrapper.h) that ties the
// library to our shims; both files are gone again when the call returns. A library is loaded once
// per content and stays: glibc cannot unload one that has unique symbols, as these do, so a second
// load would only cost address space. All state of a model is in its container, not in the library.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace pteron::cuda {

class Library {
 public:
  // Throws Failure: {AccessFailed} with the loader's own reason, {InvalidProgram}, {NotSupported}.
  static const Library& load(std::span<const std::byte> bytes);

  // Null where the library has no such function.
  void* symbol(const char* name) const noexcept;

  template <typename Function>
  void find(const char* name, Function*& function) const noexcept {
    function = reinterpret_cast<Function*>(symbol(name));
  }

  // Where the loader put files: a folder that does not exist any more, or "memfd".
  const std::string& origin() const noexcept { return origin_; }

 private:
  Library(void* handle, std::string origin) : handle_(handle), origin_(std::move(origin)) {}

  void* handle_;
  std::string origin_;
};

}  // namespace pteron::cuda

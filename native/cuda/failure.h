// How an error travels inside this library: one exception, caught at every border (the delegate,
// the allocator, the shims, the API), where it becomes a runtime error code, a shim code or a text.
#pragma once

#include <executorch/runtime/core/error.h>

#include <new>
#include <stdexcept>
#include <string>
#include <string_view>

namespace pteron::cuda {

using ErrorCode = ::executorch::runtime::Error;

class Failure : public std::runtime_error {
 public:
  Failure(ErrorCode code, const std::string& text) : std::runtime_error(text), code(code) {}

  ErrorCode code;
};

// What went wrong last in a shim on this thread. The model library reports only a number, so the
// delegate reads the reason from here.
void set_last_error(std::string_view text) noexcept;
std::string take_last_error();

// Runs `body` and turns whatever it throws into a code, leaving the text in the last error.
template <typename Body>
ErrorCode to_code(Body&& body) noexcept {
  try {
    body();
    return ErrorCode::Ok;
  } catch (const Failure& failure) {
    set_last_error(failure.what());
    return failure.code;
  } catch (const std::bad_alloc&) {
    set_last_error("out of host memory");
    return ErrorCode::MemoryAllocationFailed;
  } catch (const std::exception& error) {
    set_last_error(error.what());
    return ErrorCode::Internal;
  } catch (...) {
    set_last_error("an exception of an unknown type");
    return ErrorCode::Internal;
  }
}

}  // namespace pteron::cuda

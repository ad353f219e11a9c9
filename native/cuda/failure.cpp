#include "failure.h"

#include <utility>

namespace pteron::cuda {

namespace {
thread_local std::string last_error;
}

void set_last_error(std::string_view text) noexcept {
  try {
    last_error.assign(text);
  } catch (const std::exception&) {
    last_error.clear();
  }
}

std::string take_last_error() { return std::exchange(last_error, {}); }

}  // namespace pteron::cuda

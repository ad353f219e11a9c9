// One exception for everything that can go wrong below Python.
//
// `Kind` picks the Python class (src/pteron/errors.py has the tree); `code` is the runtime's own
// error number, kept because users search for it. What the runtime logged on this thread while the
// call ran is attached as `reasons`.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

namespace pteron {

// One row a class of pteron.errors: enumerator, Python class.
#define PTERON_FORALL_ERROR_KINDS(_)             \
  _(Runtime, "ExecuTorchError")                  \
  _(FileNotFound, "ProgramNotFoundError")        \
  _(FileAccess, "FileAccessError")               \
  _(InvalidProgram, "InvalidProgramError")       \
  _(InvalidData, "InvalidDataError")             \
  _(DataNotFound, "DataNotFoundError")           \
  _(MethodNotFound, "MethodNotFoundError")       \
  _(AttributeNotFound, "AttributeNotFoundError") \
  _(OperatorMissing, "OperatorMissingError")     \
  _(BackendMissing, "BackendMissingError")       \
  _(Index, "MetadataIndexError")                 \
  _(Input, "InputError")                         \
  _(InputType, "InputTypeError")                 \
  _(Device, "DeviceError")                       \
  _(Export, "ExportError")                       \
  _(Memory, "OutOfMemoryError")                  \
  _(State, "MethodStateError")                   \
  _(Closed, "ClosedError")                       \
  _(Execution, "ExecutionError")                 \
  _(Argument, "ArgumentError")                   \
  _(Verification, "VerificationError")

enum class Kind : uint8_t {
#define PTERON_KIND(name, python_class) name,
  PTERON_FORALL_ERROR_KINDS(PTERON_KIND)
#undef PTERON_KIND
};

// The runtime's error numbers that pteron itself gives to errors that it finds before the runtime
// does, so that a user sees the same number whoever noticed first.
enum class Code : uint32_t {
  None = 0x00,
  Internal = 0x01,
  InvalidState = 0x02,
  NotSupported = 0x10,
  InvalidArgument = 0x12,
  OperatorMissing = 0x14,
  NotFound = 0x20,
  MemoryAllocationFailed = 0x21,
  AccessFailed = 0x22,
  InvalidProgram = 0x23,
  InvalidExternalData = 0x24,
};

// A name may hold a zero byte, which would end the message.
inline std::string shown(std::string text) {
  for (size_t at = 0; (at = text.find('\0', at)) != std::string::npos; ++at) {
    text.replace(at, 1, "\\x00");
  }
  return text;
}

class Error : public std::runtime_error {
 public:
  Error(Kind kind, uint32_t code, const std::string& message, std::string reasons = {})
      : std::runtime_error(shown(message)), kind(kind), code(code), reasons(std::move(reasons)) {}
  Error(Kind kind, Code code, const std::string& message)
      : Error(kind, static_cast<uint32_t>(code), message) {}

  Kind kind;
  uint32_t code;        // 0 when the runtime has no number for it
  std::string reasons;  // error lines that the runtime logged during the call, UTF-8, capped
};

// "InvalidArgument" for 0x12; "unknown" for a number that 1.5.1 does not have.
const char* code_name(uint32_t code) noexcept;

// The class that a runtime error number maps to when nothing more is known.
Kind kind_of(uint32_t code) noexcept;

// "error: 0x12 (InvalidArgument)".
std::string code_text(uint32_t code);
inline std::string code_text(Code code) { return code_text(static_cast<uint32_t>(code)); }

// Throws "Failed to <doing>, error: 0x12 (InvalidArgument): ..." with what the runtime logged
// during this call. `doing` reads like "load method 'forward'".
[[noreturn]] void fail(Kind kind, uint32_t code, const std::string& doing);
[[noreturn]] void fail(uint32_t code, const std::string& doing);

// fail() unless the runtime's `error` is Ok. `doing` is a callable, so that a good call builds no
// text.
template <typename RuntimeError, typename Doing>
void check(RuntimeError error, Doing doing) {
  if (static_cast<uint32_t>(error) != 0) [[unlikely]]
    fail(static_cast<uint32_t>(error), doing());
}

}  // namespace pteron

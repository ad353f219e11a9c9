#include "error.h"

#include <cstdio>

#include "log.h"

namespace pteron {
namespace {

struct CodeRow {
  uint32_t code;
  const char* name;
  Kind kind;
};

// The runtime's error numbers (runtime/core/error.h of 1.5.1), and the class for each.
constexpr CodeRow kCodes[] = {
    {0x00, "Ok", Kind::Runtime},
    {0x01, "Internal", Kind::Execution},
    {0x02, "InvalidState", Kind::State},
    {0x03, "EndOfMethod", Kind::State},
    {0x04, "AlreadyLoaded", Kind::State},
    {0x10, "NotSupported", Kind::Execution},
    {0x11, "NotImplemented", Kind::Execution},
    {0x12, "InvalidArgument", Kind::Execution},
    {0x13, "InvalidType", Kind::Execution},
    {0x14, "OperatorMissing", Kind::OperatorMissing},
    {0x15, "RegistrationExceedingMaxKernels", Kind::Runtime},
    {0x16, "RegistrationAlreadyRegistered", Kind::Runtime},
    {0x20, "NotFound", Kind::Execution},
    {0x21, "MemoryAllocationFailed", Kind::Memory},
    {0x22, "AccessFailed", Kind::FileAccess},
    {0x23, "InvalidProgram", Kind::InvalidProgram},
    {0x24, "InvalidExternalData", Kind::InvalidData},
    {0x25, "OutOfResources", Kind::Memory},
    {0x30, "DelegateInvalidCompatibility", Kind::Execution},
    {0x31, "DelegateMemoryAllocationFailed", Kind::Memory},
    {0x32, "DelegateInvalidHandle", Kind::Execution},
};

const CodeRow* find(uint32_t code) noexcept {
  for (const CodeRow& row : kCodes) {
    if (row.code == code) return &row;
  }
  return nullptr;
}

}  // namespace

const char* code_name(uint32_t code) noexcept {
  const CodeRow* row = find(code);
  return row ? row->name : "unknown";
}

Kind kind_of(uint32_t code) noexcept {
  const CodeRow* row = find(code);
  return row ? row->kind : Kind::Runtime;
}

std::string code_text(uint32_t code) {
  char number[16];
  std::snprintf(number, sizeof number, "0x%02x", code);
  return std::string("error: ") + number + " (" + code_name(code) + ")";
}

void fail(uint32_t code, const std::string& doing) { fail(kind_of(code), code, doing); }

void fail(Kind kind, uint32_t code, const std::string& doing) {
  std::string reasons = CallScope::current_reasons();
  std::string text = "Failed to " + doing + ", " + code_text(code);
  if (!reasons.empty()) text += ": " + reasons;
  throw Error(kind, code, text, std::move(reasons));
}

}  // namespace pteron

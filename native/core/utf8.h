// UTF-8 of strings that come from files and from the runtime's log.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace pteron {

// Length of the valid sequence at the start of `text` (1 to 4), or 0 if it does not start with one.
// RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF.
inline size_t utf8_sequence(std::string_view text) noexcept {
  auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  auto more = [&](size_t i) { return i < text.size() && (byte(i) & 0xC0) == 0x80; };
  if (text.empty()) return 0;
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return more(1) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    if (!more(1) || !more(2)) return 0;
    if (first == 0xE0 && byte(1) < 0xA0) return 0;
    if (first == 0xED && byte(1) > 0x9F) return 0;
    return 3;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    if (!more(1) || !more(2) || !more(3)) return 0;
    if (first == 0xF0 && byte(1) < 0x90) return 0;
    if (first == 0xF4 && byte(1) > 0x8F) return 0;
    return 4;
  }
  return 0;
}

inline bool is_utf8(std::string_view text) noexcept {
  while (!text.empty()) {
    const size_t n = utf8_sequence(text);
    if (n == 0) return false;
    text.remove_prefix(n);
  }
  return true;
}

// The largest size up to `limit` at which valid UTF-8 `text` may be cut.
inline size_t utf8_prefix(std::string_view text, size_t limit) noexcept {
  if (limit >= text.size()) return text.size();
  while (limit > 0 && (static_cast<unsigned char>(text[limit]) & 0xC0) == 0x80) --limit;
  return limit;
}

inline std::string to_utf8(const char* bytes, size_t length) {
  std::string_view text(bytes, length);
  std::string out;
  out.reserve(length);
  while (!text.empty()) {
    const size_t n = utf8_sequence(text);
    if (n == 0)
      out += "\xEF\xBF\xBD";  // U+FFFD
    else
      out += text.substr(0, n);
    text.remove_prefix(n == 0 ? 1 : n);
  }
  return out;
}

}  // namespace pteron

#include "program_head.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>

namespace pteron {
namespace {

using flatbuffer::Place;

struct Signature {
  size_t at;
  std::string_view bytes;
  const char* what;
  const char* advice = "";
};

constexpr const char* kExport = ": export the model with executorch to get a .pte";

// Files that people load by mistake. Text formats are told apart in describe().
constexpr Signature kSignatures[] = {
    {4, "BP", "it is a bundled program (.bpte): load it with load_bundled()"},
    {4, "FT0",
     "it is a data file (.ptd), which goes beside a program: load the .pte and pass this "
     "file as its data"},
    {4, "ED0", "it is an ETDump, the profile of a run, not a program"},
    {4, "XH00", "it is the payload of the XNNPACK delegate, not a whole program"},
    {4, "TFL3", "it is a TensorFlow Lite model, not an ExecuTorch program", kExport},
    {0, "version https://git-lfs",
     "it is a git-lfs pointer, not the file itself: run git lfs pull"},
    {0, "PK\x03\x04", "it is a zip archive (a torch checkpoint, .pt2 or other package)", kExport},
    {0, "\x80\x02", "it is a Python pickle (a torch checkpoint)", kExport},
    {0, "\x89PNG", "it is a PNG image"},
    {0, "\xFF\xD8\xFF", "it is a JPEG image"},
    {0, "GIF8", "it is a GIF image"},
    {0, "%PDF", "it is a PDF document"},
    {0, "\177ELF", "it is a Linux library or program (ELF)"},
    {0, "MZ", "it is a Windows library or program"},
    {0, "\xCF\xFA\xED\xFE", "it is a macOS library or program"},
    {0, "\x1F\x8B", "it is gzip-compressed: unpack it first (gunzip)"},
    {0, "\3757zXZ", "it is xz-compressed: unpack it first (unxz)"},
    {0, "\x28\xB5\x2F\xFD", "it is zstd-compressed: unpack it first (unzstd)"},
    {0, "BZh", "it is bzip2-compressed: unpack it first (bunzip2)"},
    {0, "GGUF", "it is a GGUF model, not an ExecuTorch program", kExport},
    {0, "\x93NUMPY", "it is a NumPy array"},
};

bool starts_with_any_case(std::string_view text, std::string_view lower) {
  return text.size() >= lower.size() &&
         std::equal(lower.begin(), lower.end(), text.begin(), [](char want, char got) {
           return want == (got >= 'A' && got <= 'Z' ? static_cast<char>(got + 32) : got);
         });
}

std::string describe_text(std::string_view text) {
  while (!text.empty() && (text[0] == ' ' || text[0] == '\n' || text[0] == '\r' ||
                           text[0] == '\t' || text.starts_with("\xEF\xBB\xBF"))) {
    text.remove_prefix(text[0] == '\xEF' ? 3 : 1);
  }
  if (starts_with_any_case(text, "<!doctype html") || starts_with_any_case(text, "<html")) {
    return "it is a web page (HTML): a download got a page instead of the file, so "
           "fetch it again";
  }
  if (starts_with_any_case(text, "<?xml")) {
    return "it is an XML document: perhaps the error message of a download";
  }
  if (text.starts_with("{") || text.starts_with("[")) return "it is JSON text";
  return "it is a text file";
}

std::string describe(std::string_view head, uint64_t file_size) {
  if (file_size == 0) return "it is empty (0 bytes)";
  for (const Signature& known : kSignatures) {
    if (head.size() >= known.at + known.bytes.size() &&
        head.substr(known.at, known.bytes.size()) == known.bytes) {
      return std::string(known.what) + known.advice;
    }
  }
  const bool is_text = std::all_of(head.begin(), head.end(), [](char c) {
    return (c >= 0x20 && c != 0x7F) || c == '\n' || c == '\r' || c == '\t' || (c & 0x80) != 0;
  });
  if (is_text) return describe_text(head);
  if (std::all_of(head.begin(), head.end(), [](char c) { return c == 0; })) {
    return "it begins with zeros only (an unfinished download or copy)";
  }
  if (head.size() < kHeadSize) {
    return "it is only " + std::to_string(file_size) + " bytes long: the file is cut short";
  }
  return std::string("it does not begin like an ExecuTorch program (no identifier ET12)") + kExport;
}

}  // namespace

ProgramHead read_head(std::span<const std::byte> head, uint64_t file_size, const Place& place) {
  const std::string_view text(reinterpret_cast<const char*>(head.data()), head.size());
  const auto number = [&](size_t at, auto value) {
    std::memcpy(&value, head.data() + at, sizeof(value));
    return value;
  };

  if (text.size() < 8 || text.substr(4, 2) != "ET") place.fail(describe(text, file_size));
  if (text.substr(4, 4) != "ET12") {
    const std::string_view found = text.substr(4, 4);
    place.fail("its format is '" + (is_utf8(found) ? std::string(found) : "ET??") +
               "', and this version of pteron reads 'ET12': export the model with the ExecuTorch "
               "release that this pteron is built on");
  }
  if (text.size() < kHeadSize || file_size < kHeadSize) {
    place.fail("it is only " + std::to_string(file_size) + " bytes long: the file is cut short");
  }

  ProgramHead result;
  if (text.substr(8, 4) != "eh00") {  // no segments, so no need for an extended header
    result.program_size = file_size;
    return result;
  }
  constexpr uint32_t kWithoutSegmentSize = 24;
  const uint32_t length = number(12, uint32_t{});
  if (length < kWithoutSegmentSize) {
    place.fail("its header is " + std::to_string(length) + " bytes long instead of 24 or more");
  }
  result.program_size = number(16, uint64_t{});
  result.segment_base = number(24, uint64_t{});
  if (length > kWithoutSegmentSize) result.segment_nbytes = number(32, uint64_t{});

  const auto must_hold = [&](uint64_t from, uint64_t nbytes, const char* part) {
    if (from <= file_size && nbytes <= file_size - from) return;
    const bool overflow = nbytes > UINT64_MAX - from;
    place.fail(std::string("its header puts ") + part +
               (overflow ? " beyond any file"
                         : " up to byte " + std::to_string(from + nbytes) + ", but the file has " +
                               std::to_string(file_size) + " bytes: it is cut short or damaged"));
  };
  must_hold(0, result.program_size, "the program");
  if (result.program_size < kHeadSize) {
    place.fail("its header says that the program has " + std::to_string(result.program_size) +
               " bytes, less than the header itself");
  }
  if (result.segment_base != 0) {
    if (result.segment_base < result.program_size) {
      place.fail("its header lets weights begin inside the program");
    }
    must_hold(result.segment_base, result.segment_nbytes, "weights and delegate data");
  } else if (result.segment_nbytes != 0) {
    place.fail("its header gives weights a size but no place");
  }
  return result;
}

}  // namespace pteron

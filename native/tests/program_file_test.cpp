// Reads program files and prints what is in them; damages them at random to see the reader survive.
//
//   program_file_test                        checks that need no file
//   program_file_test FILE...                a summary of each file; fails if one is refused
//   program_file_test --refused FILE...      fails if one is accepted; prints the messages
//   program_file_test --mutate N SEED FILE   N damaged copies: each is read or refused, no crash
//   program_file_test --time N FILE          microseconds of a parse, the best of N
#include "../core/program_file.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "../core/error.h"

namespace {

using namespace pteron;

using Bytes = std::vector<std::byte>;

Bytes read_file(const char* path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) throw std::runtime_error(std::string("cannot open ") + path);
  const std::string text((std::istreambuf_iterator<char>(stream)), {});
  const auto* begin = reinterpret_cast<const std::byte*>(text.data());
  return Bytes(begin, begin + text.size());
}

ProgramFile parse(std::span<const std::byte> all, const char* name) {
  const auto head = all.first(std::min<size_t>(64, all.size()));
  const uint64_t size = ProgramFile::flatbuffer_size(head, all.size(), name);
  return ProgramFile::parse(all.first(static_cast<size_t>(size)), all.size(), name,
                            [&](uint64_t offset, std::span<std::byte> into) {
                              if (offset > all.size() || into.size() > all.size() - offset) {
                                return false;
                              }
                              std::copy_n(all.begin() + static_cast<ptrdiff_t>(offset), into.size(),
                                          into.begin());
                              return true;
                            });
}

void print_value(const char* role, size_t i, uint32_t index, const MethodSpec& method,
                 const Placement& placement) {
  const ValueSpec& value = method.values[index];
  std::printf("    %s %zu = value %u: %s", role, i, index, to_string(value.kind));
  if (value.kind == ValueKind::Tensor) {
    const TensorSpec& tensor = value.tensor;
    std::printf(" %s [", info(tensor.dtype).name);
    for (size_t d = 0; d < tensor.sizes.size(); ++d) {
      std::printf("%s%d", d == 0 ? "" : ", ", tensor.sizes[d]);
    }
    std::printf("] %s%s%s%s%s", to_string(tensor.device).c_str(),
                tensor.dynamism == Dynamism::Static ? "" : " dynamic",
                tensor.planned ? " planned" : "", tensor.constant ? " constant" : "",
                tensor.delegate_owned ? " delegate-owned" : "");
  }
  std::printf("%s%s%s%s\n", placement.direct ? " direct" : "", placement.written ? " written" : "",
              placement.delegate ? " delegate" : "", placement.rebound ? " rebound" : "");
}

void print(const ProgramFile& file) {
  std::printf("  version %u, program %llu bytes, constants %llu bytes, %zu named data\n",
              file.version, static_cast<unsigned long long>(file.program_size),
              static_cast<unsigned long long>(file.constant_nbytes), file.named_data.size());
  for (const MethodSpec& method : file.methods) {
    std::printf("  method '%s': %zu values, %u instructions\n", method.name.c_str(),
                method.values.size(), method.instructions);
    for (size_t i = 0; i < method.inputs.size(); ++i) {
      print_value("input", i, method.inputs[i], method, method.input_placement[i]);
    }
    for (size_t i = 0; i < method.outputs.size(); ++i) {
      print_value("output", i, method.outputs[i], method, method.output_placement[i]);
    }
    for (size_t i = 1; i < method.buffers.size(); ++i) {
      std::printf("    buffer %zu: %llu of %llu bytes, %s\n", i,
                  static_cast<unsigned long long>(method.buffers[i].reachable),
                  static_cast<unsigned long long>(method.buffers[i].declared),
                  to_string(method.buffers[i].device).c_str());
    }
    for (const uint32_t i : method.attributes) {
      std::printf("    attribute '%s': value %u\n", method.values[i].tensor.name.c_str(), i);
    }
    for (size_t i = 0; i < method.values.size(); ++i) {
      if (method.values[i].tensor.delegate_owned) std::printf("    delegate owns value %zu\n", i);
    }
    for (const StateSpec& state : method.state) {
      std::printf("    state '%s': value %u\n", state.name.c_str(), state.value);
    }
    for (const OperatorSpec& op : method.operators) {
      std::printf("    %u x %s\n", op.calls, op.full_name().c_str());
    }
    for (const DelegateSpec& delegate : method.delegates) {
      std::printf("    %u x delegate %s, %llu bytes\n", delegate.calls, delegate.id.c_str(),
                  static_cast<unsigned long long>(delegate.nbytes));
    }
  }
}

// One or a few damages of kinds that hit the format: bytes, numbers at aligned places, cuts.
void damage(Bytes& file, size_t program_size, std::mt19937_64& random) {
  constexpr uint64_t kEdges[] = {0,          1,          2,          4,          0x7F,
                                 0xFF,       0x7FFF,     0xFFFF,     0x10000,    0x7FFFFFFF,
                                 0x80000000, 0xFFFFFFFF, 0xFFFFFFFC, 0xFFFFFFF0, UINT64_MAX};
  const auto below = [&](uint64_t n) { return n == 0 ? 0 : random() % n; };
  for (uint64_t n = 1 + below(3); n > 0 && file.size() > 8; --n) {
    // Most damage goes into the flatbuffer, the rest anywhere.
    const uint64_t limit = below(8) == 0 ? file.size() : std::min(program_size, file.size());
    const uint64_t at = below(limit);
    const size_t width = size_t{1} << below(4);
    const uint64_t place = at / width * width;
    const auto put = [&](uint64_t value) {
      std::memcpy(file.data() + place, &value, std::min<size_t>(width, file.size() - place));
    };
    switch (below(9)) {
      case 0:
        file[at] ^= static_cast<std::byte>(1u << below(8));
        break;
      case 1:
        file[at] = static_cast<std::byte>(random());
        break;
      case 2:
        put(kEdges[below(std::size(kEdges))]);
        break;
      case 3: {  // a small change of a number
        uint64_t value = 0;
        std::memcpy(&value, file.data() + place, std::min<size_t>(width, file.size() - place));
        put(value + below(9) - 4);
        break;
      }
      case 4: {  // one number copied over another
        uint64_t value = 0;
        const uint64_t from = below(limit) / width * width;
        std::memcpy(&value, file.data() + from, std::min<size_t>(width, file.size() - from));
        put(value);
        break;
      }
      case 5:
        put(below(file.size()));
        break;
      case 6:
      case 7: {  // another small index: of a value, an operator, a segment
        uint64_t from = at / 4 * 4;
        uint32_t index = UINT32_MAX;
        for (; from + 4 <= limit; from += 4) {
          std::memcpy(&index, file.data() + from, 4);
          if (index < 128) break;
        }
        if (index < 128) {
          index = static_cast<uint32_t>(below(index + 8));
          std::memcpy(file.data() + from, &index, 4);
        }
        break;
      }
      case 8:
        if (below(10) == 0) file.resize(below(file.size()));
        break;
    }
  }
}

int mutate(uint64_t count, uint64_t seed, const char* path) {
  const Bytes original = read_file(path);
  const size_t program_size = static_cast<size_t>(parse(original, path).program_size);
  std::mt19937_64 random(seed);
  uint64_t accepted = 0;
  for (uint64_t i = 0; i < count; ++i) {
    Bytes file = original;
    damage(file, program_size, random);
    // No slack behind the end, and no alignment: the sanitizer sees every step outside.
    Bytes exact(file.size() + 1);
    std::copy(file.begin(), file.end(), exact.begin() + 1);
    try {
      parse(std::span<const std::byte>(exact).subspan(1), "mutant");
      ++accepted;
    } catch (const Error&) {
    }
  }
  std::printf("%s: %llu of %llu mutants accepted, the others refused\n", path,
              static_cast<unsigned long long>(accepted), static_cast<unsigned long long>(count));
  return 0;
}

int time_parse(uint64_t count, const char* path) {
  const Bytes file = read_file(path);
  double best = 1e30;
  for (uint64_t i = 0; i < count; ++i) {
    const auto start = std::chrono::steady_clock::now();
    const ProgramFile program = parse(file, path);
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
    best = std::min(best, took.count());
  }
  std::printf("%s: %.1f us\n", path, best);
  return 0;
}

// The messages for files that are no programs at all.
int check_heads() {
  struct Case {
    std::string head;
    const char* says;
  };
  const std::string rest(64, '.');
  const std::string program = std::string("\x1c\0\0\0", 4) + "ET12" + std::string(56, '\0');
  const Case cases[] = {
      {"", "is empty"},
      {"\x89PNG\r\n\x1a\n" + rest, "PNG"},
      {"\xFF\xD8\xFF\xE0" + rest, "JPEG"},
      {"<!doctype HTML><html>" + rest, "web page"},
      {"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"},
      {"PK\x03\x04" + rest, "zip"},
      {"\x1F\x8B" + rest, "gzip"},
      {"\177ELF" + rest, "ELF"},
      {"{\"a\": 1}" + rest, "JSON"},
      {"plain words" + rest, "text file"},
      {"....BP08" + rest, "bundled program"},
      {"....FT01" + rest, "data file"},
      {"....ET13" + rest, "'ET13'"},
      {program.substr(0, 40), "cut short"},
      {std::string(64, '\0'), "zeros"},
      {std::string("\1\2\3\4", 4) + rest, "no identifier ET12"},
  };
  int wrong = 0;
  for (const Case& c : cases) {
    const auto head = std::as_bytes(std::span(c.head)).first(std::min<size_t>(64, c.head.size()));
    try {
      ProgramFile::flatbuffer_size(head, c.head.size(), "file");
      std::printf("accepted, but %s\n", c.says);
      ++wrong;
    } catch (const Error& error) {
      const std::string text = error.what();
      if (error.kind == Kind::InvalidProgram && text.starts_with("file: invalid program file: ") &&
          text.find(c.says) != text.npos) {
        continue;
      }
      std::printf("expected '%s', got: %s\n", c.says, text.c_str());
      ++wrong;
    }
  }
  const auto head = std::as_bytes(std::span(program));
  if (ProgramFile::flatbuffer_size(head, 1000, "file") != 1000) ++wrong;
  std::printf("%zu heads checked, %d wrong\n", std::size(cases) + 1, wrong);
  return wrong == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  try {
    if (argc == 1) return check_heads();
    if (mode == "--mutate" && argc == 5) {
      return mutate(std::strtoull(argv[2], nullptr, 10), std::strtoull(argv[3], nullptr, 10),
                    argv[4]);
    }
    if (mode == "--time" && argc == 4)
      return time_parse(std::strtoull(argv[2], nullptr, 10), argv[3]);
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
  const bool want_refusal = mode == "--refused";
  int wrong = 0;
  for (int i = want_refusal ? 2 : 1; i < argc; ++i) {
    try {
      const ProgramFile file = parse(read_file(argv[i]), argv[i]);
      std::printf("%s\n", argv[i]);
      if (want_refusal)
        ++wrong;
      else
        print(file);
    } catch (const Error& error) {
      std::printf("%s\n", error.what());
      if (!want_refusal) ++wrong;
    }
  }
  return wrong == 0 ? 0 : 1;
}

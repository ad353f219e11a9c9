#include "elf_wrapper.h"

#include <elf.h>

#include <cstring>

#include "failure.h"

namespace pteron::cuda {

namespace {

#if defined(__x86_64__)
constexpr Elf64_Half kMachine = EM_X86_64;
constexpr const char* kMachineName = "x86-64";
#elif defined(__aarch64__)
constexpr Elf64_Half kMachine = EM_AARCH64;
constexpr const char* kMachineName = "aarch64";
#else
#error "CUDA programs run on x86-64 and aarch64 only"
#endif

constexpr size_t kPage = 0x10000;  // the largest page of both machines
constexpr int kNumSegments = 3;

template <typename T>
size_t append(std::vector<std::byte>& out, const T& value) {
  const size_t at = out.size();
  out.resize(at + sizeof(T));
  std::memcpy(out.data() + at, &value, sizeof(T));
  return at;
}

void align(std::vector<std::byte>& out, size_t to) { out.resize((out.size() + to - 1) / to * to); }

template <typename T>
bool read(std::span<const std::byte> data, size_t at, T& value) {
  if (at > data.size() || data.size() - at < sizeof(T)) return false;
  std::memcpy(&value, data.data() + at, sizeof(T));
  return true;
}

}  // namespace

std::vector<std::byte> make_wrapper(std::span<const std::string> needed) {
  std::vector<std::byte> out;
  out.reserve(1024);
  out.resize(sizeof(Elf64_Ehdr) + kNumSegments * sizeof(Elf64_Phdr));

  // Strings: an empty one first, as the format wants.
  const size_t strings = out.size();
  std::vector<size_t> names;
  out.push_back(std::byte{0});
  for (const std::string& name : needed) {
    names.push_back(out.size() - strings);
    const auto* bytes = reinterpret_cast<const std::byte*>(name.c_str());
    out.insert(out.end(), bytes, bytes + name.size() + 1);
  }
  const size_t strings_size = out.size() - strings;

  // One symbol, the null one, and a hash table that finds nothing.
  align(out, 8);
  const size_t symbols = append(out, Elf64_Sym{});
  const size_t hash = out.size();
  for (const Elf64_Word word : {1U, 1U, 0U, 0U}) append(out, word);

  align(out, 8);
  const size_t dynamic = out.size();
  auto entry = [&](Elf64_Sxword tag, size_t value) {
    Elf64_Dyn item{};
    item.d_tag = tag;
    item.d_un.d_val = value;
    append(out, item);
  };
  for (const size_t name : names) entry(DT_NEEDED, name);
  entry(DT_HASH, hash);
  entry(DT_STRTAB, strings);
  entry(DT_SYMTAB, symbols);
  entry(DT_STRSZ, strings_size);
  entry(DT_SYMENT, sizeof(Elf64_Sym));
  entry(DT_NULL, 0);
  const size_t dynamic_size = out.size() - dynamic;

  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  header.e_ident[EI_VERSION] = EV_CURRENT;
  header.e_type = ET_DYN;
  header.e_machine = kMachine;
  header.e_version = EV_CURRENT;
  header.e_phoff = sizeof(Elf64_Ehdr);
  header.e_ehsize = sizeof(Elf64_Ehdr);
  header.e_phentsize = sizeof(Elf64_Phdr);
  header.e_phnum = kNumSegments;
  std::memcpy(out.data(), &header, sizeof(header));

  // Writable, because the loader writes addresses into the dynamic section.
  Elf64_Phdr segments[kNumSegments] = {};
  segments[0].p_type = PT_LOAD;
  segments[0].p_flags = PF_R | PF_W;
  segments[0].p_filesz = segments[0].p_memsz = out.size();
  segments[0].p_align = kPage;
  segments[1].p_type = PT_DYNAMIC;
  segments[1].p_flags = PF_R | PF_W;
  segments[1].p_offset = segments[1].p_vaddr = segments[1].p_paddr = dynamic;
  segments[1].p_filesz = segments[1].p_memsz = dynamic_size;
  segments[1].p_align = 8;
  segments[2].p_type = PT_GNU_STACK;
  segments[2].p_flags = PF_R | PF_W;
  segments[2].p_align = 16;
  std::memcpy(out.data() + sizeof(header), segments, sizeof(segments));
  return out;
}

void check_library(std::span<const std::byte> library) {
  Elf64_Ehdr header;
  const bool dll = library.size() >= 2 && std::memcmp(library.data(), "MZ", 2) == 0;
  if (dll) {
    throw Failure(ErrorCode::NotSupported,
                  "the program was exported for Windows: its library is a DLL");
  }
  if (!read(library, 0, header) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) {
    throw Failure(ErrorCode::InvalidProgram, "the program's library is damaged: it is no ELF file");
  }
  if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ELFDATA2LSB ||
      header.e_machine != kMachine) {
    throw Failure(
        ErrorCode::NotSupported,
        std::string("the program's library is for another kind of processor than ") + kMachineName);
  }
  if (header.e_type != ET_DYN) {
    throw Failure(ErrorCode::InvalidProgram, "the program's library is no shared library");
  }
  // The loader maps what the headers say and dies on a fault if the file is shorter.
  for (size_t i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment;
    uint64_t end = 0;
    if (header.e_phentsize != sizeof(segment) ||
        !read(library, header.e_phoff + i * sizeof(segment), segment) ||
        __builtin_add_overflow(segment.p_offset, segment.p_filesz, &end) ||
        (segment.p_type == PT_LOAD && end > library.size())) {
      throw Failure(ErrorCode::InvalidProgram, "the program's library is damaged: it is cut short");
    }
  }
}

size_t executable_stack_flag(std::span<const std::byte> library) {
  Elf64_Ehdr header;
  if (!read(library, 0, header)) return 0;
  for (size_t i = 0; i < header.e_phnum; ++i) {
    const size_t at = header.e_phoff + i * sizeof(Elf64_Phdr);
    Elf64_Phdr segment;
    if (!read(library, at, segment)) return 0;
    if (segment.p_type == PT_GNU_STACK && (segment.p_flags & PF_X) != 0) {
      return at + offsetof(Elf64_Phdr, p_flags);
    }
  }
  return 0;
}

}  // namespace pteron::cuda

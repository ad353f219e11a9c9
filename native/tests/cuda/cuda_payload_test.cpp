// The payload parser over well-formed, cut and mutated bytes; variant choice; the ELF checks.
#include <elf.h>

#include <cstdlib>
#include <random>

#include "../../cuda/elf_wrapper.h"
#include "../../cuda/payload.h"
#include "cuda_test.h"
#include "golden.h"

namespace pteron::testing {

extern std::string goldens_folder;

namespace {

using cuda::ErrorCode;
using cuda::Failure;
using cuda::Manifest;

// Builds payloads byte by byte.
struct Bytes {
  std::vector<std::byte> data;

  Bytes& raw(std::string_view text) {
    for (const char c : text) data.push_back(static_cast<std::byte>(c));
    return *this;
  }
  template <typename T>
  Bytes& number(T value) {
    const auto* p = reinterpret_cast<const std::byte*>(&value);
    data.insert(data.end(), p, p + sizeof(T));
    return *this;
  }
  Bytes& string(std::string_view text) {
    return number(static_cast<uint32_t>(text.size())).raw(text);
  }
  Bytes& weight(std::string_view fqn, uint64_t nbytes, int32_t dtype, int32_t device,
                int64_t offset, const std::vector<int64_t>& sizes,
                const std::vector<int64_t>& strides) {
    string(fqn).string("cuda_fqn_weight:cuda:" + std::string(fqn)).number(nbytes).number(dtype);
    number(device).number(offset).number(static_cast<uint32_t>(sizes.size()));
    for (const int64_t v : sizes) number(v);
    for (const int64_t v : strides) number(v);
    return *this;
  }
};

Bytes fqn3(uint32_t count) { return Bytes().raw("ETCUDAFQN3").string("abc_so_blob").number(count); }

std::string failure_of(const std::vector<std::byte>& bytes,
                       ErrorCode code = ErrorCode::InvalidProgram) {
  try {
    cuda::parse_payload(bytes, "forward");
  } catch (const Failure& failure) {
    expect(failure.code == code, "error code", __FILE__, __LINE__, failure.what());
    return failure.what();
  }
  return "accepted";
}

// Whatever the bytes are: a manifest or a Failure, nothing else.
bool survives(std::span<const std::byte> bytes) {
  // A copy of exactly this size, so that the sanitizer sees every byte read past the end.
  const std::vector<std::byte> exact(bytes.begin(), bytes.end());
  try {
    const Manifest manifest = cuda::parse_payload(exact, "forward");
    return !manifest.libraries.empty();
  } catch (const Failure&) {
    return true;
  }
}

std::vector<std::vector<std::byte>> golden_payloads() {
  std::vector<std::vector<std::byte>> all;
  for (const char* name : {"add", "mlp_fp32", "mlp_bf16", "state", "conv"}) {
    const std::vector<char> file = read_file(goldens_folder + "/" + name + "/model.pte");
    const std::string text(file.begin(), file.end());
    const size_t at = text.find("ETCUDAFQN3");
    if (at == std::string::npos) continue;
    // The payload's end is not marked: find the length that the parser takes.
    for (size_t n = 10; n < 4096; ++n) {
      const auto* p = reinterpret_cast<const std::byte*>(text.data() + at);
      try {
        cuda::parse_payload({p, n}, "forward");
        all.emplace_back(p, p + n);
        break;
      } catch (const Failure&) {
      }
    }
  }
  return all;
}

}  // namespace

TEST(payload_of_the_oldest_exporters_is_empty) {
  const Manifest m = cuda::parse_payload({}, "decode");
  EXPECT(m.libraries.size() == 1 && m.libraries[0].key == "decode_so_blob");
  EXPECT(m.blob_key == "decode_weights_blob" && m.weights.empty());
}

TEST(payload_of_1_4_is_two_keys) {
  const Bytes b = Bytes().raw("0123abcd_so_blob\n4567_weights_blob");
  const Manifest m = cuda::parse_payload(b.data, "forward");
  EXPECT(m.libraries[0].key == "0123abcd_so_blob" && m.blob_key == "4567_weights_blob");
  EXPECT_TEXT(failure_of(Bytes().raw("one_key_only").data), "unknown form");
  EXPECT_TEXT(failure_of(Bytes().raw("a\nb\nc").data), "unknown form");
  EXPECT_TEXT(failure_of(Bytes().raw("\x01\x02\nb").data), "unknown form");
}

TEST(payload_fqn3) {
  Bytes b = fqn3(3);
  b.weight("a.weight", 4096, 6, 1, 0, {8, 16}, {16, 1});
  b.weight("idx", 8, 4, 0, 0, {}, {});
  b.weight("part", 64, 15, 1, 3, {2, 0, 4}, {4, 4, 1});
  const Manifest m = cuda::parse_payload(b.data, "forward");
  EXPECT(m.libraries[0].key == "abc_so_blob" && m.blob_key.empty());
  EXPECT(m.weights.size() == 3 && m.weights[0].fqn == "a.weight" && m.weights[0].on_device);
  EXPECT(!m.weights[1].on_device && m.weights[1].dtype == DType::Int64 &&
         m.weights[1].sizes.empty());
  EXPECT(m.weights[2].offset == 3 && m.weights[2].sizes[1] == 0);
  EXPECT(cuda::parse_payload(fqn3(0).data, "forward").weights.empty());
}

TEST(payload_fqn3_says_what_is_wrong) {
  EXPECT_TEXT(failure_of(fqn3(0).raw("x").data), "1 bytes are left over");
  EXPECT_TEXT(failure_of(fqn3(1U << 21).data), "claims 2097152 weights");
  EXPECT_TEXT(failure_of(fqn3(1).data), "ends inside a weight's name");
  EXPECT_TEXT(failure_of(fqn3(1).weight("w", 4, 99, 1, 0, {1}, {1}).data), "unknown type 99");
  EXPECT_TEXT(failure_of(fqn3(1).weight("w", 4, 6, 7, 0, {1}, {1}).data), "device type 7");
  EXPECT_TEXT(failure_of(fqn3(1).weight("w", 4, 6, 1, -1, {1}, {1}).data), "negative offset");
  EXPECT_TEXT(failure_of(fqn3(1).weight("w", 4, 6, 1, 0, {-1}, {1}).data), "negative number");
  EXPECT_TEXT(failure_of(fqn3(1).weight("w", 4, 6, 1, 0, {2}, {1}).data), "past the end");
  EXPECT_TEXT(failure_of(fqn3(1).weight("w", 8, 6, 1, 1, {2}, {1}).data), "past the end");
  EXPECT_TEXT(failure_of(fqn3(1).weight("w", ~0ULL, 6, 1, 0, {INT64_MAX, INT64_MAX}, {1, 1}).data),
              "overflows");
  EXPECT_TEXT(failure_of(fqn3(1).weight("w", ~0ULL, 6, 1, 0, {3}, {INT64_MAX}).data), "overflows");
  EXPECT_TEXT(failure_of(fqn3(1).weight("w", ~0ULL, 7, 1, INT64_MAX, {1}, {1}).data),
              "past the end");
  Bytes twice = fqn3(2);
  twice.weight("w", 4, 6, 1, 0, {1}, {1}).weight("w", 4, 6, 1, 0, {1}, {1});
  EXPECT_TEXT(failure_of(twice.data), "there twice");
  EXPECT_TEXT(failure_of(Bytes().raw("ETCUDAFQN9xxxx").data, ErrorCode::NotSupported),
              "ETCUDAFQN9");
  EXPECT_TEXT(failure_of(Bytes().raw("ETCUDAFQN").data), "inside its magic");
}

TEST(payload_fqn0_variants) {
  auto variant = [](Bytes& b, uint32_t sm, uint32_t ptx, uint32_t flags, const char* key) {
    b.number(sm).number(ptx).number(flags).string(key);
  };
  Bytes b = Bytes().raw("ETCUDAFQN0").number(uint32_t{3});
  variant(b, 80, 0, 0, "so80");
  variant(b, 90, 90, 0, "so90");
  variant(b, 75, 75, 1, "fallback");
  b.number(uint32_t{0});
  const Manifest m = cuda::parse_payload(b.data, "forward");
  EXPECT(m.libraries.size() == 3);
  EXPECT(cuda::select_library(m, 90).key == "so90");
  EXPECT(cuda::select_library(m, 80).key == "so80");
  EXPECT(cuda::select_library(m, 120).key == "fallback");
  EXPECT_TEXT(thrown([&] { cuda::select_library(m, 70); }), "sm_70");
  EXPECT_TEXT(failure_of(Bytes().raw("ETCUDAFQN0").number(uint32_t{0}).data), "0 libraries");

  Bytes single = Bytes().raw("ETCUDAFQN0").number(uint32_t{1});
  variant(single, 80, 80, 0, "one");
  single.number(uint32_t{0});
  const Manifest alone = cuda::parse_payload(single.data, "forward");
  EXPECT(cuda::select_library(alone, 90).key == "one");
  EXPECT_TEXT(thrown([&] { cuda::select_library(alone, 75); }), "only for sm_80");
}

TEST(payloads_of_the_goldens) {
  const auto payloads = golden_payloads();
  EXPECT(payloads.size() == 5);
  for (const auto& payload : payloads) {
    const Manifest m = cuda::parse_payload(payload, "forward");
    EXPECT(m.libraries[0].key.ends_with("_so_blob"));
    for (size_t n = 0; n <= payload.size(); ++n) {
      const std::span<const std::byte> cut(payload.data(), n);
      EXPECT(survives(cut));
    }
  }
}

TEST(mutated_payloads) {
  auto seeds = golden_payloads();
  Bytes b = Bytes().raw("ETCUDAFQN0").number(uint32_t{1}).number(uint32_t{90}).number(uint32_t{90});
  b.number(uint32_t{0}).string("key").number(uint32_t{1}).weight("w", 64, 6, 1, 0, {4, 4}, {4, 1});
  seeds.push_back(b.data);
  std::mt19937 random(7);
  const int rounds = std::getenv("PTERON_LONG_FUZZ") != nullptr ? 2000000 : 60000;
  constexpr uint64_t kEdges[] = {
      0,     1,        2,          63,         64,         65,        255,        65535,
      65536, 1U << 20, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, INT64_MAX, 1ULL << 63, ~0ULL};
  for (int i = 0; i < rounds; ++i) {
    std::vector<std::byte> bytes = seeds[random() % seeds.size()];
    for (unsigned k = random() % 4 + 1; k > 0; --k) {
      const size_t at = random() % bytes.size();
      switch (random() % 4) {
        case 0:
          bytes[at] = static_cast<std::byte>(random());
          break;
        case 1:
          bytes.erase(bytes.begin() + static_cast<ptrdiff_t>(at));
          break;
        case 2:
          bytes.insert(bytes.begin() + static_cast<ptrdiff_t>(at),
                       static_cast<std::byte>(random()));
          break;
        default: {
          const uint64_t edge = kEdges[random() % std::size(kEdges)];
          const size_t width = random() % 2 == 0 ? 4 : 8;
          if (at + width <= bytes.size()) std::memcpy(&bytes[at], &edge, width);
        }
      }
      if (bytes.empty()) bytes.push_back({});
    }
    if (!survives(bytes)) EXPECT(!"a mutant gave an empty manifest");
  }
}

TEST(elf_checks) {
  const std::string names[] = {"/a/model.so", "libpteron_cuda.so"};
  const std::vector<std::byte> wrapper = cuda::make_wrapper(names);
  cuda::check_library(wrapper);
  EXPECT(cuda::executable_stack_flag(wrapper) == 0);
  for (size_t n = 0; n < wrapper.size(); ++n) {
    const std::vector<std::byte> cut(wrapper.begin(), wrapper.begin() + static_cast<ptrdiff_t>(n));
    EXPECT(!thrown([&] { cuda::check_library(cut); }).empty());
    cuda::executable_stack_flag(cut);
  }
  std::vector<std::byte> other = wrapper;
  other[18] = std::byte{2};  // SPARC
  EXPECT_TEXT(thrown([&] { cuda::check_library(other); }), "another kind of processor");
  EXPECT_TEXT(thrown([&] { cuda::check_library(Bytes().raw("MZ\x90").data); }), "DLL");
  EXPECT_TEXT(thrown([&] { cuda::check_library(Bytes().raw("hello").data); }), "no ELF file");
  std::mt19937 random(3);
  for (int i = 0; i < 20000; ++i) {
    std::vector<std::byte> bytes = wrapper;
    for (int k = 0; k < 3; ++k) bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    thrown([&] { cuda::check_library(bytes); });
    const size_t flag = cuda::executable_stack_flag(bytes);
    EXPECT(flag < bytes.size());
  }
}

}  // namespace pteron::testing

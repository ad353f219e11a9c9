// Element types: one table, from which every name, size, buffer format and DLPack code is derived.
//
// Numbers are ScalarType's in scalar_type.fbs (and torch's). `format` is the one-letter native
// struct code that the buffer protocol shows: types that it cannot name show as integers of the
// same width (PR 24146), unsigned but for qint8 and qint32. DLPack codes are dlpack.h 1.1's; a row
// with code `kDLNone` cannot be exported. `numpy` says whether NumPy has the very type.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace pteron {

enum : uint8_t {
  kDLInt = 0,
  kDLUInt = 1,
  kDLFloat = 2,
  kDLBfloat = 4,
  kDLComplex = 5,
  kDLBool = 6,
  kDLFloat8_e4m3fn = 10,
  kDLFloat8_e4m3fnuz = 11,
  kDLFloat8_e5m2 = 12,
  kDLFloat8_e5m2fnuz = 13,
  kDLNone = 255,
};

//  enumerator, number, name, the runtime's name, bytes, format, NumPy has it, DLPack code
#define PTERON_FORALL_DTYPES(_)                                                                   \
  _(UInt8, 0, "uint8", "Byte", 1, "B", true, kDLUInt)                                             \
  _(Int8, 1, "int8", "Char", 1, "b", true, kDLInt)                                                \
  _(Int16, 2, "int16", "Short", 2, "h", true, kDLInt)                                             \
  _(Int32, 3, "int32", "Int", 4, "i", true, kDLInt)                                               \
  _(Int64, 4, "int64", "Long", 8, "q", true, kDLInt)                                              \
  _(Float16, 5, "float16", "Half", 2, "e", true, kDLFloat)                                        \
  _(Float32, 6, "float32", "Float", 4, "f", true, kDLFloat)                                       \
  _(Float64, 7, "float64", "Double", 8, "d", true, kDLFloat)                                      \
  _(Complex32, 8, "complex32", "ComplexHalf", 4, "I", false, kDLComplex)                          \
  _(Complex64, 9, "complex64", "ComplexFloat", 8, "Zf", true, kDLComplex)                         \
  _(Complex128, 10, "complex128", "ComplexDouble", 16, "Zd", true, kDLComplex)                    \
  _(Bool, 11, "bool", "Bool", 1, "?", true, kDLBool)                                              \
  _(QInt8, 12, "qint8", "QInt8", 1, "b", false, kDLNone)                                          \
  _(QUInt8, 13, "quint8", "QUInt8", 1, "B", false, kDLNone)                                       \
  _(QInt32, 14, "qint32", "QInt32", 4, "i", false, kDLNone)                                       \
  _(BFloat16, 15, "bfloat16", "BFloat16", 2, "H", false, kDLBfloat)                               \
  _(QUInt4x2, 16, "quint4x2", "QUInt4x2", 1, "B", false, kDLNone)                                 \
  _(QUInt2x4, 17, "quint2x4", "QUInt2x4", 1, "B", false, kDLNone)                                 \
  _(Bits1x8, 18, "bits1x8", "Bits1x8", 1, "B", false, kDLNone)                                    \
  _(Bits2x4, 19, "bits2x4", "Bits2x4", 1, "B", false, kDLNone)                                    \
  _(Bits4x2, 20, "bits4x2", "Bits4x2", 1, "B", false, kDLNone)                                    \
  _(Bits8, 21, "bits8", "Bits8", 1, "B", false, kDLNone)                                          \
  _(Bits16, 22, "bits16", "Bits16", 2, "H", false, kDLNone)                                       \
  _(Float8_e5m2, 23, "float8_e5m2", "Float8_e5m2", 1, "B", false, kDLFloat8_e5m2)                 \
  _(Float8_e4m3fn, 24, "float8_e4m3fn", "Float8_e4m3fn", 1, "B", false, kDLFloat8_e4m3fn)         \
  _(Float8_e5m2fnuz, 25, "float8_e5m2fnuz", "Float8_e5m2fnuz", 1, "B", false, kDLFloat8_e5m2fnuz) \
  _(Float8_e4m3fnuz, 26, "float8_e4m3fnuz", "Float8_e4m3fnuz", 1, "B", false, kDLFloat8_e4m3fnuz) \
  _(UInt16, 27, "uint16", "UInt16", 2, "H", true, kDLUInt)                                        \
  _(UInt32, 28, "uint32", "UInt32", 4, "I", true, kDLUInt)                                        \
  _(UInt64, 29, "uint64", "UInt64", 8, "Q", true, kDLUInt)

enum class DType : int8_t {
#define PTERON_DTYPE(name, number, ...) name = number,
  PTERON_FORALL_DTYPES(PTERON_DTYPE)
#undef PTERON_DTYPE
};

struct DTypeInfo {
  const char* name;          // NumPy's or torch's spelling, "float32"
  const char* runtime_name;  // the runtime's spelling in its log lines, "Float"
  uint8_t itemsize;          // bytes
  const char* format;        // PEP 3118, native, one letter (complex: two)
  bool numpy;                // NumPy has this very type
  uint8_t dlpack_code;       // kDLNone: no DLPack type
};

inline constexpr DTypeInfo kDTypes[] = {
#define PTERON_DTYPE(name, number, text, runtime, bytes, format, numpy, dlpack) \
  {text, runtime, bytes, format, numpy, dlpack},
    PTERON_FORALL_DTYPES(PTERON_DTYPE)
#undef PTERON_DTYPE
};
inline constexpr int kNumDTypes = sizeof(kDTypes) / sizeof(kDTypes[0]);

constexpr bool is_dtype(int number) noexcept { return number >= 0 && number < kNumDTypes; }

constexpr const DTypeInfo& info(DType dtype) noexcept { return kDTypes[static_cast<int>(dtype)]; }

constexpr size_t itemsize(DType dtype) noexcept { return info(dtype).itemsize; }

// The type with this DLPack code and width, or -1. Lanes other than 1 are the caller's to refuse.
int dtype_from_dlpack(uint8_t code, uint8_t bits) noexcept;

// The type with this name, or -1.
int dtype_from_name(std::string_view name) noexcept;

}  // namespace pteron

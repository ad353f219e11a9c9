// Which fields of an XNNPACK node name the values that it reads and writes.
#pragma once

#include <cstdint>

namespace pteron::xnnpack {

struct NodeKind {
  uint8_t input;   // number of the first field that names an input; the others follow
  uint8_t inputs;  // how many
  uint8_t output;
  uint8_t more_input = 0;  // a field apart from the others; 0: there is none
  uint8_t more_output = 0;
};

constexpr NodeKind kUnary{0, 1, 1}, kBinary{0, 2, 2}, kConvolution{15, 3, 18}, kPool{10, 1, 11};

// By the node's number in XNodeUnion of runtime_schema.fbs.
constexpr NodeKind kNodeKinds[] = {
    {},                                                   // none
    kBinary,      {0, 3, 3},    kUnary,                   // add, fully connected, softmax
    kUnary,       {2, 1, 3},    kUnary,                   // sigmoid, transpose, clamp
    kConvolution, kBinary,      {2, 1, 3},                // conv, div, resize
    {3, 1, 4},    kPool,        kBinary,                  // pad, average pool, minimum
    kConvolution, kPool,        kBinary,                  // depthwise conv, max pool, multiply
    kBinary,      kUnary,       kUnary,                   // subtract, floor, convert
    kUnary,       {2, 1, 3},    {6, 1, 7, 0, 8},          // global pool, reshape, argmax pool
    kUnary,       kUnary,       kUnary,                   // sqrt, ceiling, hardswish
    {1, 1, 2},    kBinary,      kUnary,                   // leaky relu, maximum, negate
    kUnary,       {1, 1, 2},    kUnary,                   // square, elu, abs
    kBinary,      {1, 2, 5},    {1, 3, 5},                // prelu, concatenate 2 and 3
    {1, 4, 5},    {3, 1, 4},    {0, 5, 5},                // concatenate 4, slice, attention
    kBinary,      {1, 4, 5, 7}, kConvolution,             // matmul, concatenate 5, transposed conv
    kUnary,       kUnary,       kUnary,          kUnary,  // reciprocal sqrt, log, gelu, tanh
    kUnary,       kUnary,       kUnary,          kUnary,  // exp, sin, copy, cos
};
constexpr uint8_t kFullyConnected = 2, kTranspose = 5, kConv = 7, kPad = 10, kDepthwiseConv = 13,
                  kReshape = 20, kSlice = 35, kTransposedConv = 39;

// XNNQuantParams.
constexpr uint8_t kPerChannel = 1, kPerTensor = 2, kPerToken = 3, kPerGroup = 4;

// Bits of an element and how it is quantized (a number of XNNQuantParams, or not), by XNNDatatype.
struct Datatype {
  uint8_t bits;
  uint8_t quantized;
};
inline constexpr Datatype kDatatypes[] = {
    {0, 0},           {32, 0},          {16, 0},           {8, kPerTensor},  {8, kPerTensor},
    {32, kPerTensor}, {8, kPerChannel}, {32, kPerChannel}, {4, kPerChannel}, {8, kPerToken},
    {4, kPerGroup},   {8, kPerToken},   {32, 0},           {32, 0},          {16, 0},
};

}  // namespace pteron::xnnpack

// What the kernels of known operators do to their arguments. Operator names are a promise of their
// namespace, so only namespaces whose kernels the runtime itself brings are trusted.
#include <algorithm>
#include <iterator>
#include <string_view>

#include "validate.h"

namespace pteron {
namespace {

struct Known {
  std::string_view name;
  std::string_view overload;
  Effect effect;
};

using Do = Effect::Kind;

// Operators whose name does not tell, by functions.yaml and quantized.yaml of the runtime.
constexpr Known kKnown[] = {
    {"aten::convolution_backward", "out", {Do::Out, 3}},
    {"aten::max", "dim_max", {Do::Out, 2}},
    {"aten::max_pool2d_with_indices", "out", {Do::Out, 2}},
    {"aten::max_pool2d_with_indices_backward", "grad_input", {Do::Out, 1}},
    {"aten::min", "dim_min", {Do::Out, 2}},
    {"aten::native_dropout", "out", {Do::Out, 2}},
    {"aten::native_group_norm", "out", {Do::Out, 3}},
    {"aten::native_layer_norm", "out", {Do::Out, 3}},
    {"aten::topk", "values", {Do::Out, 2}},
    {"aten::var_mean", "correction_out", {Do::Out, 2}},
    {"aten::_native_batch_norm_legit", "no_stats_out", {Do::Out, 3}},
    {"aten::_native_batch_norm_legit_no_training", "out", {Do::Out, 3}},
    {"aten::_native_batch_norm_legit", "out", {}},  // may write its running statistics
    {"quantized_decomposed::choose_qparams", "Tensor_out", {Do::Out, 2}},
    {"quantized_decomposed::choose_qparams_per_token_asymmetric", "out", {Do::Out, 2}},
    {"aten::sym_size", "int", {Do::Scalar, 0}},
    {"aten::sym_numel", "", {Do::Scalar, 0}},
    {"aten::_local_scalar_dense", "", {Do::Scalar, 0}},
    {"executorch_prim::et_view", "default", {Do::View, 0}},
    {"executorch_prim::et_copy_index", "tensor", {Do::Append, 0}},
};

constexpr std::string_view kTrusted[] = {"aten", "dim_order_ops", "et_copy",
                                         "quantized_decomposed"};

}  // namespace

Effect effect_of(const OperatorSpec& op) noexcept {
  for (const Known& known : kKnown) {
    if (known.name == op.name && known.overload == op.overload) return known.effect;
  }
  const std::string_view name = op.name;
  const size_t colons = name.find("::");
  if (colons == name.npos) return {};
  const std::string_view space = name.substr(0, colons);
  if (space == "executorch_prim") return {Do::Scalar, 0};
  if (std::find(std::begin(kTrusted), std::end(kTrusted), space) == std::end(kTrusted)) return {};
  const std::string_view overload = op.overload;
  if (overload.ends_with("out") || overload == "out_mode") return {Do::Out, 1};
  if (name.ends_with("_") && !name.ends_with("__")) return {Do::InPlace, 0};
  return {};
}

}  // namespace pteron

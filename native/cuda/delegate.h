// The runtime's backend "CudaBackend": runs programs that the ExecuTorch CUDA exporter wrote.
#pragma once

#include <executorch/runtime/backend/interface.h>

namespace pteron::cuda {

class CudaBackend final : public ::executorch::runtime::BackendInterface {
 public:
  using Error = ::executorch::runtime::Error;
  using DelegateHandle = ::executorch::runtime::DelegateHandle;

  bool is_available() const override;
  ::executorch::runtime::Result<DelegateHandle*> init(
      ::executorch::runtime::BackendInitContext& context,
      ::executorch::runtime::FreeableBuffer* processed,
      ::executorch::runtime::ArrayRef<::executorch::runtime::CompileSpec> specs) const override;
  Error execute(::executorch::runtime::BackendExecutionContext& context, DelegateHandle* handle,
                ::executorch::runtime::Span<::executorch::runtime::EValue*> args) const override;
  Error set_option(
      ::executorch::runtime::BackendOptionContext& context,
      const ::executorch::runtime::Span<::executorch::runtime::BackendOption>& options) override;
  void destroy(DelegateHandle* handle) const override;
};

// Registers the one backend of the process, unless the name is taken.
void register_backend();

// Handles that init() made and destroy() has not seen: leak checks of the tests.
int live_handles() noexcept;

}  // namespace pteron::cuda

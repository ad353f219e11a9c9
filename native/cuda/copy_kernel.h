// A kernel that copies device memory, for the nodes of a graph whose ends change from launch to
// launch. A copy node will not do: its ends must stay within the kind of memory that it was made
// with, and callers bring memory of every kind.
#pragma once

#include "driver.h"

namespace pteron::cuda {

struct CopyKernel {
  Function function = nullptr;  // null: this device cannot load it

  // What launches and nodes take. Points into itself and at the kernel, which must outlive it.
  struct Call {
    Call(const CopyKernel& kernel, void* dst, const void* src, size_t nbytes);
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

    DevicePtr dst;
    DevicePtr src;
    unsigned long long nbytes;
    void* arguments[3] = {&dst, &src, &nbytes};
    KernelNode node;
  };
};

// The device's, loaded at the first call and kept until the process ends.
const CopyKernel& copy_kernel(int device);

}  // namespace pteron::cuda

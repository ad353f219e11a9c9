// The inputs that a method was given, for as many runs as the caller likes.
//
// They are read anew at every run, so that a run sees the caller's values as they are then. What
// may not change in between is the memory and the shape: an array that was resized or re-pointed is
// no longer what was passed, and the caller is told to pass it again.
//
// Reading runs the caller's code, which may set other inputs, on this thread or another. So what is
// read is never changed: new inputs make a new list, and a run holds the list that it started with.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "inputs.h"

namespace pteron::python {

class KeptInput;
using KeptList = std::vector<std::shared_ptr<const KeptInput>>;

class KeptInputs {
 public:
  // Reads, checks and keeps one object for each input, into `reader` too, made for all inputs; on
  // failure the old inputs are gone and later runs say so. Returns what the values borrow from:
  // hold it during the run. Throws Error, PythonError.
  KeptList set(const Method& method, PyObject* const* objects, size_t count, InputReader& reader);

  // Reads `objects` as the first inputs and takes the others from before, each read again, into
  // `reader`. On failure what was kept before stays. Throws Error{Input} that names the first input
  // that was never passed, Error, PythonError.
  KeptList merge(const Method& method, PyObject* const* objects, size_t count, InputReader& reader);

  // Reads every input again into `reader`. Throws Error{State} that says which step is missing or
  // what changed, Error, PythonError.
  KeptList read(const Method& method, InputReader& reader) const;

  void clear() noexcept;
  int traverse(visitproc visit, void* arg) const;

 private:
  enum class State { Unset, Ready, Failed };

  void replace(KeptList inputs, State state) noexcept;
  std::pair<KeptList, State> current() const;

  mutable std::mutex mutex_;  // of the two below; held for no longer than it takes to copy them
  KeptList inputs_;
  State state_ = State::Unset;
};

}  // namespace pteron::python

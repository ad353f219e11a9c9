// One method of a program, ready to run, with memory of its own.
//
// A method runs one call at a time; a second thread waits. Nothing here touches Python, and run()
// must be called without the GIL, since it may wait and may take long.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "program_file.h"
#include "tensor_block.h"

namespace executorch::runtime {
class NamedDataMap;
class Program;
namespace etensor {
class TensorImpl;
}
}  // namespace executorch::runtime

namespace pteron {

class Program;
class SharedState;
struct InputSlot;

// A tensor in memory of the caller. Valid while the caller holds its owner.
struct TensorView {
  void* data = nullptr;
  const int64_t* shape = nullptr;
  const int64_t* strides = nullptr;  // null: C order
  int64_t stride_unit = 1;           // bytes that a stride of 1 stands for
  int ndim = 0;
  DType dtype = DType::Float32;
  Device device{};
  bool readonly = false;
  bool pinned = false;  // the memory cannot move or go while the owner is held
  bool raw = false;     // plain bytes, to be read as whatever dtype the input has
};

// The whole of `block`, and a packed copy of host memory (null when out of memory).
TensorView view_of(const TensorBlock& block) noexcept;
TensorRef copy_of(const TensorView& view) noexcept;

// A value that the caller passed, read but not yet checked against the method.
struct InputValue {
  ValueKind kind = ValueKind::None;
  int64_t int_value = 0;  // Int and Bool
  double double_value = 0;
  std::string_view string_value;
  TensorView tensor;
};

struct OutputValue {
  ValueKind kind = ValueKind::None;
  int64_t int_value = 0;
  double double_value = 0;
  std::string string_value;
  TensorRef tensor;
};

struct MethodOptions {
  bool cuda_graph = false;  // record the device work once, and launch it as a whole
};

class Method : public std::enable_shared_from_this<Method> {
 public:
  // Called by Program::load_method.
  Method(std::shared_ptr<Program> program, const MethodSpec& spec,
         const executorch::runtime::Program& runtime, const executorch::runtime::NamedDataMap& data,
         const MethodOptions& options);
  ~Method();

  const MethodSpec& spec() const noexcept { return spec_; }
  const std::shared_ptr<Program>& program() const noexcept { return program_; }
  const Generation& generation() const noexcept { return generation_; }

  // Throws Error{Input, InputType, Device} that names the first bad input. Reads no tensor data.
  void check_count(size_t given) const;
  void check_input(size_t i, const InputValue& value) const;

  // What happens to the outputs of a run. Owned: handed out in memory of their own, written there
  // directly where that is safe, and not to be had again. Borrowed: handed out, but they may share
  // the method's memory, and the next run makes them stale. Copied: handed out as copies, and to be
  // had again from outputs().
  enum class Outputs : uint8_t { Owned, Borrowed, Copied };

  // A CUDA stream that a run is ordered on. Not given: before and after the run it waits for every
  // device that holds an input or output, so that all is safe whatever the caller did.
  struct Stream {
    bool given = false;
    void* handle = nullptr;
  };

  // Throws Error{Argument} for a stream of another device than the method's.
  void check_stream(const Stream& stream) const;

  // Installs `inputs` (checked, one for each of the method's), executes, and fills `results` (one
  // for each output). Throws Error{Execution, State, Memory, ...}.
  void run(std::span<const InputValue> inputs, Outputs mode, std::span<OutputValue> results,
           Stream stream);
  void run(std::span<const InputValue> inputs, Outputs mode, std::span<OutputValue> results) {
    run(inputs, mode, results, Stream());
  }

  // The outputs of the last run, copied with `clone`. Throws Error{State} when there are none.
  void outputs(bool clone, std::span<OutputValue> results);

  // A view of a mutable buffer or an external constant (read-only), by its fully qualified name.
  // Throws Error{AttributeNotFound}.
  TensorRef attribute(const std::string& name);

  // Mutable buffers, by their index in spec().state. A view is live and keeps the method alive;
  // copies are made, written and reset all at one moment between runs.
  TensorRef state_view(size_t i);
  std::vector<TensorRef> copy_state();
  struct StateWrite {
    size_t index;
    TensorView value;
  };
  // Throws Error{Input, InputType, Device} that names it.
  void check_state(size_t i, const TensorView& value) const;
  // Writes nothing unless all values fit.
  void write_state(std::span<const StateWrite> writes);
  // Back to the values in the file, or zeros: what they were when the program was loaded.
  void reset_state(std::span<const size_t> indices);

  // Whether input `i` was copied in the last run, or read where it is.
  bool copied(size_t i) const noexcept;
  // Copy every input and output even where they could be used in place.
  void set_always_copy(bool on) noexcept { always_copy_ = on; }
  bool always_copy() const noexcept { return always_copy_; }

  // Whether its device work is a CUDA graph.
  bool is_graph() const noexcept;

  // Whether `data` points into the memory that runs of this method write.
  bool in_own_memory(const void* data) const noexcept;

  // "Input 0 of method 'forward'" and "State 'acc' of method 'forward'", for messages.
  std::string input_name(size_t i) const;
  std::string state_name(size_t i) const;

 private:
  struct State;  // the runtime's objects
  class Exclusive;

  // The devices that one run uses: what it waits for, or the stream that its work is put on.
  class DeviceTurn {
   public:
    DeviceTurn(Method& method, std::span<const InputValue> inputs);
    ~DeviceTurn();
    DeviceTurn(const DeviceTurn&) = delete;
    DeviceTurn& operator=(const DeviceTurn&) = delete;
    void finish(std::span<OutputValue> results);

   private:
    template <typename Work>
    void for_each(Work work) const;
    void wait() const;
    Method& method_;
    Stream stream_;
    uint64_t devices_ = 0;  // a bit for each CUDA device
    bool finished_ = false;
  };

  void install(size_t i, const TensorView& view);
  void write_back(const InputSlot& slot, const TensorView& view) const;
  void install_on_device(size_t i, const TensorView& view, size_t nbytes);
  std::string output_text() const;  // for messages
  void place_outputs(bool direct);
  void execute();
  void record_graph();
  void rescue_outputs();
  void collect(bool clone, std::span<OutputValue> results);
  TensorRef borrow(const executorch::runtime::etensor::TensorImpl& tensor, const TensorSpec* spec);
  const TensorSpec& state_tensor(size_t i) const;
  void* state_data(size_t i) const;
  [[noreturn]] void no_output_memory(size_t output, size_t nbytes) const;
  void require_usable() const;

  std::shared_ptr<Program> program_;
  const MethodSpec& spec_;
  SharedState* const shared_;  // the program's; null where the method shares none
  std::unique_ptr<State> state_;
  std::mutex mutex_;
  std::atomic<std::thread::id> running_{};
  Generation generation_{0};
  std::atomic<bool> always_copy_{false};
  bool on_device_ = false;    // an input or output is in device memory
  Stream stream_;             // of the current run
  bool stuck_ = false;        // an assertion of the runtime failed inside a run
  bool has_outputs_ = false;  // outputs() may be asked
};

}  // namespace pteron

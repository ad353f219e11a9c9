// A loaded program. Lifetimes: Program > Method > result; each keeps the ones before it alive.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data_file.h"
#include "data_source.h"
#include "program_file.h"

namespace executorch::runtime {
class NamedDataMap;
class Program;
}  // namespace executorch::runtime

namespace pteron {

class Method;
struct MethodOptions;
class SharedState;
class Trace;

enum class Verification : uint8_t { Minimal = 0, InternalConsistency = 1 };

struct LoadOptions {
  Verification verification = Verification::InternalConsistency;
  bool enable_etdump = false;
  size_t debug_buffer_size = 0;  // bytes for intermediate values in the ETDump
};

class Program : public std::enable_shared_from_this<Program> {
 public:
  // `name` is how messages call the program; `data` are data files (.ptd), with a name each. Throws
  // Error{InvalidProgram, InvalidData, FileAccess, Memory}.
  struct NamedSource {
    std::string name;
    std::unique_ptr<DataSource> source;
  };
  static std::shared_ptr<Program> load(NamedSource program, std::vector<NamedSource> data,
                                       const LoadOptions& options);
  ~Program();

  // What load() begins with: reads and checks the structure, which `source` keeps from then on.
  // Throws Error{InvalidProgram, FileAccess}.
  static ProgramFile read_file(DataSource& source, const std::string& name);

  const std::string& name() const noexcept { return name_; }
  const ProgramFile& file() const noexcept { return file_; }

  // Throws Error{MethodNotFound} that lists the methods there are.
  const MethodSpec& spec(std::string_view method) const;

  // A new method, independent but for the state that the program shares. Throws
  // Error{MethodNotFound, OperatorMissing, BackendMissing, DataNotFound, Memory, Argument, ...}.
  std::shared_ptr<Method> load_method(std::string_view method, const MethodOptions& options);

  // Fills `into` with the value that the file has for a state, and leaves it where it has none.
  void load_initial(const StateSpec& state, void* into) const;
  SharedState& shared_state() noexcept { return *shared_state_; }

  // Null unless loaded with enable_etdump.
  const std::shared_ptr<Trace>& trace() const noexcept { return trace_; }

 private:
  Program();

  std::string name_;
  ProgramFile file_;
  std::unique_ptr<DataSource> source_;
  std::vector<NamedSource> data_sources_;
  std::vector<std::unique_ptr<executorch::runtime::NamedDataMap>> data_maps_;
  std::unique_ptr<executorch::runtime::NamedDataMap> data_map_;  // never null
  NamedBytes named_bytes_;  // of the program and of the data files
  std::shared_ptr<Trace> trace_;
  std::unique_ptr<executorch::runtime::Program> program_;
  const std::unique_ptr<SharedState> shared_state_;
};

}  // namespace pteron

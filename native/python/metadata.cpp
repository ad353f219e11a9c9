#include "metadata.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bind.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace pteron::python {
namespace {

struct TensorInfo {
  std::shared_ptr<Program> program;  // keeps `spec` alive
  const TensorSpec* spec;
};

struct ValueInfo {
  ValueKind kind;
  nb::object value;
};

struct MethodMeta {
  std::shared_ptr<Program> program;
  const MethodSpec* spec;
};

nb::tuple sizes(const TensorInfo& self) {
  nb::list list;
  for (int32_t size : self.spec->sizes) list.append(size);
  return nb::tuple(list);
}

std::string tensor_text(const TensorSpec& spec) {
  std::string text = "TensorInfo(sizes=[";
  for (size_t i = 0; i < spec.sizes.size(); ++i) {
    text += (i > 0 ? ", " : "") + std::to_string(spec.sizes[i]);
  }
  return text + "], dtype=" + info(spec.dtype).name +
         ", is_memory_planned=" + (spec.planned ? "True" : "False") +
         ", nbytes=" + std::to_string(spec.nbytes) + ", device=" + to_string(spec.device) + ")";
}

const char* python_name(ValueKind kind) {
  switch (kind) {
    case ValueKind::None:
      return "None";
    case ValueKind::Int:
      return "int";
    case ValueKind::Bool:
      return "bool";
    case ValueKind::Double:
      return "float";
    case ValueKind::String:
      return "str";
    default:
      return "list";
  }
}

nb::object python_value(const ValueSpec& spec) {
  switch (spec.kind) {
    case ValueKind::Int:
      return nb::int_(spec.int_value);
    case ValueKind::Bool:
      return nb::bool_(spec.int_value != 0);
    case ValueKind::Double:
      return nb::float_(spec.double_value);
    case ValueKind::String:
      return nb::str(spec.string_value.data(), spec.string_value.size());
    default:
      return nb::none();
  }
}

std::string value_text(const ValueSpec& spec) {
  if (spec.kind == ValueKind::Tensor) return tensor_text(spec.tensor);
  return std::string("ValueInfo(type=") + python_name(spec.kind) + ")";
}

nb::object value_info(const MethodMeta& self, const ValueSpec& spec) {
  if (spec.kind == ValueKind::Tensor) return nb::cast(TensorInfo{self.program, &spec.tensor});
  return nb::cast(ValueInfo{spec.kind, python_value(spec)});
}

// The tensor at `index` of the `what`s, or an IndexError that says why not.
TensorInfo tensor_at(const MethodMeta& self, const char* what, const std::vector<uint32_t>& values,
                     int64_t index) {
  const std::string where =
      std::string(what) + " " + std::to_string(index) + " of method '" + self.spec->name + "'";
  if (index < 0 || static_cast<size_t>(index) >= values.size()) {
    throw Error(Kind::Index, Code::InvalidArgument,
                "There is no " + where + ": it has " + std::to_string(values.size()) + ", " +
                    code_text(Code::InvalidArgument));
  }
  const ValueSpec& spec = self.spec->values[values[static_cast<size_t>(index)]];
  if (spec.kind != ValueKind::Tensor) {
    throw Error(Kind::Index, Code::InvalidArgument,
                "There is no tensor at " + where + ": it is " + python_name(spec.kind) + ", " +
                    code_text(Code::InvalidArgument));
  }
  return {self.program, &spec.tensor};
}

nb::tuple value_infos(const MethodMeta& self, const std::vector<uint32_t>& values) {
  nb::list list;
  for (uint32_t index : values) list.append(value_info(self, self.spec->values[index]));
  return nb::tuple(list);
}

std::string meta_text(const MethodMeta& self) {
  const auto texts = [&](const std::vector<uint32_t>& values) {
    std::string text = "[";
    for (size_t i = 0; i < values.size(); ++i) {
      text += (i > 0 ? ", '" : "'") + value_text(self.spec->values[values[i]]) + "'";
    }
    return text + "]";
  };
  const MethodSpec& spec = *self.spec;
  return "MethodMeta(name='" + spec.name + "', num_inputs=" + std::to_string(spec.inputs.size()) +
         ", input_tensor_meta=" + texts(spec.inputs) +
         ", num_outputs=" + std::to_string(spec.outputs.size()) +
         ", output_tensor_meta=" + texts(spec.outputs) + ")";
}

}  // namespace

PyObject* new_method_meta(std::shared_ptr<Program> program, const MethodSpec& spec) {
  return nb::cast(MethodMeta{std::move(program), &spec}).release().ptr();
}

void bind_metadata(nb::module_& m) {
  nb::class_<TensorInfo>(m, "TensorInfo", "What the program says of a tensor.")
      .def("sizes", sizes, nb::sig("def sizes(self) -> tuple[int, ...]"),
           "Size of each axis; the largest possible where the shape is dynamic.")
      .def(
          "dtype", [](const TensorInfo& self) { return static_cast<int>(self.spec->dtype); },
          "Number of the element type: torch's ScalarType, 6 for float32.")
      .def(
          "dtype_name", [](const TensorInfo& self) { return info(self.spec->dtype).name; },
          "Name of the element type, \"float32\".")
      .def(
          "is_memory_planned", [](const TensorInfo& self) { return self.spec->planned; },
          "Whether its memory is part of the method's own.")
      .def(
          "nbytes", [](const TensorInfo& self) { return self.spec->nbytes; },
          "Bytes of its elements at the largest size.")
      .def(
          "device", [](const TensorInfo& self) { return to_string(self.spec->device); },
          "Where its memory is, \"cpu\" or \"cuda:0\".")
      .def_prop_ro(
          "name", [](const TensorInfo& self) { return self.spec->name; },
          "Fully qualified name of a constant or mutable buffer; empty for others.")
      .def_prop_ro(
          "is_dynamic",
          [](const TensorInfo& self) { return self.spec->dynamism != Dynamism::Static; },
          "Whether the shape may be smaller than sizes().")
      .def_prop_ro(
          "dim_order",
          [](const TensorInfo& self) {
            nb::list list;
            for (uint8_t d : self.spec->dim_order) list.append(static_cast<int>(d));
            return nb::tuple(list);
          },
          nb::sig("def dim_order(self) -> tuple[int, ...]"),
          "The axes from the outermost in memory to the innermost.")
      .def("__repr__", [](const TensorInfo& self) { return tensor_text(*self.spec); });

  nb::class_<ValueInfo>(m, "ValueInfo", "What the program says of a value that is no tensor.")
      .def_prop_ro(
          "type", [](const ValueInfo& self) { return python_name(self.kind); },
          "\"int\", \"float\", \"bool\", \"str\" or \"None\".")
      .def_prop_ro(
          "value", [](const ValueInfo& self) { return self.value; },
          nb::sig("def value(self) -> int | float | bool | str | None"),
          "The value that the program was exported with: the only one an input can have.")
      .def("__repr__", [](const ValueInfo& self) {
        return "ValueInfo(type=" + std::string(python_name(self.kind)) +
               ", value=" + nb::repr(self.value).c_str() + ")";
      });

  nb::class_<OperatorSpec>(m, "OperatorInfo", "An operator that a method uses.")
      .def_prop_ro("name", &OperatorSpec::full_name, "Name with overload, \"aten::add.out\".")
      .def_ro("calls", &OperatorSpec::calls, "Instructions that use it.")
      .def("__repr__", [](const OperatorSpec& self) {
        return "OperatorInfo(name='" + self.full_name() + "', calls=" + std::to_string(self.calls) +
               ")";
      });

  nb::class_<DelegateSpec>(m, "DelegateInfo", "A part of a method that a backend runs.")
      .def_ro("backend", &DelegateSpec::id, "Name of the backend, \"XnnpackBackend\".")
      .def_ro("nbytes", &DelegateSpec::nbytes, "Bytes of its payload in the file.")
      .def_ro("calls", &DelegateSpec::calls, "Instructions that call it.")
      .def("__repr__", [](const DelegateSpec& self) {
        return "DelegateInfo(backend='" + self.id + "', nbytes=" + std::to_string(self.nbytes) +
               ", calls=" + std::to_string(self.calls) + ")";
      });

  nb::class_<PlannedBuffer>(m, "PlannedBuffer", "A piece of memory that a method has of its own.")
      .def_ro("nbytes", &PlannedBuffer::reachable, "Bytes that its tensors use.")
      .def_prop_ro(
          "device", [](const PlannedBuffer& self) { return to_string(self.device); },
          "Where it is, \"cpu\" or \"cuda:0\".")
      .def("__repr__", [](const PlannedBuffer& self) {
        return "PlannedBuffer(nbytes=" + std::to_string(self.reachable) +
               ", device=" + to_string(self.device) + ")";
      });

  nb::class_<MethodMeta>(m, "MethodMeta", "What the program says of a method.")
      .def(
          "name", [](const MethodMeta& self) { return self.spec->name; }, "Name of the method.")
      .def(
          "num_inputs", [](const MethodMeta& self) { return self.spec->inputs.size(); },
          "Number of inputs.")
      .def(
          "num_outputs", [](const MethodMeta& self) { return self.spec->outputs.size(); },
          "Number of outputs.")
      .def(
          "num_attributes", [](const MethodMeta& self) { return self.spec->attributes.size(); },
          "Number of named tensors: mutable buffers and external constants.")
      .def(
          "input_tensor_meta",
          [](const MethodMeta& self, int64_t index) {
            return tensor_at(self, "input", self.spec->inputs, index);
          },
          "index"_a, "The tensor at input `index`; MetadataIndexError (an IndexError) if none is.")
      .def(
          "output_tensor_meta",
          [](const MethodMeta& self, int64_t index) {
            return tensor_at(self, "output", self.spec->outputs, index);
          },
          "index"_a, "The tensor at output `index`; MetadataIndexError (an IndexError) if none is.")
      .def(
          "attribute_tensor_meta",
          [](const MethodMeta& self, int64_t index) {
            return tensor_at(self, "attribute", self.spec->attributes, index);
          },
          "index"_a, "The named tensor `index`; MetadataIndexError (an IndexError) if none is.")
      .def_prop_ro(
          "inputs", [](const MethodMeta& self) { return value_infos(self, self.spec->inputs); },
          nb::sig("def inputs(self) -> tuple[TensorInfo | ValueInfo, ...]"),
          "Every input, in call order.")
      .def_prop_ro(
          "outputs", [](const MethodMeta& self) { return value_infos(self, self.spec->outputs); },
          nb::sig("def outputs(self) -> tuple[TensorInfo | ValueInfo, ...]"),
          "Every output, in order of return.")
      .def_prop_ro(
          "operators", [](const MethodMeta& self) { return self.spec->operators; },
          "The operators it uses.")
      .def_prop_ro(
          "delegates", [](const MethodMeta& self) { return self.spec->delegates; },
          "The parts that backends run.")
      .def_prop_ro(
          "planned_memory",
          [](const MethodMeta& self) {
            const auto& buffers = self.spec->buffers;  // the first is unused
            return std::vector<PlannedBuffer>(buffers.begin() + !buffers.empty(), buffers.end());
          },
          "The memory it has of its own.")
      .def_prop_ro(
          "instructions", [](const MethodMeta& self) { return self.spec->instructions; },
          "Number of instructions.")
      .def_prop_ro(
          "input_tree", [](const MethodMeta& self) { return self.spec->input_tree; },
          "The call's structure as the exporter wrote it: JSON, or empty.")
      .def_prop_ro(
          "output_tree", [](const MethodMeta& self) { return self.spec->output_tree; },
          "The return value's structure as the exporter wrote it: JSON, or empty.")
      .def("__repr__", meta_text);
}

}  // namespace pteron::python

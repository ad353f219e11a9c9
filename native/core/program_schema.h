// Field numbers of program.fbs: the order in which each table declares its fields.
#pragma once

#include "flatbuffer.h"

namespace pteron::schema {

using flatbuffer::Field;

namespace program {
inline constexpr Field version{0, "version"}, execution_plan{1, "execution_plan"},
    constant_buffer{2, "constant_buffer"}, backend_delegate_data{3, "backend_delegate_data"},
    segments{4, "segments"}, constant_segment{5, "constant_segment"},
    mutable_data_segments{6, "mutable_data_segments"}, named_data{7, "named_data"};
}
namespace segment {
inline constexpr Field offset{0, "offset"}, size{1, "size"};
}
namespace subsegment {
inline constexpr Field segment_index{0, "segment_index"}, offsets{1, "offsets"};
}
namespace named_data {
inline constexpr Field key{0, "key"}, segment_index{1, "segment_index"};
}
namespace buffer {  // Buffer and BackendDelegateInlineData
inline constexpr Field bytes{0, "data"};
}
namespace plan {
inline constexpr Field name{0, "name"}, container_meta_type{1, "container_meta_type"},
    values{2, "values"}, inputs{3, "inputs"}, outputs{4, "outputs"}, chains{5, "chains"},
    operators{6, "operators"}, delegates{7, "delegates"},
    non_const_buffer_sizes{8, "non_const_buffer_sizes"},
    non_const_buffer_device{9, "non_const_buffer_device"};
}
namespace container {
inline constexpr Field inputs{0, "encoded_inp_str"}, outputs{1, "encoded_out_str"};
}
namespace buffer_device {
inline constexpr Field index{0, "buffer_idx"}, type{1, "device_type"}, device{2, "device_index"};
}
namespace evalue {
inline constexpr Field type{0, "val_type"}, val{1, "val"};
}
namespace scalar {  // Int, Bool, Double, String
inline constexpr Field value{0, "value"};
}
namespace list {
inline constexpr Field items{0, "items"};
}
namespace tensor {
inline constexpr Field scalar_type{0, "scalar_type"}, storage_offset{1, "storage_offset"},
    sizes{2, "sizes"}, dim_order{3, "dim_order"}, data_buffer_idx{5, "data_buffer_idx"},
    allocation_info{6, "allocation_info"}, shape_dynamism{8, "shape_dynamism"},
    extra{9, "extra_tensor_info"};
}
namespace allocation {
inline constexpr Field memory_id{0, "memory_id"}, offset_low{1, "memory_offset_low"},
    offset_high{2, "memory_offset_high"};
}
namespace extra {
inline constexpr Field mutable_segment{0, "mutable_data_segments_idx"},
    name{1, "fully_qualified_name"}, location{2, "location"}, device_type{3, "device_type"},
    device_index{4, "device_index"};
}
namespace oper {
inline constexpr Field name{0, "name"}, overload{1, "overload"};
}
namespace delegate {
inline constexpr Field id{0, "id"}, processed{1, "processed"}, compile_specs{2, "compile_specs"};
}
namespace processed {
inline constexpr Field location{0, "location"}, index{1, "index"};
}
namespace compile_spec {
inline constexpr Field key{0, "key"}, value{1, "value"};
}
namespace chain {
inline constexpr Field instructions{2, "instructions"};
}
namespace instruction {
inline constexpr Field type{0, "instr_args_type"}, args{1, "instr_args"};
}
namespace call {  // KernelCall, DelegateCall: op_index or delegate_index, args
inline constexpr Field index{0, "index"}, args{1, "args"};
}
namespace move {
inline constexpr Field from{0, "move_from"}, to{1, "move_to"};
}
namespace jump {
inline constexpr Field cond{0, "cond_value_index"}, target{1, "destination_instruction"};
}
namespace release {  // FreeCall
inline constexpr Field value{0, "value_index"};
}

}  // namespace pteron::schema

# The ExecuTorch C++ SDK as an imported target, under names of pteron's own.
#
# Gives the target `sdk` (headers, definitions, runtime, ETDump, thread pool) and
# PTERON_BUNDLED_LIBRARIES, the renamed libraries that go into the wheel. fetch_sdk.py finds or
# fetches the SDK; src/pteron/_elf.py says why the libraries are renamed.

set(PTERON_EXECUTORCH_SDK "" CACHE PATH
    "Folder of an unpacked executorch package to build against; empty: find or fetch it")

if(PTERON_EXECUTORCH_SDK)
  set(sdk_folder "${PTERON_EXECUTORCH_SDK}")
  set(sdk_origin "PTERON_EXECUTORCH_SDK")
else()
  execute_process(
    COMMAND "${Python_EXECUTABLE}" "${CMAKE_CURRENT_LIST_DIR}/fetch_sdk.py"
            "${CMAKE_CURRENT_BINARY_DIR}/sdk"
    OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  string(REPLACE "\n" ";" found "${found}")
  list(GET found 0 sdk_folder)
  list(GET found 1 sdk_origin)
endif()
message(STATUS "ExecuTorch SDK: ${sdk_origin} (${sdk_folder})")

# Everything that a program of the stock exporter may need; no vendor backends.
set(bundle "${CMAKE_CURRENT_BINARY_DIR}/bundle")
foreach(part "" _threadpool _kernels_optimized _kernels_quantized _backend_xnnpack _etdump)
  list(APPEND sdk_libraries "libexecutorch${part}.so")
  list(APPEND PTERON_BUNDLED_LIBRARIES "${bundle}/libpteron_run${part}.so")
endforeach()
execute_process(
  COMMAND "${Python_EXECUTABLE}" "${CMAKE_CURRENT_LIST_DIR}/../src/pteron/_elf.py"
          "${sdk_folder}/lib" "${bundle}" ${sdk_libraries}
  COMMAND_ERROR_IS_FATAL ANY)

file(GLOB PTERON_BUNDLED_LICENSE "${sdk_folder}/../executorch-*.dist-info/licenses/LICENSE")

# The definitions are those of the SDK's own CMake package: without ET_EVENT_TRACER_ENABLED some of
# its inline classes would have another layout than in the libraries.
add_library(sdk INTERFACE)
target_include_directories(
  sdk SYSTEM INTERFACE "${sdk_folder}/include"
                       "${sdk_folder}/include/executorch/runtime/core/portable_type/c10")
target_compile_definitions(sdk INTERFACE C10_USING_CUSTOM_GENERATED_MACROS
                                         ET_EVENT_TRACER_ENABLED ET_USE_THREADPOOL)
# Kernels and backends register themselves when they are loaded; nothing refers to their symbols.
target_link_libraries(sdk INTERFACE "-Wl,--no-as-needed" ${PTERON_BUNDLED_LIBRARIES}
                                    "-Wl,--as-needed")

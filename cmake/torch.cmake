# Imported targets for the torch wheel. find_package(Torch) of a CUDA wheel needs a CUDA toolkit and a newer CMake even
# for CPU programs; these targets need neither.
include_guard(GLOBAL)
set(TORCH_DIR "" CACHE PATH "the torch package directory (holds include/ and lib/)")
set(TORCH_PYTHON "${CMAKE_SOURCE_DIR}/.venv/bin/python" CACHE STRING "interpreter asked for torch when TORCH_DIR is empty")
if(NOT TORCH_DIR)
  # find_spec does not import torch
  execute_process(
    COMMAND "${TORCH_PYTHON}" -c
            "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
    OUTPUT_VARIABLE _dir OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE _rc)
  if(NOT _rc EQUAL 0)
    message(FATAL_ERROR "[cmake] no torch found by ${TORCH_PYTHON}. Run ./dev setup, or set TORCH_DIR or TORCH_PYTHON, "
                        "or build without it: cmake --preset core")
  endif()
  set(TORCH_DIR "${_dir}" CACHE PATH "" FORCE)
endif()
find_package(CUDAToolkit QUIET)
# DT_RPATH (not RUNPATH), so that it also serves what libtorch_cpu itself needs.
file(GLOB _rpath LIST_DIRECTORIES true "${TORCH_DIR}/../nvidia/*/lib")
list(PREPEND _rpath "${TORCH_DIR}/lib")
if(CUDAToolkit_FOUND)
  list(APPEND _rpath "${CUDAToolkit_LIBRARY_DIR}")
endif()
set(_link "LINKER:--disable-new-dtags" "LINKER:--allow-shlib-undefined")
foreach(_d IN LISTS _rpath)
  get_filename_component(_d "${_d}" ABSOLUTE)
  # Programs for another machine (portable.cmake) carry no path of this one.
  list(APPEND _link "$<$<NOT:$<BOOL:$<TARGET_PROPERTY:HM_PORTABLE>>>:LINKER:-rpath,${_d}>")
endforeach()
function(_torch_import name file)
  add_library(${name} SHARED IMPORTED GLOBAL)
  set_target_properties(${name} PROPERTIES IMPORTED_LOCATION "${TORCH_DIR}/lib/${file}")
endfunction()
_torch_import(torch::c10 libc10.so)
_torch_import(torch::torch_cpu libtorch_cpu.so)
add_library(torch::cpu INTERFACE IMPORTED GLOBAL)
target_link_libraries(torch::cpu INTERFACE torch::torch_cpu torch::c10 Threads::Threads)
target_compile_features(torch::cpu INTERFACE cxx_std_20)
# The wheel's include folder holds a copy of fmt, whose library is inside libtorch and not exported. The system's fmt comes
# first: as headers alone, the copy costs a quarter of the time of a batch (exec 0, 2026-11-28: 24.4 s of CPU, 18.5 s now).
get_target_property(_fmt fmt::fmt INTERFACE_INCLUDE_DIRECTORIES)
list(GET _fmt 0 _fmt)
file(MAKE_DIRECTORY "${CMAKE_BINARY_DIR}/fmt")
file(CREATE_LINK "${_fmt}/fmt" "${CMAKE_BINARY_DIR}/fmt/fmt" SYMBOLIC)
target_include_directories(torch::cpu SYSTEM INTERFACE "${CMAKE_BINARY_DIR}/fmt" "${TORCH_DIR}/include"
                           "${TORCH_DIR}/include/torch/csrc/api/include")
target_link_options(torch::cpu INTERFACE ${_link})
# at::parallel_for of the headers runs in one thread unless the file that calls it is compiled for OpenMP. The runtime is
# the wheel's own: a second one would start a second pool of threads. Not under TSan, which cannot see its barriers, and
# not with clang, whose calls of OpenMP are for a runtime of its own.
file(GLOB _openmp "${TORCH_DIR}/lib/libgomp*.so*" "${TORCH_DIR}/../torch.libs/libgomp*.so*")
if(_openmp AND NOT HETERMOE_SANITIZE STREQUAL "thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(GET _openmp 0 _openmp)
  target_compile_options(torch::cpu INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fopenmp>)
  target_link_libraries(torch::cpu INTERFACE "${_openmp}")
endif()

# `#pragma GCC ivdep` of the CPU kernels is gcc's own.
target_compile_options(torch::cpu INTERFACE $<$<CXX_COMPILER_ID:Clang>:-Wno-unknown-pragmas>)

# One precompiled header for all torch folders: it costs seconds per file otherwise. Autograd's custom functions, which
# few files use, are not part of it: gcc instantiates what a precompiled header has pending anew in each file.
function(hm_use_torch_pch target)
  hm_use_pch(${target} hm_torch_pch <ATen/ATen.h> ${HM_CORE_PCH})
endfunction()

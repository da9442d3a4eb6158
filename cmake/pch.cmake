# Precompiled headers: one for the folders without torch, one for those with it (torch.cmake).
include_guard(GLOBAL)
set(HM_CORE_PCH <fmt/format.h> <fmt/ranges.h> <nlohmann/json.hpp> <algorithm> <filesystem> <fstream> <functional> <iostream>
    <map> <memory> <optional> <set> <span> <string> <vector>)

# `target` is compiled with the precompiled headers of the library `pch`, which is made at its first use.
function(hm_use_pch target pch)
  if(NOT TARGET ${pch})
    # Written only where it is not there: its time decides whether all folders compile anew.
    if(NOT EXISTS "${CMAKE_BINARY_DIR}/${pch}.cpp")
      file(WRITE "${CMAKE_BINARY_DIR}/${pch}.cpp" "")
    endif()
    add_library(${pch} OBJECT "${CMAKE_BINARY_DIR}/${pch}.cpp")
    target_link_libraries(${pch} PUBLIC fmt::fmt nlohmann_json::nlohmann_json Threads::Threads)
    if(pch STREQUAL "hm_torch_pch")
      target_link_libraries(${pch} PUBLIC torch::cpu)
    endif()
    target_precompile_headers(${pch} PUBLIC ${ARGN})
  endif()
  target_precompile_headers(${target} REUSE_FROM ${pch})
endfunction()

function(hm_use_core_pch target)
  hm_use_pch(${target} hm_core_pch ${HM_CORE_PCH})
endfunction()

# Sources of one target are compiled several at a time. What they share (headers, templates that they instantiate) is most of
# the compile time of a small source, so this takes a third of it. Names in unnamed namespaces must be unique in a folder.
function(hm_use_unity target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE BATCH UNITY_BUILD_BATCH_SIZE 16)
endfunction()

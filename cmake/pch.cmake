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

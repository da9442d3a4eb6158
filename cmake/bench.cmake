# One program per file bench/<what>_bench.cpp. bench/nn_<what>_bench.cpp measures numerics, bench/engine_bench.cpp
# whole steps, and both need torch; bench/{paper,af_pipe,teams}_bench.cpp compare predictions with published
# figures; bench/property_bench.cpp looks for plans of random clusters that are not what they should be. These print
# tables of their own, the others use Google Benchmark.
file(GLOB _sources CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/bench/*_bench.cpp")
find_package(benchmark QUIET)
foreach(_source IN LISTS _sources)
  get_filename_component(_name "${_source}" NAME_WE)
  if(_name MATCHES "^(nn|engine)_")
    if(HETERMOE_TORCH)
      add_executable(${_name} "${_source}")
      target_link_libraries(${_name} PRIVATE hm_train)
      hm_use_torch_pch(${_name})
    endif()
  elseif(_name MATCHES "^(paper|balance|property|af_pipe|teams|alternatives)_bench$")
    add_executable(${_name} "${_source}")
    target_link_libraries(${_name} PRIVATE hm_report)
  elseif(benchmark_FOUND)
    add_executable(${_name} "${_source}")
    target_link_libraries(${_name} PRIVATE hm_report benchmark::benchmark)
  endif()
endforeach()

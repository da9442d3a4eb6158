# Programs for another machine, where torch lies elsewhere and MPI is not: the same objects, linked once more. They look for
# libraries beside themselves (../lib) and, for those of torch, where the loader is told (LD_LIBRARY_PATH). Built by
# `./dev bundle FOLDER` alone.
function(hm_portable name original)
  # The twin is linked before the libraries, so that nothing takes the one that needs MPI out of them.
  add_executable(${name} EXCLUDE_FROM_ALL $<TARGET_OBJECTS:${original}> hetermoe/comm/no_mpi.cpp)
  add_dependencies(${name} ${original})
  target_include_directories(${name} PRIVATE "${CMAKE_SOURCE_DIR}")
  target_link_libraries(${name} PRIVATE ${ARGN})
  target_link_options(${name} PRIVATE "LINKER:--as-needed" "LINKER:--strip-all")
  set_target_properties(${name} PROPERTIES HM_PORTABLE ON BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "$ORIGIN/../lib")
endfunction()

# The twin stands in for this file, so it is an object of its own.
set_source_files_properties("${CMAKE_SOURCE_DIR}/hetermoe/comm/mpi.cpp" PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)

hm_portable(hetermoe_portable hetermoe hm_cli)

# One test program per folder of tests/; files are named <what>_test.cpp. Labels: fast (no torch), torch, cuda (needs
# a GPU, else skipped), slow (not in ./dev test), rare (in ./dev check-all alone).
include(GoogleTest)
find_package(GTest REQUIRED)
set(HM_CORE_TESTS base model cluster plan ops schedule cost routing timeline sim balance planner report data property golden)
set(HM_TORCH_TESTS device kernels nn comm exec gpus weights train profile equivalence fault cli)
# Limits are there for what hangs: several times what the longest test takes on a slow machine that does other work, too.
set(HM_FAST_TIMEOUT 600)
if(HETERMOE_SANITIZE)
  set(HM_FAST_TIMEOUT 3000)
endif()

function(hm_tests label)
  foreach(_folder IN LISTS ARGN)
    file(GLOB _sources CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/tests/${_folder}/*_test.cpp"
         "${CMAKE_SOURCE_DIR}/tests/${_folder}/*/*_test.cpp")
    if(NOT _sources)
      continue()
    endif()
    set(_test test_${_folder})
    add_executable(${_test} ${_sources})
    target_include_directories(${_test} PRIVATE "${CMAKE_SOURCE_DIR}")
    # The libraries compute; what tests themselves compute is little, and optimising it is half of their compile time.
    target_compile_options(${_test} PRIVATE -O1 "$<$<CXX_COMPILER_ID:GNU>:-Wno-array-bounds;-Wno-stringop-overflow>")  # gcc 12 sees bounds that are not there
    target_compile_definitions(${_test} PRIVATE HM_SOURCE_DIR="${CMAKE_SOURCE_DIR}" HM_BINARY_DIR="${CMAKE_BINARY_DIR}")
    if(label STREQUAL "fast")
      target_link_libraries(${_test} PRIVATE hm_data ZLIB::ZLIB GTest::gtest_main)
      hm_use_core_pch(${_test})
      hm_use_unity(${_test})
      gtest_discover_tests(${_test} TEST_PREFIX "${_folder}." NO_PRETTY_VALUES DISCOVERY_TIMEOUT 120
                           PROPERTIES LABELS "${label}" TIMEOUT ${HM_FAST_TIMEOUT})
    else()
      # The kernels are tested by way of nn, without waiting for all that comes after it; weights by itself.
      set(_library hm_cli)
      if(_folder STREQUAL "gpus")
        set(_library hm_train)
      elseif(_folder STREQUAL "kernels")
        set(_library hm_nn)
      elseif(_folder STREQUAL "weights")
        set(_library hm_weights)
      endif()
      target_link_libraries(${_test} PRIVATE ${_library} GTest::gtest_main)
      hm_use_torch_pch(${_test})
      hm_use_unity(${_test})
      # Loading libtorch takes a second, so these run whole and not case by case.
      add_test(NAME ${_folder}.all COMMAND ${_test})
      set_tests_properties(${_folder}.all PROPERTIES LABELS "${label}" TIMEOUT 5400)
    endif()
  endforeach()
endfunction()

# It gives CUDA's words other meanings.
set_source_files_properties("${CMAKE_SOURCE_DIR}/tests/kernels/gpu_half_test.cpp" PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
hm_tests(fast ${HM_CORE_TESTS})
if(HETERMOE_TORCH)
  hm_tests(torch ${HM_TORCH_TESTS})
  add_library(stand_in_nvrtc MODULE tests/kernels/stand_in_nvrtc.cpp)
  if(TARGET test_kernels)
    add_dependencies(test_kernels stand_in_nvrtc)  # it opens the library
  endif()
  hm_tests(cuda cuda)
  set_tests_properties(cuda.all PROPERTIES SKIP_REGULAR_EXPRESSION "no GPU here")
  if(TARGET test_cli)
    add_dependencies(test_cli hetermoe)  # it runs the program
  endif()
  target_sources(test_gpus PRIVATE tests/gpus/fake_gpus.cpp tests/gpus/stream_clocks.cpp)
  add_executable(store_rank tests/comm/store_rank.cpp)
  target_link_libraries(store_rank PRIVATE hm_comm)
  hm_use_torch_pch(store_rank)
  add_dependencies(test_comm store_rank)  # it starts ranks
endif()
find_package(Python3 COMPONENTS Interpreter)
if(HETERMOE_WITH_MPI AND MPIEXEC_EXECUTABLE)
  add_executable(test_mpi tests/mpi/main.cpp tests/mpi/mpi_test.cpp tests/mpi/bytes_test.cpp tests/mpi/conversations_test.cpp tests/mpi/gpus_test.cpp tests/gpus/fake_gpus.cpp tests/gpus/stream_clocks.cpp tests/mpi/growing_test.cpp tests/mpi/guests_test.cpp tests/mpi/presence_test.cpp tests/mpi/routes_test.cpp tests/mpi/sharded_test.cpp)
  target_include_directories(test_mpi PRIVATE "${CMAKE_SOURCE_DIR}")
  target_link_libraries(test_mpi PRIVATE hm_cli GTest::gtest)
  target_compile_options(test_mpi PRIVATE -O1)
  hm_use_torch_pch(test_mpi)
  hm_use_unity(test_mpi)
  # More processes than cores, also as root (containers); OpenMPI refuses both unless told.
  set(_mpi_environment OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
                       OMPI_MCA_btl_vader_single_copy_mechanism=none)
  foreach(_ranks 2 3 4)
    add_test(NAME mpi.${_ranks} COMMAND ${MPIEXEC_EXECUTABLE} -np ${_ranks} $<TARGET_FILE:test_mpi>)
    set_tests_properties(mpi.${_ranks} PROPERTIES LABELS "torch;mpi" TIMEOUT 1800 ENVIRONMENT "${_mpi_environment}"
                                                  RUN_SERIAL ON)
  endforeach()
  set_property(TEST mpi.3 APPEND PROPERTY LABELS rare)
  set(_kill Python3::Interpreter "${CMAKE_SOURCE_DIR}/tests/mpi/kill.py" $<TARGET_FILE:hetermoe>)
  add_test(NAME mpi.kill COMMAND ${_kill} --kills 4)
  add_test(NAME mpi.kill_more COMMAND ${_kill} --kills 10 --seed 2)
  add_test(NAME mpi.kill_balancing COMMAND ${_kill} --balancer relibra --kills 6)
  add_test(NAME mpi.replan
           COMMAND Python3::Interpreter "${CMAKE_SOURCE_DIR}/tests/mpi/replan.py" $<TARGET_FILE:hetermoe>)
  set_tests_properties(mpi.kill mpi.replan PROPERTIES LABELS "torch;mpi;slow")
  set_tests_properties(mpi.kill_more mpi.kill_balancing PROPERTIES LABELS "torch;mpi;rare")
  set_tests_properties(mpi.kill mpi.kill_more mpi.kill_balancing mpi.replan PROPERTIES
                       TIMEOUT 2400 ENVIRONMENT "${_mpi_environment}" RUN_SERIAL ON)
endif()
if(Python3_FOUND)
  file(GLOB _scripts CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/tests/*_test.py")
  foreach(_script IN LISTS _scripts)
    get_filename_component(_name "${_script}" NAME_WE)
    add_test(NAME ${_name} COMMAND Python3::Interpreter "${_script}" "${CMAKE_SOURCE_DIR}" "${CMAKE_BINARY_DIR}")
    set_tests_properties(${_name} PROPERTIES LABELS fast TIMEOUT 120 SKIP_RETURN_CODE 77)
  endforeach()
  # Its pages are written by test_report, which may run at the same time in a check.
  set_tests_properties(page_browser_test PROPERTIES LABELS rare RUN_SERIAL ON TIMEOUT 600)
endif()
if(Python3_FOUND AND TARGET hetermoe)
  add_test(NAME pairs COMMAND Python3::Interpreter "${CMAKE_SOURCE_DIR}/tests/train/pairs.py" $<TARGET_FILE:hetermoe>)
  set_tests_properties(pairs PROPERTIES LABELS "torch;rare" TIMEOUT 5400 RUN_SERIAL ON)
  add_test(NAME planted_kinds COMMAND Python3::Interpreter "${CMAKE_SOURCE_DIR}/tests/planted_kinds.py" "${CMAKE_SOURCE_DIR}"
                                      $<TARGET_FILE:hetermoe>)
  set_tests_properties(planted_kinds PROPERTIES LABELS "torch;rare" TIMEOUT 5400 RUN_SERIAL ON)
endif()
# Several ranks on one GPU; the same script over mpirun on CPUs, so that it works when a GPU is there.
if(Python3_FOUND AND TARGET hetermoe)
  set(_gpu_ranks Python3::Interpreter "${CMAKE_SOURCE_DIR}/tests/cuda/ranks.py" $<TARGET_FILE:hetermoe>)
  add_test(NAME cuda.ranks COMMAND ${_gpu_ranks})
  set_tests_properties(cuda.ranks PROPERTIES LABELS "cuda;slow" TIMEOUT 3600 RUN_SERIAL ON SKIP_REGULAR_EXPRESSION "no GPU here")
  add_test(NAME gpu_script COMMAND Python3::Interpreter "${CMAKE_SOURCE_DIR}/tests/cuda/ranks_check.py"
                                   "${CMAKE_SOURCE_DIR}" "${CMAKE_BINARY_DIR}")
  set_tests_properties(gpu_script PROPERTIES LABELS "torch;slow" TIMEOUT 900 RUN_SERIAL ON)
  if(HETERMOE_WITH_MPI AND MPIEXEC_EXECUTABLE)
    add_test(NAME mpi.gpu_script COMMAND ${_gpu_ranks} --device cpu)
    set_tests_properties(mpi.gpu_script PROPERTIES LABELS "torch;mpi;slow" TIMEOUT 1800 ENVIRONMENT "${_mpi_environment}"
                                                   RUN_SERIAL ON)
  endif()
endif()
if(Python3_FOUND AND TARGET hetermoe_portable)
  hm_portable(test_cuda_portable test_cuda hm_cli GTest::gtest_main)
  add_test(NAME bench_gpu_check COMMAND Python3::Interpreter "${CMAKE_SOURCE_DIR}/tests/bench_gpu_check.py"
                                        "${CMAKE_SOURCE_DIR}" "${CMAKE_BINARY_DIR}" "${TORCH_DIR}")
  set_tests_properties(bench_gpu_check PROPERTIES LABELS torch TIMEOUT 600)
  add_test(NAME wheel_check COMMAND Python3::Interpreter "${CMAKE_SOURCE_DIR}/tests/wheel_check.py"
                                    "${CMAKE_SOURCE_DIR}" "${CMAKE_BINARY_DIR}" "${TORCH_DIR}")
  set_tests_properties(wheel_check PROPERTIES LABELS "torch;rare" TIMEOUT 600)
endif()

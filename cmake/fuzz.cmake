# Readers of outside text under fuzzing. With clang the main
# program is libFuzzer's, which sees what an input covers; with gcc it is fuzz/driver.cpp, which mutates blindly.
# Needs HETERMOE_SANITIZE to be of use. Built only when asked for: ./dev fuzz.
function(hm_fuzz_program name)
  add_executable(${name} EXCLUDE_FROM_ALL fuzz/entry.cpp ${ARGN})
  target_include_directories(${name} PRIVATE "${CMAKE_SOURCE_DIR}")
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  else()
    target_sources(${name} PRIVATE fuzz/driver.cpp)
  endif()
endfunction()

set(_core model cluster hostfile plan schedule_text timeline profile routing_trace token_files json_lines chat_lines chat_template
          hf_tokenizer scratch)
list(TRANSFORM _core PREPEND fuzz/)
list(TRANSFORM _core APPEND .cpp)
hm_fuzz_program(fuzz_core fuzz/core_targets.cpp ${_core})
target_link_libraries(fuzz_core PRIVATE hm_data)

# Readers that need torch. Of train only the files that read: the others are half of all that there is to compile.
if(HETERMOE_TORCH)
  set(_torch job safetensors hf_folder checkpoint wire received scratch)
  list(TRANSFORM _torch PREPEND fuzz/)
  list(TRANSFORM _torch APPEND .cpp)
  set(_train job/job job/divided_plan job/freeze job/lora job/router_bias job/router_training checkpoint/checkpoint
             checkpoint/checkpoint_archive checkpoint/shared_folder)
  list(TRANSFORM _train PREPEND hetermoe/train/)
  list(TRANSFORM _train APPEND .cpp)
  hm_fuzz_program(fuzz_torch fuzz/torch_targets.cpp ${_torch} ${_train})
  target_link_libraries(fuzz_torch PRIVATE hm_weights)
  hm_use_torch_pch(fuzz_torch)
endif()

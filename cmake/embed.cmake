# Text files as constants of a C++ file, made anew whenever one of them changes. Two uses: included, it defines
# hm_embed_page and hm_embed_kernels; run by `cmake -DOUTPUT=... -DSTYLE=... -DSCRIPT="a.js;b.js" -DPLOTS=d.js -DLIVE=c.js -P embed.cmake` or
# `cmake -DOUTPUT=... -DROOT=... -DKERNELS="hetermoe/kernels/a.cu;..." -P embed.cmake`, it writes the file.
if(CMAKE_SCRIPT_MODE_FILE)
  function(append_constant name files)
    set(_text "")
    foreach(_file IN LISTS files)
      file(READ "${_file}" _part)
      string(APPEND _text "${_part}")
    endforeach()
    if(_text MATCHES "[)]embedded\"")
      message(FATAL_ERROR "[embed] ${files}: holds the text that ends the C++ literal")
    endif()
    file(APPEND "${OUTPUT}" "const char* const ${name} = R\"embedded(${_text})embedded\";\n")
  endfunction()

  if(KERNELS)
    file(WRITE "${OUTPUT}" "#include \"hetermoe/kernels/source_text.h\"\n\nnamespace hetermoe::kernels {\nnamespace {\n\n")
    set(_rows "")
    set(_number 0)
    foreach(_file IN LISTS KERNELS)
      append_constant(kText${_number} "${ROOT}/${_file}")
      string(APPEND _rows "    {\"${_file}\", kText${_number}},\n")
      math(EXPR _number "${_number} + 1")
    endforeach()
    file(APPEND "${OUTPUT}" "\nconst SourceText kSources[] = {\n${_rows}};\n\n}  // namespace\n\n"
         "std::span<const SourceText> source_texts() { return kSources; }\n\n}  // namespace hetermoe::kernels\n")
    return()
  endif()

  file(WRITE "${OUTPUT}" "#include \"hetermoe/report/page.h\"\n\nnamespace hetermoe {\n\n")
  append_constant(kPageStyle "${STYLE}")
  append_constant(kPageScript "${SCRIPT}")
  append_constant(kPlotScript "${PLOTS}")
  append_constant(kLiveScript "${LIVE}")
  file(APPEND "${OUTPUT}" "\n}  // namespace hetermoe\n")
  return()
endif()

# The made file is compiled by a target of its own, which waits for no other. A custom command of a folder's library waits for
# all libraries before it, and so would every later folder: 25 s with one idle core in a build of 480 s (2026-11-29).
function(hm_compile_embedded library output)
  get_filename_component(_name "${output}" NAME_WE)
  add_library(${_name} OBJECT "${output}")
  target_include_directories(${_name} PRIVATE "${CMAKE_SOURCE_DIR}")
  target_sources(${library} PRIVATE $<TARGET_OBJECTS:${_name}>)
endfunction()

function(hm_embed_page library)
  set(_folder "${CMAKE_SOURCE_DIR}/hetermoe/report")
  set(_output "${CMAKE_BINARY_DIR}/embedded_page.cpp")
  set(_style "${_folder}/page.css")
  set(_script "${_folder}/page_data.js" "${_folder}/page_picture.js" "${_folder}/page_controls.js")
  set(_plots "${_folder}/page_plots.js")
  set(_live "${_folder}/page_live.js")
  set(_this "${CMAKE_SOURCE_DIR}/cmake/embed.cmake")
  add_custom_command(
    OUTPUT "${_output}"
    COMMAND "${CMAKE_COMMAND}" "-DOUTPUT=${_output}" "-DSTYLE=${_style}" "-DSCRIPT=${_script}" "-DPLOTS=${_plots}" "-DLIVE=${_live}" -P "${_this}"
    DEPENDS ${_style} ${_script} ${_plots} ${_live} "${_this}"
    COMMENT "Embedding style and script of the report"
    VERBATIM)
  hm_compile_embedded(${library} "${_output}")
endfunction()

# The kernels and the headers that they include, as NVRTC needs them.
function(hm_embed_kernels library)
  file(GLOB _kernels CONFIGURE_DEPENDS RELATIVE "${CMAKE_SOURCE_DIR}" "${CMAKE_SOURCE_DIR}/hetermoe/kernels/*.cu")
  # A header belongs to them when a kernel may include it: those named after a kernel, and the language.
  set(_files ${_kernels})
  foreach(_kernel IN LISTS _kernels)
    string(REGEX REPLACE "\\.cu$" ".h" _header "${_kernel}")
    list(APPEND _files "${_header}")
  endforeach()
  list(APPEND _files hetermoe/base/splitmix64.h hetermoe/kernels/language.h hetermoe/kernels/numbers.h hetermoe/kernels/teams.h)
  list(TRANSFORM _files PREPEND "${CMAKE_SOURCE_DIR}/" OUTPUT_VARIABLE _paths)
  set(_output "${CMAKE_BINARY_DIR}/embedded_kernels.cpp")
  set(_this "${CMAKE_SOURCE_DIR}/cmake/embed.cmake")
  add_custom_command(
    OUTPUT "${_output}"
    COMMAND "${CMAKE_COMMAND}" "-DOUTPUT=${_output}" "-DROOT=${CMAKE_SOURCE_DIR}" "-DKERNELS=${_files}" -P "${_this}"
    DEPENDS ${_paths} "${_this}"
    COMMENT "Embedding the kernels"
    VERBATIM)
  hm_compile_embedded(${library} "${_output}")
endfunction()

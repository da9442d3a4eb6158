# Text files as constants of a C++ file, made anew whenever one of them changes. Two uses: included, it defines
# hm_embed_page; run by `cmake -DOUTPUT=... -DSTYLE=... -DSCRIPT="a.js;b.js" -P embed.cmake`, it writes the file.
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

  file(WRITE "${OUTPUT}" "#include \"hetermoe/report/page.h\"\n\nnamespace hetermoe {\n\n")
  append_constant(kPageStyle "${STYLE}")
  append_constant(kPageScript "${SCRIPT}")
  file(APPEND "${OUTPUT}" "\n}  // namespace hetermoe\n")
  return()
endif()

function(hm_embed_page library)
  set(_folder "${CMAKE_SOURCE_DIR}/hetermoe/report")
  set(_output "${CMAKE_BINARY_DIR}/embedded_page.cpp")
  set(_style "${_folder}/page.css")
  set(_script "${_folder}/page_data.js" "${_folder}/page_picture.js" "${_folder}/page_controls.js")
  set(_this "${CMAKE_SOURCE_DIR}/cmake/embed.cmake")
  add_custom_command(
    OUTPUT "${_output}"
    COMMAND "${CMAKE_COMMAND}" "-DOUTPUT=${_output}" "-DSTYLE=${_style}" "-DSCRIPT=${_script}" -P "${_this}"
    DEPENDS ${_style} ${_script} "${_this}"
    COMMENT "Embedding style and script of the report"
    VERBATIM)
  target_sources(${library} PRIVATE "${_output}")
endfunction()

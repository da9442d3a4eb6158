#include "hetermoe/base/version.h"

namespace hetermoe {

namespace {

std::string& program_word() {
  static std::string word = "hetermoe";
  return word;
}

}  // namespace

const char* version() { return HM_VERSION; }

const std::string& program() { return program_word(); }

void set_program(const std::string& word) {
  if (word.find('/') != std::string::npos) program_word() = word;
}

}  // namespace hetermoe

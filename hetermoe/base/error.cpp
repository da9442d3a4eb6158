#include "hetermoe/base/error.h"

#include <string_view>

namespace hetermoe {

std::string detail::error_text(const std::string& where, const std::string& message) {
  return fmt::format("[{}] {}", printable(where), printable_lines(message));
}

void check_failed(const char* file, int line, const char* condition, const std::string& message) {
  std::string_view path(file);
  const std::size_t start = path.rfind("hetermoe/");
  if (start != std::string_view::npos) path.remove_prefix(start);
  throw InternalError(fmt::format("[{}:{}] {} (internal check failed: {}). Please report this.", path, line,
                                  message, condition));
}

}  // namespace hetermoe

#pragma once
#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <type_traits>

#include "hetermoe/base/printable.h"

// There are three kinds of failure. If the user or the world is wrong, the code throws an Error. If the
// outcome is an expected one, such as a plan that does not fit, the code returns a value. If our own code is
// wrong, HM_CHECK throws InternalError; no input may reach that.
namespace hetermoe {

/// Base of all errors a user can see. Text: "[where] what: got X, expected Y. hint".
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class ConfigError : public Error {
  using Error::Error;
};  ///< a configuration file or flag is wrong
class InputError : public Error {
  using Error::Error;
};  ///< data handed in is wrong
class IoError : public Error {
  using Error::Error;
};  ///< a file cannot be read or written
class WriteError : public IoError {
  using IoError::IoError;
};  ///< writing was begun and could not be ended, as on a full disk: another try may succeed
class TransportError : public Error {
  using Error::Error;
};  ///< communication failed
class DeviceError : public Error {
  using Error::Error;
};  ///< a device failed
class InternalError : public Error {
  using Error::Error;
};  ///< a bug in hetermoe

namespace detail {
/// Texts that are made elsewhere, such as names from files, are shown and not obeyed. Literals, texts of
/// other errors (what()) and joined lists keep their line breaks.
template <class T>
decltype(auto) shown(const T& value) {
  if constexpr (std::is_same_v<T, std::string>) {
    return printable(value);
  } else {
    return (value);
  }
}
/// Formatted by the caller: torch's headers bring an fmt of their own, whose types are others.
std::string error_text(const std::string& where, const std::string& message);
}  // namespace detail

/// Throws E with the text "[where] " + formatted message.
template <class E, class... Args>
[[noreturn]] void fail(const std::string& where, fmt::format_string<Args...> format, Args&&... args) {
  [&](const auto&... shown) {
    throw E(detail::error_text(where, fmt::vformat(format, fmt::make_format_args(shown...))));
  }(detail::shown(args)...);
  __builtin_unreachable();
}

[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& message);

}  // namespace hetermoe

/// Checks what only an error of our own can break. HM_CHECK(condition, "format {}", args...)
#define HM_CHECK(condition, ...)                                                                            \
  do {                                                                                                      \
    if (!(condition)) ::hetermoe::check_failed(__FILE__, __LINE__, #condition, ::fmt::format(__VA_ARGS__)); \
  } while (false)

#pragma once
#include <string>
#include <string_view>

#include "hetermoe/base/json.h"

// Foreign text (titles, device names, file contents) inside HTML and SVG.
namespace hetermoe {

/// The text with U+FFFD for bytes that are no UTF-8: tokens may begin or end within a character, which
/// neither JSON nor a terminal takes.
std::string valid_utf8(std::string_view text);

/// Text for element content and quoted attributes of HTML and XML: & < > " ' become entities, bytes that are
/// no UTF-8 become U+FFFD, and control characters that XML forbids become blanks.
std::string escape_markup(std::string_view text);

/// JSON for a <script> element: no '<' is left, so neither "</script" nor "<!--" can end or change the
/// element. Any JSON parser reads it back unchanged. Bytes that are no UTF-8 become U+FFFD.
std::string script_json(const Json& value);

}  // namespace hetermoe

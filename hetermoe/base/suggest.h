#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace hetermoe {

/// The name of `known` nearest to `got` by edit distance, ignoring case and '-' against '_'; empty when none
/// is near.
std::string nearest_name(std::string_view got, const std::vector<std::string>& known);

/// " Known: a, b, c. Did you mean \"a\"?" (the question only when a near name exists).
std::string known_names_hint(std::string_view got, const std::vector<std::string>& known);
/// The same, but only names of `askable` may be asked for.
std::string known_names_hint(std::string_view got, const std::vector<std::string>& known,
                             const std::vector<std::string>& askable);

}  // namespace hetermoe

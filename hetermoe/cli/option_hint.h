#pragma once
#include <string>
#include <vector>

namespace hetermoe {

/// The name with '_' for '-'.
std::string with_underscores(std::string name);

/// The option that was probably meant, among `names` without their hyphens in front; "" = none is near. It
/// knows what other trainers call an option, and a key's last part alone ("steps").
std::string nearest_option(const std::string& got, const std::vector<std::string>& names);

/// A value after a true-or-false option belongs to it: "--x false" is "--x=false". Words that mean a truth
/// value elsewhere are joined as well, so that they are refused together with their option; so are numbers
/// after a key of a job that is true or false.
std::vector<std::string> join_truth_values(const std::vector<std::string>& words);

}  // namespace hetermoe

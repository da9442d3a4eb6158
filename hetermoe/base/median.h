#pragma once
#include <vector>

namespace hetermoe {

/// The middle value. An even number of values has two in the middle, of which this is the upper one. Without
/// values the result is 0.
double median(std::vector<double> values);

}  // namespace hetermoe

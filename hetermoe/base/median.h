#pragma once
#include <vector>

namespace hetermoe {

/// The middle value; of an even number of values the upper of the two in the middle. 0 when there are none.
double median(std::vector<double> values);

}  // namespace hetermoe

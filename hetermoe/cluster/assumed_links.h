#pragma once
#include <string>

namespace hetermoe {

/// The assumptions of load_cluster() on links that the file does not state, in one line. Empty = none that
/// matters: a single node has no network, single devices have no links inside their node.
std::string assumed_links(const std::string& name_or_path);

}  // namespace hetermoe

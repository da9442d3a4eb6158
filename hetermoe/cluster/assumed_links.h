#pragma once
#include <string>

namespace hetermoe {

/// What load_cluster() of the same name assumes of links because nobody says it, in one line; empty = nothing
/// that matters: a single node has no network, single devices have no links inside their node.
std::string assumed_links(const std::string& name_or_path);

}  // namespace hetermoe

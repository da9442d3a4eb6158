#pragma once
#include "hetermoe/planner/search/group_choice.h"

// Plans of several groups in a few numbers: blocks of equal groups, each block with a shape, sequences and
// microbatches of its own. Devices that no block takes stay idle.
namespace hetermoe {

/// Numbers of groups, of devices in a group, and of nodes. From 2 on each is at most 1.5 times the one
/// before.
inline constexpr i64 kRoundNumbers[] = {1,  2,  3,  4,  6,   8,   12,  16,  24,
                                        32, 48, 64, 96, 128, 192, 256, 384, 512};

/// Numbers of device classes, ascending.
using ClassSet = std::vector<std::size_t>;

/// So many groups of one shape.
struct Block {
  Shape shape;
  i64 groups = 1;

  auto operator<=>(const Block&) const = default;
};
using Blocks = std::vector<Block>;

/// The sketch of these blocks: sequences in proportion to the speed that estimates give the groups, a block's
/// groups equal where the numbers allow it, every group as GroupChoice has it. Empty when a group cannot hold
/// the model or gets no sequence.
std::optional<Sketch> make_sketch(const Rates& rates, GroupChoice& choice, const GroupOrder& order,
                                  const Blocks& blocks);

/// Runs of groups of one shape.
Blocks blocks_of(const Sketch& sketch);

/// Equal groups of all devices of these classes, as equal as the counts allow.
Blocks equal_blocks(const Rates& rates, const ClassSet& used, i64 groups);

/// Blocks that differ in one move: groups left out, devices of a class left out of every group or taken in,
/// groups split or joined.
std::vector<Blocks> neighbours(const Rates& rates, const Blocks& blocks);

/// Numbers of groups worth trying for devices of these classes, up to `most`: the small numbers, and those
/// that leave groups with a small number of devices of a class.
std::vector<i64> group_counts(const Rates& rates, const ClassSet& used, i64 most);

/// Every way to give some classes to blocks of their own or together, two blocks at least; of many classes
/// only a block for each.
std::vector<std::vector<ClassSet>> partitions(std::size_t num_classes);

}  // namespace hetermoe

#include "hetermoe/planner/search/blocks.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "hetermoe/base/index.h"
#include "hetermoe/base/integer_split.h"

namespace hetermoe {
namespace {

constexpr std::size_t kFewClasses = 4;  ///< up to so many classes every partition is tried

/// Devices of a class that no block has.
i64 free_of(const Rates& rates, const Blocks& blocks, std::size_t cls) {
  i64 left = rates.classes()[cls].size();
  for (const Block& block : blocks) left -= block.groups * block.shape[cls];
  return left;
}

/// Sequences of each group of a block.
struct Portion {
  i64 each = 0;      ///< of every group
  i64 one_more = 0;  ///< groups that have one more
};

/// In proportion to the rates; blocks take whole rounds of sequences, one for each group, as long as they
/// can.
std::vector<Portion> portions(i64 sequences, const Blocks& blocks, const std::vector<double>& rates) {
  std::vector<Portion> out;
  std::vector<double> wanted;
  const double sum = std::accumulate(rates.begin(), rates.end(), 0.0);
  i64 left = sequences;
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    wanted.push_back(real(sequences) * rates[b] / sum / real(blocks[b].groups));
    out.push_back({static_cast<i64>(wanted.back()), 0});
    left -= out.back().each * blocks[b].groups;
  }
  while (left > 0) {
    std::size_t next = blocks.size();
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      if (blocks[b].groups > left) continue;
      if (next == blocks.size() ||
          wanted[b] / real(out[b].each + 1) > wanted[next] / real(out[next].each + 1))
        next = b;
    }
    if (next == blocks.size()) break;
    ++out[next].each;
    left -= blocks[next].groups;
  }
  if (left > 0) {
    const auto widest = std::max_element(blocks.begin(), blocks.end(),
                                         [](const Block& a, const Block& b) { return a.groups < b.groups; });
    out[idx(widest - blocks.begin())].one_more = left;
  }
  return out;
}

/// Adds the groups of a block, the larger ones first, to a plan of `groups` groups. False when one cannot be.
bool add_groups(GroupChoice& choice, const GroupOrder& order, const Block& block, i64 groups,
                const Portion& portion, Shape& next, Sketch& sketch) {
  for (i64 g = 0; g < block.groups; ++g) {
    const i64 sequences = portion.each + (g < portion.one_more ? 1 : 0);
    const bool again = g > 0 && g != portion.one_more;
    if (!again) {
      const GroupChoice::Chosen* chosen =
          sequences > 0 ? choice.best(order, block.shape, groups, sequences) : nullptr;
      if (chosen == nullptr) return false;
      sketch.groups.push_back(chosen->group);
    } else {
      sketch.groups.push_back(SketchGroup(sketch.groups.back()));
    }
    sketch.groups.back().first = next;
    for (std::size_t c = 0; c < next.size(); ++c) next[c] += block.shape[c];
  }
  return true;
}

}  // namespace

std::optional<Sketch> make_sketch(const Rates& rates, GroupChoice& choice, const GroupOrder& order,
                                  const Blocks& blocks) {
  const i64 sequences = rates.request().sequences;
  i64 groups = 0;
  std::vector<double> speeds;
  for (const Block& block : blocks) groups += block.groups;
  for (const Block& block : blocks) speeds.push_back(real(block.groups) * ideal_rate(rates, block.shape));
  std::vector<Portion> parts = portions(sequences, blocks, speeds);
  if (blocks.size() > 1) {
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      const i64 each = std::max<i64>(1, parts[b].each);
      const GroupChoice::Chosen* chosen = choice.best(order, blocks[b].shape, groups, each);
      if (chosen == nullptr) return {};
      speeds[b] = real(each * blocks[b].groups) / chosen->time.step;
    }
    parts = portions(sequences, blocks, speeds);
  }
  Sketch sketch;
  sketch.window = order.window;
  sketch.recompute = order.recompute;
  sketch.shard_optimizer = order.shard_optimizer;
  Shape next(rates.num_classes(), 0);
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    if (!add_groups(choice, order, blocks[b], groups, parts[b], next, sketch)) return {};
  }
  return sketch;
}

Blocks blocks_of(const Sketch& sketch) {
  Blocks blocks;
  for (const SketchGroup& group : sketch.groups) {
    if (!blocks.empty() && blocks.back().shape == group.count)
      ++blocks.back().groups;
    else
      blocks.push_back({group.count, 1});
  }
  return blocks;
}

Blocks equal_blocks(const Rates& rates, const ClassSet& used, i64 groups) {
  std::vector<Shape> shapes(idx(groups), Shape(rates.num_classes(), 0));
  i64 turn = 0;  // leftovers of the next class go to the groups after those that got one
  for (const std::size_t c : used) {
    const i64 count = rates.classes()[c].size();
    for (i64 g = 0; g < groups; ++g) shapes[idx(g)][c] = count / groups;
    for (i64 i = 0; i < count % groups; ++i) ++shapes[idx(turn++ % groups)][c];
  }
  std::sort(shapes.begin(), shapes.end(), std::greater<>());
  Blocks blocks;
  if (sum_of(shapes.back()) == 0) return blocks;
  for (Shape& shape : shapes) {
    if (!blocks.empty() && blocks.back().shape == shape)
      ++blocks.back().groups;
    else
      blocks.push_back({std::move(shape), 1});
  }
  return blocks;
}

namespace {

/// Collects variants of some blocks that use no more devices than there are.
class Variants {
 public:
  Variants(const Rates& rates, const Blocks& blocks) : rates_(rates), blocks_(blocks) {}

  std::vector<Blocks> all() {
    for (std::size_t b = 0; b < blocks_.size(); ++b) {
      change_groups(b);
      change_shape(b);
    }
    join_free();
    return std::move(out_);
  }

 private:
  void change_groups(std::size_t b) {
    const i64 groups = blocks_[b].groups;
    for (const i64 count : {groups - 1, groups / 2, groups + 1}) add(b, blocks_[b].shape, count);
    Shape half = blocks_[b].shape, twice = half;
    for (i64& count : half) count /= 2;
    for (i64& count : twice) count *= 2;
    add(b, half, 2 * groups);
    add(b, half, groups);
    add(b, twice, groups / 2);
  }

  void change_shape(std::size_t b) {
    for (std::size_t c = 0; c < rates_.num_classes(); ++c) {
      const i64 now = blocks_[b].shape[c];
      for (const i64 count : {now - 1, now / 2, now + 1}) {
        Shape shape = blocks_[b].shape;
        shape[c] = count;
        if (count >= 0) add(b, shape, blocks_[b].groups);
      }
    }
  }

  /// A group of its own, for what is free.
  void join_free() {
    Shape free(rates_.num_classes(), 0);
    for (std::size_t c = 0; c < free.size(); ++c) free[c] = std::max<i64>(0, free_of(rates_, blocks_, c));
    Blocks next = blocks_;
    next.push_back({free, 1});
    keep(std::move(next));
  }

  void add(std::size_t b, const Shape& shape, i64 groups) {
    Blocks next = blocks_;
    if (groups < 1 || sum_of(shape) == 0)
      next.erase(next.begin() + static_cast<std::ptrdiff_t>(b));
    else
      next[b] = {shape, groups};
    keep(std::move(next));
  }

  void keep(Blocks next) {
    if (next.empty() || sum_of(next.back().shape) == 0 || next == blocks_) return;
    for (std::size_t c = 0; c < rates_.num_classes(); ++c) {
      if (free_of(rates_, next, c) < 0) return;
    }
    if (std::find(out_.begin(), out_.end(), next) == out_.end()) out_.push_back(std::move(next));
  }

  const Rates& rates_;
  const Blocks& blocks_;
  std::vector<Blocks> out_;
};

}  // namespace

std::vector<Blocks> neighbours(const Rates& rates, const Blocks& blocks) {
  return Variants(rates, blocks).all();
}

std::vector<i64> group_counts(const Rates& rates, const ClassSet& used, i64 most) {
  i64 least = rates.classes()[used.front()].size();
  for (const std::size_t c : used) least = std::min(least, rates.classes()[c].size());
  std::set<i64> counts;
  for (const i64 number : kRoundNumbers) {
    counts.insert(number);
    for (const std::size_t c : used) counts.insert(rates.classes()[c].size() / number);
  }
  std::vector<i64> out;
  for (const i64 count : counts) {
    if (count >= 1 && count <= std::min(least, most)) out.push_back(count);
  }
  if (most < least && (out.empty() || out.back() != most)) out.push_back(most);
  return out;
}

namespace {

void add_partitions(std::size_t cls, std::size_t num_classes, std::vector<ClassSet>& blocks,
                    std::vector<std::vector<ClassSet>>& out) {
  if (cls == num_classes) {
    if (blocks.size() > 1) out.push_back(blocks);
    return;
  }
  add_partitions(cls + 1, num_classes, blocks, out);  // idle
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    blocks[b].push_back(cls);
    add_partitions(cls + 1, num_classes, blocks, out);
    blocks[b].pop_back();
  }
  blocks.push_back({cls});
  add_partitions(cls + 1, num_classes, blocks, out);
  blocks.pop_back();
}

}  // namespace

std::vector<std::vector<ClassSet>> partitions(std::size_t num_classes) {
  std::vector<std::vector<ClassSet>> out;
  std::vector<ClassSet> blocks;
  if (num_classes <= kFewClasses) {
    add_partitions(0, num_classes, blocks, out);
    return out;
  }
  for (std::size_t c = 0; c < num_classes; ++c) blocks.push_back({c});
  out.push_back(std::move(blocks));
  return out;
}

}  // namespace hetermoe

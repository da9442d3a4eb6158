#include "hetermoe/planner/estimate/continuous_split.h"

#include <gtest/gtest.h>

#include "hetermoe/base/index.h"
#include "hetermoe/planner/request_check.h"
#include "hetermoe/planner/search/sketches.h"
#include "tests/support/random_request.h"
#include "tests/support/sanitized.h"

namespace hetermoe {
namespace {

constexpr double kRounding = 1e-9;

/// Who owns no experts, some, or as many as have room.
enum class Filling { kEmpty, kPart, kFull };

struct Owner {
  Filling filling;
  double room = 0;     ///< experts of all layers
  Seconds begin, end;  ///< of its experts
};

Owner owner_of(const Rates& rates, const Part& part) {
  const double units = part.owned * rates.moe_layers(), room = expert_room(rates, part, 1);
  EXPECT_LE(units, room * (1 + kRounding));
  const bool full = units > room * (1 - kRounding);
  const Filling filling = units <= 0 ? Filling::kEmpty : full ? Filling::kFull : Filling::kPart;
  return {filling, room, part.attention_s, part.attention_s + units * part.unit_s};
}

/// All experts have an owner, nobody owns more than has room, and no expert would end earlier elsewhere:
/// owners with room for more end together, full ones before them, those with none begin after them.
TEST(SplitWork, OwnersWithRoomEndTogether) {
  i64 splits = 0, together = 0, full = 0, empty = 0;
  for (u64 seed = 1; seed <= static_cast<u64>(testing::cases(30)); ++seed) {
    const PlanRequest request = checked(testing::random_request(seed, {.types = 3, .nodes = 3}));
    const Rates rates(request);
    for (const RankedSketch& ranked : rank_sketches(rates).sketches) {
      std::optional<Shortage> shortage;
      const std::vector<Part> parts = split_work(rates, ranked.sketch, ranked.sketch.groups.front(),
                                                 ranked.sketch.groups.size(), shortage);
      ASSERT_FALSE(shortage);
      double owned = 0;
      std::vector<Owner> owners;
      std::optional<Seconds> end;
      for (const Part& part : parts) {
        owned += part.count * part.owned;
        owners.push_back(owner_of(rates, part));
        if (owners.back().filling == Filling::kPart) end = owners.back().end;
      }
      EXPECT_NEAR(owned, real(request.model.num_experts), kRounding * real(request.model.num_experts));
      ++splits;
      if (!end) continue;
      for (const Owner& owner : owners) {
        switch (owner.filling) {
          case Filling::kPart:
            EXPECT_NEAR(owner.end, *end, kRounding * *end);
            ++together;
            break;
          case Filling::kFull:
            EXPECT_LE(owner.end, *end * (1 + kRounding));
            ++full;
            break;
          case Filling::kEmpty:
            if (owner.room == 0) break;
            EXPECT_GE(owner.begin, *end * (1 - kRounding));
            ++empty;
        }
      }
    }
  }
  EXPECT_GT(together, splits);
  EXPECT_GT(full, 0);
  EXPECT_GT(empty, 0);
}

}  // namespace
}  // namespace hetermoe

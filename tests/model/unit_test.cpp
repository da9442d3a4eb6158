#include "hetermoe/model/unit.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

namespace hetermoe {
namespace {

class Units : public ::testing::TestWithParam<const char*> {
 protected:
  ModelConfig model_ = load_model(GetParam());
};

TEST_P(Units, EveryTensorHasAUnitAndTheirSizesAddUp) {
  std::map<Unit, i64> sizes;
  for (const ParamInfo& info : parameters(model_))
    sizes[unit_of(model_, info)] += info.buffer ? 0 : info.numel();
  const std::vector<Unit> all = units(model_);
  ASSERT_EQ(sizes.size(), all.size());
  for (const Unit& unit : all) EXPECT_EQ(num_parameters(model_, unit), sizes.at(unit)) << to_string(unit);
}

TEST_P(Units, AscendAndHaveNamesOfTheirOwn) {
  const std::vector<Unit> all = units(model_);
  EXPECT_TRUE(std::is_sorted(all.begin(), all.end()));
  std::map<std::string, int> names;
  for (const Unit& unit : all) ++names[to_string(unit)];
  EXPECT_EQ(names.size(), all.size());
}

INSTANTIATE_TEST_SUITE_P(Families, Units,
                         ::testing::Values("tiny", "tiny-qwen3", "tiny-olmoe", "tiny-deepseek-v2",
                                           "tiny-deepseek-v3"));

TEST(TiedEmbeddings, LeaveNoHeadUnit) {
  ModelConfig model = load_model("tiny");
  model.tie_embeddings = true;
  const std::vector<Unit> all = units(model);
  EXPECT_EQ(std::count_if(all.begin(), all.end(), [](const Unit& u) { return u.part == UnitPart::kHead; }),
            0);
  EXPECT_EQ(num_parameters(model, all[0]), model.vocab * model.hidden + model.hidden);
}

}  // namespace
}  // namespace hetermoe

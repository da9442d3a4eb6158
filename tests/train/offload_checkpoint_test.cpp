#include <gtest/gtest.h>

#include "tests/train/tiny_run.h"

namespace hetermoe {
namespace {

/// Written and read with other parts of the model on hosts.
// Claim: a checkpoint is read wherever parameters live
TEST(Checkpoint, WhereParametersLiveIsNoMatterToACheckpoint) {
  for (const char* dtype : {"fp32", "bf16"}) {
    const auto run = [&](const fs::path& folder, const char* offload) {
      TinyRun made(folder.string(), {{"strategy", "zebra"},
                                     {"cluster", "demo-hosts"},
                                     {"plan.offload", offload},
                                     {"plan.attention_dtype", dtype},
                                     {"plan.expert_dtype", dtype}});
      fs::remove_all(made.checkpoints() / "step-00000006");
      return made.run();
    };
    const WorkFolder whole_folder;
    const TinyRun::End whole = run(whole_folder.path(), "none");
    for (const char* first : {"none", "optimizer", "optimizer,experts.weights"}) {
      for (const char* then : {"none", "optimizer", "optimizer,experts.weights"}) {
        const WorkFolder folder;
        run(folder.path(), first);
        const TinyRun::End resumed = run(folder.path(), then);
        EXPECT_EQ(resumed.outcome.first_step, 4) << first << " " << then;
        expect_equal(resumed.values, whole.values);
      }
    }
  }
}

}  // namespace
}  // namespace hetermoe

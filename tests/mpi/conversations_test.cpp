#include <gtest/gtest.h>

#include "hetermoe/train/run/trainer.h"
#include "tests/mpi/job.h"
#include "tests/support/conversations.h"
#include "tests/train/tiny_run.h"

// Answers of conversations, divided over the devices of several processes.
namespace hetermoe::testing {
namespace {

/// Nothing is written: ranks compare the name of the folder.
TrainOutcome train(const Processes& processes) {
  const TinyRun rig("none", {{"train.seq_len", "48"},
                             {"train.steps", "3"},
                             {"train.validation_sequences", "8"},
                             {"strategy", "zebra"},
                             {"checkpoint.every", "0"}});
  const Dataset data = conversation_data(48, 0.2);
  return Trainer(rig.job, rig.model, rig.cluster, rig.plan, data, processes).run();
}

TEST(Mpi, ConversationsGiveTheLossesOfOneProcessBitForBit) {
  const TrainOutcome expected = train(Processes()), got = train(*job);
  ASSERT_EQ(got.records.size(), expected.records.size());
  for (std::size_t i = 0; i < got.records.size(); ++i) {
    EXPECT_EQ(got.records[i].tokens_hash, expected.records[i].tokens_hash) << i;
    EXPECT_EQ(got.records[i].loss, expected.records[i].loss) << i;
    EXPECT_EQ(got.records[i].grad_norm, expected.records[i].grad_norm) << i;
  }
  EXPECT_NEAR(got.validations().at(0).loss, expected.validations().at(0).loss, 1e-12);
}

}  // namespace
}  // namespace hetermoe::testing

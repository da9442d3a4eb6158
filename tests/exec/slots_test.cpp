#include "hetermoe/exec/slots.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

namespace hetermoe {
namespace {

/// The buffers that the slots name, with the shapes of the keys of these slots.
std::map<Buffer, std::set<KeyShape>> named_by_slots() {
  std::map<Buffer, std::set<KeyShape>> named;
  const auto ask = [&](auto slot, KeyShape shape) {
    slot.visit([&](Buffer buffer, const auto&...) { named[buffer].insert(shape); });
  };
  ask(StepSlot{}, KeyShape::kOfStep);
  ask(MicrobatchSlot{}, KeyShape::kOfMicrobatch);
  ask(LayerSlot{}, KeyShape::kOfLayer);
  ask(ChunkSlot{}, KeyShape::kOfChunk);
  ask(SavedSlot{}, KeyShape::kOfPiece);
  return named;
}

// Claim: a buffer whose line says that it holds something is freed and found by the executor
TEST(Slots, NameEveryBufferThatHoldsSomethingInTheSlotOfItsKey) {
  const std::map<Buffer, std::set<KeyShape>> named = named_by_slots();
  for (const BufferRow& row : kBufferRows) {
    const auto found = named.find(row.buffer);
    if (row.holds == Holds::kNothing) {
      EXPECT_EQ(found, named.end()) << row.name << " is said to hold nothing";
    } else {
      ASSERT_NE(found, named.end()) << row.name << " has no slot";
      EXPECT_EQ(found->second, std::set<KeyShape>{shape_of(row.buffer)}) << row.name;
    }
  }
}

TEST(Slots, HandOverWhatTheyHoldAndTellItUntilThen) {
  Slots slots(2, 1, 2);
  EXPECT_TRUE(slots.held().empty());
  slots.layer(1, 0).residual = at::ones({2});
  slots.layer(1, 0).topk = at::ones({3});
  slots.chunk(0, 0, 1).returned = {at::ones({4})};
  slots.chunk(1, 0, 1).routed.send.resize(1);
  slots.microbatch(0).counts = at::ones({5});
  const std::vector<std::string> all = {"returned of layer 0 microbatch 0",
                                        "residual of layer 1 microbatch 0", "routing of layer 1 microbatch 0",
                                        "routing of layer 1 microbatch 0", "counts of microbatch 0"};
  EXPECT_EQ(slots.held(), all);

  const at::Tensor residual = slots.layer(1, 0).residual;
  const Released taken = slots.take(BufferKey::of_layer(Buffer::kResidual, 1, 0));
  EXPECT_EQ(residual.use_count(), 2) << "the result holds its memory";
  EXPECT_NE(slots.take(BufferKey::of_layer(Buffer::kRouting, 1, 0)), nullptr);
  EXPECT_NE(slots.take(BufferKey::of_chunk(Buffer::kReturned, 0, 0, 1)), nullptr);
  EXPECT_EQ(slots.held(), std::vector<std::string>{"counts of microbatch 0"});
  EXPECT_EQ(slots.take(BufferKey::of_turn(Buffer::kGuestTurn, 0)), nullptr);
  slots.clear();
  EXPECT_TRUE(slots.held().empty());
}

}  // namespace
}  // namespace hetermoe

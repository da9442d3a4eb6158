#include "hetermoe/routing/trace.h"

#include <gtest/gtest.h>

#include <fstream>

#include "hetermoe/base/checksum.h"
#include "hetermoe/routing/frames.h"
#include "hetermoe/routing/writer.h"
#include "tests/routing/golden_trace.h"
#include "tests/support/error_of.h"
#include "tests/support/work_folder.h"

namespace hetermoe {
namespace {

using Ids = std::vector<std::uint16_t>;

std::string written(const WorkFolder& folder, const TraceHeader& header, const std::vector<TraceStep>& steps,
                    TraceDetail detail = TraceDetail::kChoices) {
  const std::string path = folder / "written.routes";
  RoutingWriter writer(path, header);
  for (const TraceStep& step : steps) writer.step(step, detail);
  writer.finish();
  return path;
}

std::string error_of_bytes(const WorkFolder& folder, const std::string& bytes) {
  const std::string path = folder.file("damaged.routes", bytes);
  return error_of<InputError>([&] {
    const RoutingTrace trace(path);
    for (const i64 step : trace.steps()) trace.read(step);
  });
}

TEST(RoutingWriter, ReplacesTracesAlone) {
  const WorkFolder folder;
  const TraceHeader header = golden_header();
  const std::string text = folder.file("thesis.txt", "To be, or not to be");
  for (const i64 step : {0, 3}) {
    const std::string error = error_of<ConfigError>([&] { RoutingWriter::resume(text, header, step); });
    EXPECT_EQ(error,
              "[" + text + "] is no routing trace, and writing one would destroy it. Name another file");
  }
  EXPECT_EQ(read_text(text), "To be, or not to be");
  const std::string trace = written(folder, header, {});
  EXPECT_EQ(error_of([&] { RoutingWriter(trace, header).finish(); }), "no error");
  EXPECT_EQ(error_of([&] { RoutingWriter("/dev/null", header).finish(); }), "no error");
}

TEST(RoutingWriter, HasItsFileForItselfAlone) {
  const WorkFolder folder;
  const std::string path = folder / "one.routes";
  {
    RoutingWriter first(path, golden_header());
    first.sync();
    const std::string bytes = read_text(path);
    for (const i64 step : {0, 3}) {
      EXPECT_EQ(
          error_of<ConfigError>([&] { RoutingWriter::resume(path, golden_header(), step); }),
          "[" + path + "] is being written by another process. Wait for it to end, or name another file");
    }
    EXPECT_EQ(read_text(path), bytes);
  }
  RoutingWriter::resume(path, golden_header(), 3).finish();
}

/// Without a sync, which file systems also make when a file is truncated: there are thousands.
void write_quickly(const std::string& path, const std::string& bytes) {
  std::filesystem::remove(path);
  std::ofstream(path, std::ios::binary) << bytes;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// The golden bytes with a frame changed, its checksum right.
std::string with_frame(std::size_t offset, const std::function<void(frames::Head&, std::string&)>& change) {
  std::string bytes = golden_bytes();
  frames::Head head;
  std::memcpy(&head, bytes.data() + offset, sizeof(head));
  std::string payload = bytes.substr(offset + sizeof(head), head.bytes);
  const std::size_t after = offset + sizeof(head) + frames::padded(head.bytes);
  change(head, payload);
  head.bytes = payload.size();
  head.checksum = frames::checksum_of(head, payload.data());
  std::string frame(reinterpret_cast<const char*>(&head), sizeof(head));
  frame += payload;
  frame.resize(sizeof(head) + frames::padded(payload.size()));
  return bytes.substr(0, offset) + frame + bytes.substr(after);
}

constexpr std::size_t kSequencesAt = 0x70, kChoicesAt = 0xd0;

std::string with_header(const std::string& json) {
  std::string text = json;
  text.resize(frames::padded(text.size()), ' ');
  frames::FileHead head{};
  std::memcpy(head.magic, frames::kMagic, 8);
  head.version = 1;
  head.header_bytes = static_cast<std::uint32_t>(text.size());
  head.checksum = checksum(text.data(), text.size());
  return std::string(reinterpret_cast<const char*>(&head), sizeof(head)) + text +
         golden_bytes().substr(kSequencesAt);
}

TEST(RoutingTrace, IsWrittenAsTheDocumentedBytes) {
  const WorkFolder folder;
  const std::string bytes = read_text(written(folder, golden_header(), {golden_step()}));
  ASSERT_EQ(bytes.size(), 328u);
  EXPECT_EQ(bytes, golden_bytes());
  EXPECT_EQ(checksum(bytes.data(), bytes.size()), 0x27563ef8403e0854u);
}

TEST(RoutingTrace, ReadsTheDocumentedBytes) {
  const WorkFolder folder;
  const RoutingTrace trace(folder.file("golden.routes", golden_bytes()));
  EXPECT_EQ(trace.header(), golden_header());
  EXPECT_EQ(trace.steps(), std::vector<i64>{2});
  EXPECT_EQ(trace.notes(), std::vector<std::string>{});
  const TraceStep step = trace.read(2);
  EXPECT_EQ(step.sequences, golden_step().sequences);
  EXPECT_EQ(step.choices, golden_step().choices);
  EXPECT_EQ(step.counts[0], (std::vector<std::uint32_t>{3, 2, 1, 0, 1, 0, 1, 2}));
}

TEST(RoutingTrace, EveryPrefixIsGoodUpToItsLastWholeFrame) {
  const WorkFolder folder;
  const std::string bytes = golden_bytes();
  const std::vector<std::size_t> ends = {0xd0, 0x110, 0x148};
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    const std::string path = folder / "prefix.routes";
    write_quickly(path, bytes.substr(0, size));
    if (size < kSequencesAt) {
      EXPECT_NE(error_of<InputError>([&] { RoutingTrace trace(path); }), "no error") << size;
      continue;
    }
    const RoutingTrace trace(path);
    const i64 whole = std::count_if(ends.begin(), ends.end(), [&](std::size_t end) { return end <= size; });
    EXPECT_EQ(trace.num_frames(), whole) << size;
    EXPECT_EQ(trace.steps().size(), whole >= 2 ? 1u : 0u) << size;
    EXPECT_FALSE(trace.notes().empty()) << size;
  }
}

TEST(RoutingTrace, EveryFlippedBitIsNoticed) {
  const WorkFolder folder;
  const std::string bytes = golden_bytes();
  for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    std::string damaged = bytes;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << (bit % 8)));
    const std::string path = folder / "flipped.routes";
    write_quickly(path, damaged);
    std::vector<std::string> notes;
    const std::string error = error_of<InputError>([&] {
      const RoutingTrace trace(path);
      notes = trace.notes();
      for (const i64 step : trace.steps()) trace.read(step);
    });
    EXPECT_TRUE(error != "no error" || !notes.empty()) << "bit " << bit;
  }
}

TEST(RoutingTrace, RefusesWhatItsHeaderCannotSay) {
  const WorkFolder folder;
  std::string bytes = golden_bytes();
  bytes[0] = 'X';
  EXPECT_TRUE(contains(error_of_bytes(folder, bytes),
                       "at byte 0] is no routing trace: got \"XMROUTES\", expected \"HMROUTES\""));
  bytes = golden_bytes();
  bytes[8] = 2;
  EXPECT_TRUE(contains(error_of_bytes(folder, bytes), "at byte 8] version of the trace: got 2, expected 1"));
  EXPECT_TRUE(contains(error_of_bytes(folder, with_header("{]")), "at byte 24]"));
  EXPECT_TRUE(contains(error_of_bytes(folder, with_header(R"({"layers":[1],"num_experts":4})")), "top_k"));
  EXPECT_TRUE(contains(
      error_of_bytes(
          folder,
          with_header(R"({"layers":[1],"num_experts":4,"top_k":5,"weights":"none","domains":["a","b"]})")),
      "top_k of the header: got 5, expected at most num_experts (4)"));
  EXPECT_TRUE(contains(
      error_of_bytes(
          folder,
          with_header(R"({"layers":[3,1],"num_experts":4,"top_k":2,"weights":"none","domains":["a","b"]})")),
      "got [3,1], expected at least one, ascending"));
  EXPECT_TRUE(contains(
      error_of_bytes(
          folder,
          with_header(R"({"layers":[2],"num_experts":4,"top_k":2,"weights":"none","domains":["a","b"]})")),
      "layer: got 1, expected one of the header"));
  EXPECT_TRUE(contains(
      error_of_bytes(
          folder,
          with_header(R"({"layers":[1],"num_experts":4,"top_k":1,"weights":"none","domains":["a","b"]})")),
      "payload of the frame: got 12 bytes, expected 6"));
}

TEST(RoutingTrace, RefusesChoicesThatCannotBe) {
  const WorkFolder folder;
  EXPECT_TRUE(
      contains(error_of_bytes(folder, with_frame(kChoicesAt, [](auto&, std::string& ids) { ids[3] = 4; })),
               "at byte 259] expert of step 2 layer 1: got 4, expected less than 4"));
  EXPECT_TRUE(
      contains(error_of_bytes(folder, with_frame(kChoicesAt, [](auto&, std::string& ids) { ids[1] = 0; })),
               "at byte 257] expert 0 is there twice in a token of step 2 layer 1"));
  EXPECT_TRUE(contains(
      error_of_bytes(folder, with_frame(kChoicesAt, [](auto&, std::string& ids) { ids.resize(10); })),
      "at byte 208] payload of the frame: got 10 bytes, expected 12"));
  EXPECT_TRUE(contains(
      error_of_bytes(folder, with_frame(kChoicesAt, [](frames::Head& head, auto&) { head.count = 3; })),
      "sequences 0 to 2 of step 2: got no frame of sequences before, expected one"));
  EXPECT_TRUE(contains(
      error_of_bytes(folder, with_frame(kChoicesAt, [](frames::Head& head, auto&) { head.kind = 5; })),
      "kind of the frame: got 5, expected 1 to 4"));
  EXPECT_TRUE(contains(
      error_of_bytes(folder, with_frame(kSequencesAt, [](auto&, std::string& told) { told[16] = 2; })),
      "domain of a sequence: got 2, expected less than 2 or none"));
}

TEST(RoutingTrace, RefusesWeightsThatAreNoNumbers) {
  const WorkFolder folder;
  TraceHeader header = golden_header();
  header.weights = TraceWeights::kF32;
  TraceStep step = golden_step();
  step.weights = {std::vector<float>(12, 0.5F)};
  EXPECT_EQ(RoutingTrace(written(folder, header, {step})).read(2).weights, step.weights);
  step.weights[0][3] = std::numeric_limits<float>::quiet_NaN();
  const RoutingTrace trace(written(folder, header, {step}));
  EXPECT_TRUE(
      contains(error_of<InputError>([&] { trace.read(2); }), "routing weight of step 2 layer 1: got nan"));
}

TEST(RoutingTrace, KeepsCountsAlone) {
  const WorkFolder folder;
  const RoutingTrace trace(written(folder, golden_header(), {golden_step()}, TraceDetail::kCounts));
  const TraceStep step = trace.read(2);
  EXPECT_FALSE(step.has_choices());
  EXPECT_EQ(step.counts, golden_step().counts);
}

TEST(RoutingTrace, WideIdsGoThroughAFileUnchanged) {
  const WorkFolder folder;
  TraceHeader header = golden_header();
  header.num_experts = 300;
  TraceStep step = golden_step();
  step.choices[0][0] = 299;
  count_choices(step, header);
  EXPECT_EQ(RoutingTrace(written(folder, header, {step})).read(2).choices, step.choices);
}

/// Two ranks, each with one of the sequences.
void write_ranks(const WorkFolder& folder, const std::vector<std::string>& names,
                 const TraceHeader& header = golden_header()) {
  const TraceStep whole = golden_step();
  for (std::size_t r = 0; r < names.size(); ++r) {
    RoutingWriter writer(folder / ("trace/" + names[r]), header);
    const auto first = static_cast<i64>(r);
    writer.sequences(2, first, std::span(whole.sequences).subspan(r, 1));
    writer.choices(2, 1, first, 1, std::span(whole.choices[0]).subspan(6 * r, 6));
    writer.finish();
  }
}

TEST(RoutingTrace, FilesOfRanksAreOneTrace) {
  const WorkFolder folder;
  write_ranks(folder, {"rank-00001.routes", "rank-00000.routes"});
  const RoutingTrace trace(folder / "trace");
  EXPECT_EQ(trace.read(2).choices, golden_step().choices);
  EXPECT_EQ(trace.read(2).sequences, golden_step().sequences);
}

TEST(RoutingTrace, NamesARankThatIsMissing) {
  const WorkFolder folder;
  write_ranks(folder, {"rank-00000.routes", "rank-00002.routes"});
  EXPECT_TRUE(contains(error_of<InputError>([&] { RoutingTrace trace(folder / "trace"); }),
                       "a rank is missing: got rank-00002.routes, expected rank-00001.routes"));
}

/// Nothing comes after it, but the header says how many sequences a step has.
TEST(RoutingTrace, NamesWhatIsMissingOfTheLastRank) {
  const WorkFolder folder;
  TraceHeader header = golden_header();
  header.sequences = 2;
  write_ranks(folder, {"rank-00000.routes"}, header);
  const RoutingTrace trace(folder / "trace");
  EXPECT_TRUE(trace.steps().empty());
  ASSERT_EQ(trace.notes().size(), 1u);
  EXPECT_EQ(trace.notes()[0], "step 2 is not whole and is left out: has no sequence 1 of 2");
}

TEST(RoutingTrace, ALayerHasChoicesOrCounts) {
  const WorkFolder folder;
  const TraceStep step = golden_step();
  RoutingWriter writer(folder / "both.routes", golden_header());
  writer.sequences(2, 0, step.sequences);
  writer.choices(2, 1, 0, 1, std::span(step.choices[0]).subspan(0, 6));
  writer.counts(2, 1, 1, 1, std::span(step.counts[0]).subspan(4, 4));
  writer.finish();
  const RoutingTrace trace(folder / "both.routes");
  ASSERT_EQ(trace.notes().size(), 1u);
  EXPECT_EQ(
      trace.notes()[0],
      "step 2 is not whole and is left out: layer 1 has choices of some sequences and counts of others");
}

/// A run that went on with `detail: counts`.
TEST(RoutingTrace, StepsWithChoicesAreNotJoinedWithStepsOfCounts) {
  const WorkFolder folder;
  TraceStep second = golden_step();
  second.step = 4;
  RoutingWriter writer(folder / "two.routes", golden_header());
  writer.step(golden_step());
  writer.sequences(4, 0, second.sequences);
  writer.counts(4, 1, 0, 2, second.counts[0]);
  writer.finish();
  const RoutingTrace trace(folder / "two.routes");
  ASSERT_EQ(trace.steps().size(), 2U);
  EXPECT_TRUE(contains(error_of<InputError>([&] { read_steps(trace, 0, 9); }),
                       "steps 2 and 4 cannot be joined: step 2 has choices of layer 1, step 4 has none. Name "
                       "steps of one kind, as FILE:2..3"));
  EXPECT_FALSE(read_steps(trace, 4, 4).has_choices());
}

TEST(RoutingTrace, StepsThatAreNotWholeAreNamedAndLeftOut) {
  const WorkFolder folder;
  const TraceStep step = golden_step();
  RoutingWriter writer(folder / "part.routes", golden_header());
  writer.step(step);
  writer.sequences(3, 0, step.sequences);
  writer.choices(3, 1, 0, 1, std::span(step.choices[0]).subspan(0, 6));
  writer.finish();
  const RoutingTrace trace(folder / "part.routes");
  EXPECT_EQ(trace.steps(), std::vector<i64>{2});
  ASSERT_EQ(trace.notes().size(), 1u);
  EXPECT_EQ(trace.notes()[0], "step 3 is not whole and is left out: layer 1 has no sequence 1 of 2");
  EXPECT_TRUE(
      contains(error_of<InputError>([&] { trace.read(3); }), "step 3 is not in the trace, or not whole"));
}

TEST(RoutingTrace, StepsAreJoined) {
  const WorkFolder folder;
  TraceStep second = golden_step();
  second.step = 4;
  const RoutingTrace trace(written(folder, golden_header(), {golden_step(), second}));
  const TraceStep both = read_steps(trace, 0, 9);
  EXPECT_EQ(both.num_sequences(), 4);
  EXPECT_EQ(both.num_tokens(), 12);
  EXPECT_EQ(both.counts[0].size(), 16u);
  EXPECT_TRUE(contains(error_of<InputError>([&] { read_steps(trace, 5, 9); }),
                       "has no whole step from 5 to 9: got steps 2 to 4"));
}

TEST(RoutingWriter, AResumedTraceThatWasCutTellsItsLastStep) {
  const WorkFolder folder;
  const std::string path = folder / "cut.routes";
  std::uintmax_t before = 0, after = 0;
  {
    RoutingWriter writer(path, golden_header());
    before = std::filesystem::file_size(path);
    writer.step(golden_step());
    after = std::filesystem::file_size(path);
    TraceStep second = golden_step();
    second.step = 3;
    writer.step(second);
  }
  const auto last_step = [&] { return RoutingWriter::resume(path, golden_header(), 9).last_step(); };
  EXPECT_EQ(last_step(), 3);
  std::filesystem::resize_file(path, after);
  EXPECT_EQ(last_step(), 2);
  std::filesystem::resize_file(path, before);
  EXPECT_EQ(last_step(), 0);
  std::filesystem::remove(path);
  EXPECT_EQ(last_step(), std::nullopt);
}

TEST(RoutingWriter, AResumedTraceIsThatOfAnUnbrokenRun) {
  const WorkFolder folder;
  TraceStep second = golden_step(), third = golden_step();
  second.step = 4, third.step = 6;
  const std::string whole = read_text(written(folder, golden_header(), {golden_step(), second, third}));
  const std::string path = folder / "resumed.routes";
  for (const bool ended : {false, true}) {
    {
      RoutingWriter writer(path, golden_header());
      writer.step(golden_step());
      writer.step(second);
      if (ended) writer.finish();
    }
    RoutingWriter again = RoutingWriter::resume(path, golden_header(), 4);
    EXPECT_EQ(again.last_step(), golden_step().step);
    again.step(second);
    again.step(third);
    again.finish();
    EXPECT_EQ(read_text(path), whole);
  }
  TraceHeader other = golden_header();
  other.num_experts = 5;
  EXPECT_TRUE(contains(error_of<InputError>([&] { RoutingWriter::resume(path, other, 4); }),
                       "the run cannot go on with this trace"));
}

}  // namespace
}  // namespace hetermoe

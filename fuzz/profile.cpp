#include "fuzz/small_plans.h"
#include "fuzz/target.h"
#include "hetermoe/cost/measured.h"

// A profile of a device, and the cost model that is made of it.
namespace hetermoe::fuzz {
namespace {

/// One sequence and two, in each phase that is measured.
std::vector<ProfileEntry> seed_entries() {
  std::vector<ProfileEntry> entries;
  for (const i64 sequences : {1, 2}) {
    for (const ProfiledPhase phase : {ProfiledPhase::kForward, ProfiledPhase::kBackward}) {
      ProfileEntry entry;
      entry.op = ProfiledOp::kAttention;
      entry.phase = phase;
      entry.seq_len = 8;
      entry.sequences = sequences;
      entry.tokens = 8 * sequences;
      entry.seconds = entry.p10 = entry.p90 = 1e-3;
      entry.runs = 3;
      entries.push_back(entry);
    }
  }
  return entries;
}

void run(const std::string& input) {
  const ProfileFile profile = parse_profile(input, "profile.json");
  const Plan plan = small_plan("zebra");
  const MeasuredCost cost(tiny_model(), demo_cluster(), plan, {{0, {profile, "profile.json"}}});
  const std::string written = write_fields(profile).dump();
  expect_reads_back(written, [&] { return write_fields(parse_profile(written, "written")).dump(); });
  ComputeWork work;
  work.op.kind = OpKind::kAttention;
  work.op.layer = 0;
  work.op.microbatch = 0;
  work.seq_len = 8;
  work.tokens = 24;
  cost.compute(work);
}

std::vector<std::string> seeds() {
  ProfileFile profile;
  profile.host = "host";
  profile.device = "device";
  profile.date = "2026-01-01T00:00:00Z";
  profile.model = "tiny";
  profile.shape = shape_of(tiny_model());
  profile.entries = seed_entries();
  return {write_fields(profile).dump(), write_fields(profile).dump(1)};
}

}  // namespace

extern const Target kProfile{"profile", run, seeds};

}  // namespace hetermoe::fuzz

#include "hetermoe/weights/convert.h"

#include <iostream>
#include <memory>

#include "hetermoe/base/words.h"
#include "hetermoe/cli/command.h"
#include "hetermoe/report/table.h"
#include "hetermoe/train/checkpoint/resume.h"

namespace hetermoe {
namespace {

struct ConvertArguments {
  std::string from, to, dtype, layout;
  double shard_gb = static_cast<double>(kMostShardBytes) * 1e-9;
  bool verify = false, json = false;
};

ConvertOptions convert_options(const ConvertArguments& options) {
  ConvertOptions out;
  if (!options.dtype.empty()) out.dtype = scalar_type(parse_dtype(options.dtype));
  if (!options.layout.empty()) {
    out.layout = enum_from<ExpertLayout>(options.layout, "--layout");
    if (out.layout != ExpertLayout::kPerExpert && out.layout != ExpertLayout::kFused)
      fail<ConfigError>("--layout", "got {}, expected per-expert or fused", options.layout);
  }
  out.most_bytes = static_cast<i64>(options.shard_gb * 1e9);
  return out;
}

void print_converted(const ConvertArguments& options, const Converted& done) {
  std::cout << fmt::format("{} ({}): {}, {} in {}, experts {} to {}\n", done.model.name,
                           done.model.model_type, counted(done.num_tensors, "tensor"),
                           format_bytes(static_cast<double>(done.bytes)), counted(done.num_files, "file"),
                           name_of(done.from), name_of(done.to));
  if (!done.ignored.empty())
    std::cout << fmt::format("left behind: {}, such as {}\n", counted(done.ignored.size(), "tensor"),
                             done.ignored[0]);
  if (options.verify)
    std::cout << fmt::format("verified: every parameter is that of the source, to the bit{}\n",
                             options.dtype.empty() ? "" : ", rounded to " + options.dtype);
  std::cout << "written: " << options.to << "\n";
}

int convert(const ConvertArguments& options) {
  const ConvertOptions how = convert_options(options);
  const std::filesystem::path to = folder_path(options.to);
  const auto tell = [](const std::string& note) { std::cerr << note << std::endl; };
  const std::optional<FoundCheckpoint> checkpoint = checkpoint_in(options.from, tell);
  const std::filesystem::path from = checkpoint ? checkpoint->path : folder_path(options.from);
  const Converted done = convert_folder(from, to, how);
  if (options.verify) verify_converted(from, to, how);
  if (options.json) {
    print_json({{"from", from.string()},
                {"to", options.to},
                {"model_type", done.model.model_type},
                {"tensors", done.num_tensors},
                {"bytes", done.bytes},
                {"files", done.num_files},
                {"layout_before", name_of(done.from)},
                {"layout", name_of(done.to)},
                {"ignored", done.ignored},
                {"verified", options.verify}});
  } else {
    if (checkpoint)
      std::cout << fmt::format("checkpoint of step {}: {}\n", checkpoint->info.step, from.string());
    print_converted(options, done);
  }
  return 0;
}

}  // namespace

std::function<int()> make_convert(Flags& flags) {
  const auto options = std::make_shared<ConvertArguments>();
  flags
      .add_option("from", options->from,
                  "a Hugging Face folder with weights, or the output folder of a run: its newest checkpoint")
      .required();
  flags.add_option("-o,--output,to", options->to, "the folder to write").required();
  flags.add_option("--dtype", options->dtype,
                   "fp32, bf16 or fp16 [default: as it is, FP8 and MXFP4 as bf16]");
  flags.add_option(
      "--layout", options->layout,
      "of the experts: per-expert, or fused, as transformers 5 keeps them in memory [default: as "
      "released models have them, per-expert but for gpt_oss]");
  flags.add_option("--shard-gb", options->shard_gb, "a file has at most so many 10^9 bytes of tensors")
      ->capture_default_str()
      .range(above(0));
  flags.add_flag("--verify", options->verify, "read both folders again and compare every parameter");
  flags.add_flag("--json", options->json, "print JSON");
  return [options] { return convert(*options); };
}

}  // namespace hetermoe

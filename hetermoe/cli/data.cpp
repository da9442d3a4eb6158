#include <algorithm>
#include <cstdint>
#include <iostream>
#include <memory>

#include "hetermoe/base/index.h"
#include "hetermoe/base/printable.h"
#include "hetermoe/base/words.h"
#include "hetermoe/cli/command.h"
#include "hetermoe/cli/readable.h"
#include "hetermoe/data/sampler.h"
#include "hetermoe/data/token_files.h"
#include "hetermoe/report/table.h"
#include "hetermoe/train/job.h"

namespace hetermoe {
namespace {

struct Options {
  std::string job, write;
  i64 sequence = 0, characters = 400;
  bool json = false;
};

/// Tokens of the documents of a source.
struct Lengths {
  i64 shortest = 0, median = 0, longest = 0;
  double mean = 0;
};

i64 end_of(const TokenStream& tokens, i64 document) {
  return document + 1 < tokens.num_documents() ? tokens.document(document + 1) : tokens.size();
}

Lengths lengths_of(const TokenStream& tokens) {
  std::vector<i64> lengths;
  for (i64 d = 0; d < tokens.num_documents(); ++d) lengths.push_back(end_of(tokens, d) - tokens.document(d));
  if (lengths.empty()) return {};
  std::sort(lengths.begin(), lengths.end());
  return {lengths.front(), lengths[lengths.size() / 2], lengths.back(),
          real(tokens.size()) / real(lengths.size())};
}

/// How often a run of the job reads the training text of a source.
double passes_of(const Source& source, const Job& job) {
  const double windows = real((source.train.size() - 1) / job.train.seq_len);
  return source.share * real(job.train.steps * job.train.sequences) / windows;
}

std::string name_of_source(const Source& source) { return source.name.empty() ? "all paths" : source.name; }

Json to_json(const Source& source, const Job& job) {
  const Lengths lengths = lengths_of(source.all);
  return {{"source", name_of_source(source)},
          {"share", source.share},
          {"files", source.num_files},
          {"files_skipped", source.num_skipped},
          {"documents", source.all.num_documents()},
          {"documents_empty", source.num_empty},
          {"tokens", source.all.size()},
          {"tokens_training", source.train.size()},
          {"tokens_validation", source.validation.size()},
          {"windows", (source.train.size() - 1) / job.train.seq_len},
          {"passes", passes_of(source, job)},
          {"document_tokens",
           {{"shortest", lengths.shortest},
            {"median", lengths.median},
            {"mean", lengths.mean},
            {"longest", lengths.longest}}}};
}

/// A sequence as the run sees it.
struct Sample {
  Sampler::Drawn drawn;
  Batch batch;
  std::string text;
};

Sample sample_of(const Dataset& data, const Job& job, i64 sequence) {
  const Sampler sampler(data, {job.train.seq_len, job.train.seed});
  Sample out{sampler.draw(sequence), sampler.batch(sequence, 1, std::int64_t{1} << 62), {}};
  out.text = data.tokenizer->decode(out.batch.tokens);
  return out;
}

void print(const Dataset& data, const Job& job, const Sample& sample, const Options& options) {
  Table table({"source", "share", "files", "documents", "tokens", "for training", "windows", "passes",
               "document: shortest", "median", "mean", "longest"});
  for (const Source& source : data.sources) {
    const Lengths lengths = lengths_of(source.all);
    table.add_row({printable(name_of_source(source)), format_percent(source.share),
                   std::to_string(source.num_files), std::to_string(source.all.num_documents()),
                   std::to_string(source.all.size()), std::to_string(source.train.size()),
                   std::to_string((source.train.size() - 1) / job.train.seq_len),
                   fmt::format("{:.3g}", passes_of(source, job)), std::to_string(lengths.shortest),
                   std::to_string(lengths.median), fmt::format("{:.1f}", lengths.mean),
                   std::to_string(lengths.longest)});
  }
  std::cout << table.str();
  for (const Source& source : data.sources) {
    if (source.num_skipped > 0)
      std::cout << fmt::format("{}: {} skipped, which hold NUL bytes\n", printable(name_of_source(source)),
                               counted(source.num_skipped, "file"));
    if (source.num_empty > 0)
      std::cout << fmt::format("{}: {} without tokens\n", printable(name_of_source(source)),
                               counted(source.num_empty, "document"));
  }
  std::cout << fmt::format("documents are {}; tokenizer {}, {} tokens\n", name_of(job.data.documents),
                           printable(job.data.tokenizer), data.tokenizer->vocab_size());
  const std::string text = valid_utf8(sample.text.substr(0, idx(options.characters)));
  std::cout << fmt::format(
      "sequence {} of the run is window {} of {}:\n{}\n", options.sequence, sample.drawn.window,
      printable(name_of_source(data.sources[idx(sample.drawn.source)])), printable_lines(text));
}

/// All documents of all sources, validation included.
Json write_tokens(const Dataset& data, const Options& options) {
  i64 vocab = data.tokenizer->vocab_size();
  std::vector<i64> part;
  for (const Source& source : data.sources) {
    for (i64 first = 0; first < source.all.size(); first += 1 << 16) {
      part = source.all.tokens(first, std::min<i64>(1 << 16, source.all.size() - first));
      vocab = std::max(vocab, *std::max_element(part.begin(), part.end()) + 1);
    }
  }
  MegatronWriter writer(options.write, vocab);
  for (const Source& source : data.sources) {
    for (i64 d = 0; d < source.all.num_documents(); ++d) {
      const i64 begin = source.all.document(d);
      writer.add(source.all.tokens(begin, end_of(source.all, d) - begin));
    }
  }
  writer.finish();
  return {{"index", options.write + ".idx"},
          {"tokens", options.write + ".bin"},
          {"num_documents", writer.num_documents()},
          {"num_tokens", writer.num_tokens()}};
}

int show(const Options& options, const Overrides& overrides) {
  const Job job = options.job.empty() ? job_from_overrides(overrides) : load_job(options.job, overrides);
  const Dataset data = load_dataset(job.data, job.train.seq_len);
  const Sample sample = sample_of(data, job, options.sequence);
  Json json;
  if (!options.write.empty()) json["written"] = write_tokens(data, options);
  if (!options.json) {
    print(data, job, sample, options);
    if (json.contains("written")) {
      const Json& written = json["written"];
      std::cout << fmt::format("wrote {}.bin and .idx: {}, {}\n", printable(options.write),
                               counted(written["num_documents"].get<i64>(), "document"),
                               counted(written["num_tokens"].get<i64>(), "token"));
    }
    return 0;
  }
  for (const Source& source : data.sources) json["sources"].push_back(to_json(source, job));
  json["documents"] = name_of(job.data.documents);
  json["tokenizer"] = {{"name", job.data.tokenizer}, {"tokens", data.tokenizer->vocab_size()}};
  json["sequence"] = {
      {"index", options.sequence},      {"source", name_of_source(data.sources[idx(sample.drawn.source)])},
      {"window", sample.drawn.window},  {"pass", sample.drawn.pass},
      {"tokens", sample.batch.tokens},  {"document_starts", sample.batch.starts},
      {"text", valid_utf8(sample.text)}};
  print_json(json);
  return 0;
}

}  // namespace

std::string valid_utf8(const std::string& text) {
  return Json::parse(Json(text).dump(-1, ' ', false, Json::error_handler_t::replace)).get<std::string>();
}

std::function<int()> make_data(Flags& flags) {
  const auto options = std::make_shared<Options>();
  flags.add_option("job", options->job,
                   "job file (YAML); every key of it is also a flag: --data.paths my_texts/");
  flags
      .add_option("--sequence", options->sequence, "number of the sequence of the run to show, 0 = the first")
      ->capture_default_str()
      ->range(at_least(0));
  flags.add_option("--characters", options->characters, "bytes of its text to show")
      ->capture_default_str()
      ->range(at_least(0));
  flags.add_option("--write", options->write,
                   "write all documents as tokens to PREFIX.bin and PREFIX.idx, as Megatron-LM reads them");
  flags.add_flag("--json", options->json, "print the result as JSON");
  allow_overrides(flags);
  return [options, flags] { return show(*options, overrides_of(flags)); };
}

}  // namespace hetermoe

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <memory>

#include "hetermoe/base/index.h"
#include "hetermoe/base/printable.h"
#include "hetermoe/base/words.h"
#include "hetermoe/cli/command.h"
#include "hetermoe/data/sampler.h"
#include "hetermoe/data/token_files.h"
#include "hetermoe/report/escape.h"
#include "hetermoe/report/table.h"
#include "hetermoe/train/job/epochs.h"
#include "hetermoe/train/job/job_data.h"

namespace hetermoe {
namespace {

struct DataArguments {
  std::string job, write;
  i64 sequence = 0, characters = 400;
  bool json = false;
};

/// The documents of a source, without the padding between conversations.
struct DocumentFigures {
  std::vector<TokenSpan> spans;
  i64 tokens = 0, counted = 0, padding = 0;
  i64 shortest = 0, median = 0, longest = 0;  ///< tokens
  double mean = 0;
};

DocumentFigures documents_of(const TokenStream& tokens) {
  DocumentFigures out;
  std::vector<i64> lengths;
  for (i64 d = 0; d < tokens.num_documents(); ++d) {
    const bool last = d + 1 == tokens.num_documents();
    const TokenSpan span = {tokens.document(d), last ? tokens.size() : tokens.document(d + 1)};
    const i64 size = span.end - span.begin, counted = tokens.num_counted(span.begin, size);
    if (counted == 0) {
      out.padding += size;
      continue;
    }
    out.spans.push_back(span);
    lengths.push_back(size);
    out.tokens += size, out.counted += counted;
  }
  if (lengths.empty()) return out;
  std::sort(lengths.begin(), lengths.end());
  out.shortest = lengths.front(), out.median = lengths[lengths.size() / 2], out.longest = lengths.back();
  out.mean = real(out.tokens) / real(lengths.size());
  return out;
}

/// How often a run of the job reads the training text of a source.
double passes_of(const Source& source, const Job& job) {
  const double windows = real((source.train.size() - 1) / job.train.seq_len);
  return source.share * real(job.train.steps * job.train.sequences) / windows;
}

std::string name_of_source(const Source& source) { return source.name.empty() ? "all paths" : source.name; }

Json to_json(const Source& source, const Job& job) {
  const DocumentFigures documents = documents_of(source.all);
  return {{"source", name_of_source(source)},
          {"share", source.share},
          {"files", source.num_files},
          {"files_skipped", source.num_skipped},
          {"documents", documents.spans.size()},
          {"documents_empty", source.num_empty},
          {"conversations", source.num_conversations},
          {"conversations_cut", source.num_cut},
          {"conversations_left_out", source.num_unanswered},
          {"tokens", source.all.size()},
          {"tokens_counted", documents.counted},
          {"tokens_padding", documents.padding},
          {"tokens_training", source.train.size()},
          {"tokens_validation", source.validation.size()},
          {"windows", (source.train.size() - 1) / job.train.seq_len},
          {"passes", passes_of(source, job)},
          {"document_tokens",
           {{"shortest", documents.shortest},
            {"median", documents.median},
            {"mean", documents.mean},
            {"longest", documents.longest}}}};
}

/// A sequence as the run sees it.
struct Sample {
  Sampler::Drawn drawn;
  Batch batch;
  std::string text;
};

/// Tokens without a tokenizer are shown as their numbers.
std::string text_of(const Dataset& data, std::span<const i64> tokens) {
  if (data.tokenizer) return data.tokenizer->decode(tokens);
  return fmt::format("<{}>", fmt::join(tokens, "><"));
}

Sample sample_of(const Dataset& data, const Job& job, i64 sequence) {
  const Sampler sampler(data, {job.train.seq_len, job.train.seed});
  Sample out{sampler.draw(sequence), sampler.batch(sequence, 1, std::int64_t{1} << 62), {}};
  out.text = text_of(data, out.batch.tokens);
  return out;
}

/// The text of a sequence with the tokens that are counted between marks. What is written where the sequence
/// ends is not seen.
std::string marked_text(const Dataset& data, const Batch& batch) {
  std::string out;
  std::size_t at = 0;
  const auto counted_at = [&](std::size_t i) { return i > 0 && batch.targets[i - 1] >= 0; };
  while (at < batch.tokens.size()) {
    std::size_t end = at + 1;
    while (end < batch.tokens.size() && counted_at(end) == counted_at(at)) ++end;
    const std::string text = text_of(data, {batch.tokens.data() + at, end - at});
    out += counted_at(at) ? "«" + text + "»" : text;
    at = end;
  }
  return out;
}

/// What of a source is not learned from, without its conversations.
std::vector<std::string> source_notes(const Source& source) {
  std::vector<std::string> out;
  if (source.num_skipped > 0)
    out.push_back(
        fmt::format("{}: {}", name_of_source(source), skipped_text(source.num_skipped, source.skipped)));
  if (source.num_empty > 0)
    out.push_back(
        fmt::format("{}: {} without tokens", name_of_source(source), counted(source.num_empty, "document")));
  return out;
}

/// Of conversations: what is counted, and how full the windows are.
void print_conversations(const Source& source) {
  const DocumentFigures documents = documents_of(source.all);
  std::cout << fmt::format("{}: {} in windows, of whose tokens {} are counted (answers) and {} are padding\n",
                           printable(name_of_source(source)),
                           counted(source.num_conversations, "conversation"),
                           format_percent(real(documents.counted) / real(source.all.size())),
                           format_percent(real(documents.padding) / real(source.all.size())));
}

void print_data(const Dataset& data, const Job& job, const Sample& sample, const DataArguments& options) {
  Table table({"source", "share", "files", "documents", "tokens", "for training", "windows", "passes",
               "document: shortest", "median", "mean", "longest"});
  for (const Source& source : data.sources) {
    const DocumentFigures documents = documents_of(source.all);
    table.add_row({printable(name_of_source(source)), format_percent(source.share),
                   std::to_string(source.num_files), std::to_string(documents.spans.size()),
                   std::to_string(source.all.size()), std::to_string(source.train.size()),
                   std::to_string((source.train.size() - 1) / job.train.seq_len),
                   fmt::format("{:.3g}", passes_of(source, job)), std::to_string(documents.shortest),
                   std::to_string(documents.median), fmt::format("{:.1f}", documents.mean),
                   std::to_string(documents.longest)});
  }
  std::cout << table.str();
  for (const Source& source : data.sources) {
    for (const std::string& note : source_notes(source)) std::cout << printable(note) << '\n';
    if (source.num_conversations > 0) print_conversations(source);
  }
  for (const std::string& note : conversation_notes(data)) std::cout << printable(note) << '\n';
  std::cout << printable(data_line(data, job.data)) << '\n';
  std::cout << fmt::format("documents are {}{}\n", data.masked ? "masked" : "packed",
                           data.tokenizer
                               ? fmt::format("; tokenizer {}, {} tokens", printable(job.data.tokenizer),
                                             data.tokenizer->vocab_size())
                               : "");
  const bool all = data.sources[idx(sample.drawn.source)].all.counts_all();
  const std::string shown = all ? sample.text : marked_text(data, sample.batch);
  const std::string text = valid_utf8(shown.substr(0, idx(options.characters)));
  std::cout << fmt::format(
      "sequence {} of the run is window {} of {}:\n{}\n", options.sequence, sample.drawn.window,
      printable(name_of_source(data.sources[idx(sample.drawn.source)])), printable_lines(text));
}

/// Of a document, numbered from its beginning.
std::vector<TokenSpan> counted_spans(const TokenStream& tokens, const TokenSpan& document) {
  std::vector<i64> counted(idx(document.end - document.begin));
  tokens.mark_counted(document.begin, document.end - document.begin, counted.data());
  std::vector<TokenSpan> out;
  for (i64 i = 0; i < static_cast<i64>(counted.size()); ++i) {
    if (counted[idx(i)] == 0) continue;
    if (i > 0 && counted[idx(i - 1)] != 0)
      out.back().end = i + 1;
    else
      out.push_back({i, i + 1});
  }
  return out;
}

/// All documents of all sources, validation included.
Json write_tokens(const Dataset& data, const DataArguments& options) {
  i64 vocab = data.tokenizer ? data.tokenizer->vocab_size() : 1;
  std::vector<i64> part;
  for (const Source& source : data.sources) {
    for (i64 first = 0; first < source.all.size(); first += 1 << 16) {
      part = source.all.tokens(first, std::min<i64>(1 << 16, source.all.size() - first));
      vocab = std::max(vocab, *std::max_element(part.begin(), part.end()) + 1);
    }
  }
  MegatronWriter writer(options.write, vocab);
  for (const Source& source : data.sources) {
    const bool talks = source.num_conversations > 0;
    for (const TokenSpan& span : documents_of(source.all).spans)
      writer.add(source.all.tokens(span.begin, span.end - span.begin),
                 talks ? counted_spans(source.all, span) : std::vector<TokenSpan>{});
  }
  writer.finish();
  return {{"index", options.write + ".idx"},
          {"tokens", options.write + ".bin"},
          {"num_documents", writer.num_documents()},
          {"num_tokens", writer.num_tokens()}};
}

int show(const DataArguments& options, const Overrides& overrides) {
  const auto [job, known] =
      with_steps(options.job.empty() ? job_from_overrides(overrides) : load_job(options.job, overrides));
  const Dataset data = known ? *known : load_job_data(job);
  const Sample sample = sample_of(data, job, options.sequence);
  Json json;
  if (!options.write.empty()) json["written"] = write_tokens(data, options);
  if (!options.json) {
    print_data(data, job, sample, options);
    if (json.contains("written")) {
      const Json& written = json["written"];
      std::cout << fmt::format("wrote {}.bin and .idx: {}, {}\n", printable(options.write),
                               counted(written["num_documents"].get<i64>(), "document"),
                               counted(written["num_tokens"].get<i64>(), "token"));
    }
    return 0;
  }
  std::vector<std::string> notes;
  for (const Source& source : data.sources) {
    json["sources"].push_back(to_json(source, job));
    for (std::string& note : source_notes(source)) notes.push_back(std::move(note));
  }
  for (std::string& note : conversation_notes(data)) notes.push_back(std::move(note));
  json["notes"] = notes;
  json["documents"] = data.masked ? "masked" : "packed";
  json["tokenizer"] = {{"name", job.data.tokenizer},
                       {"tokens", data.tokenizer ? Json(data.tokenizer->vocab_size()) : Json(nullptr)}};
  i64 read = 0, there = 0;
  for (const Source& source : data.sources) read += source.bytes_read, there += source.bytes_there;
  json["text_bytes"] = {{"read", read}, {"there", there}};
  json["sequence"] = {
      {"index", options.sequence},       {"source", name_of_source(data.sources[idx(sample.drawn.source)])},
      {"window", sample.drawn.window},   {"pass", sample.drawn.pass},
      {"tokens", sample.batch.tokens},   {"document_starts", sample.batch.starts},
      {"targets", sample.batch.targets}, {"text", valid_utf8(sample.text)}};
  print_json(json);
  return 0;
}

}  // namespace

std::function<int()> make_data(Flags& flags) {
  const auto options = std::make_shared<DataArguments>();
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
